"""Pairing: joins Prewrites, Commits and Rollbacks to complete transactions, and looks up the outcomes of orphans."""
