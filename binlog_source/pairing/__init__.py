"""Prewrites, Commits and Rollbacks become complete transactions, and what became of those whose outcome was lost."""
