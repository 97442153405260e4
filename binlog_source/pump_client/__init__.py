"""The client side of WriteBinlog, as in TiDB: ``from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient``."""
