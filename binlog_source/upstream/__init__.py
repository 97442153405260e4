"""The embedded upstream: what PD and TiDB give a cluster, for a system that stands alone."""
