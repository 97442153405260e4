"""Which tables and rows are replicated, and under which names."""
