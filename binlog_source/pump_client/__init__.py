"""TiDB's side of WriteBinlog, importable: ``from binlog_source.pump_client.client import PumpClient``."""
