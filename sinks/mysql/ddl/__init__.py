"""DDL on the target: TiDB's text adapted to it, or a derived statement, executed exactly once."""
