"""Prewrites, Commits and Rollbacks become complete transactions; the outcomes of orphans are looked up."""
