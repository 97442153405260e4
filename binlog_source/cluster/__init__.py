"""The cluster around the Pumps: registry and clock (PD or the standalone one), which Pumps there are, and what TiDB's status port tells."""
