"""The client side of WriteBinlog, as in TiDB: ``from binlog_source.pump_client.client import PumpClient``."""
