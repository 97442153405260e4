"""The replication stream as one object, and what a start decides."""
