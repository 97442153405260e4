"""Binlogs as changes of rows: what ``format("tidb_binlog")`` gives."""
