"""The sink that ``syncer.db-type`` asks for."""

from collections.abc import Callable

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.sink import Sink


def sink_of(config: DrainerConfig, cluster_id: int, pause: Callable[[float], None]) -> Sink:
    """The sink of a stream of cluster ``cluster_id``; nothing is opened. ``pause``: waits for so many seconds, or raises to end the wait.

    Raises:
        ConfigError: there is no such sink.
    """
    if config.apply.db_type in ("mysql", "tidb"):
        return MySQLSink(config, cluster_id, pause)
    raise ConfigError(f"syncer.db-type = {config.apply.db_type!r}: there is no such target in this release; only mysql is accepted")
