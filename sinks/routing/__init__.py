"""Which tables, row changes and DDLs are replicated, and under which names."""
