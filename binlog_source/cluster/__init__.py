"""The cluster around the Pumps: registry and TSO (PD or standalone), Pump discovery, and TiDB's status port."""
