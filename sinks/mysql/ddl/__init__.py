"""A DDL on the target: TiDB's text made acceptable, or derived, executed exactly once."""
