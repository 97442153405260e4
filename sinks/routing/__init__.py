"""Which databases are replicated."""
