"""Tables of a running TiDB copied to the target at one snapshot, which the stream then joins (docs/bootstrap.md)."""
