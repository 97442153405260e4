"""The cluster around the Pumps: registry and TSO (PD or the standalone one), Pump discovery, and TiDB's status port."""
