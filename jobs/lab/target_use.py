"""Checks that the target of a rehearsal or a demo is not the target of a stream, whose records must not be dropped. [db]

Promises: reads only. A lock shows whether a Drainer runs: it is tried and released at once.
"""

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.mysql.lease_guard import is_held
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.target import as_text
from pyspark_tidb_binlog.sinks.replay.mysql_replay import CLUSTER

DEMO_CLUSTER = 7
_OF_TRIALS = frozenset({DEMO_CLUSTER, CLUSTER})
"""The cluster ids of the demo and of a ``replay``."""


def require_no_stream(target: TargetConfig, apply: ApplyConfig, cluster_id: int) -> None:
    """Check that the checkpoint schema has no records of a stream. Records of an earlier run for ``cluster_id`` are allowed.

    Raises:
        ConfigError: another cluster is replicated to this target, or a Drainer writes there for this one.
    """
    schema = apply.checkpoint_schema
    with connect(target, apply) as session:
        others = sorted(_clusters(session, schema) - {cluster_id, *_OF_TRIALS})
        if others:
            why = f"holds the checkpoint of cluster {', '.join(map(str, others[:5]))}"
        elif any(is_held(session, one, schema) for one in sorted({cluster_id, *_OF_TRIALS})):
            why = "is being written to by a Drainer"
        else:
            return
    raise ConfigError(
        f"the target {target.host}:{target.port} {why} ({schema}): name a target without a stream. (If only an earlier "
        "rehearsal wrote these records, drop that database by hand.)"
    )


def _clusters(session: Session, schema: str) -> set[int]:
    """The ids in every table of the checkpoint schema, ours and a real Drainer's."""
    sql = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s AND LOWER(column_name) IN ('clusterid', 'cluster_id')"
    found = set[int]()
    for table, column in session.query(sql, [schema]):
        ids = session.query(f"SELECT DISTINCT {quote_name(as_text(column))} FROM {quote_name(schema)}.{quote_name(as_text(table))}")
        found |= {int(one) for (one,) in ids}
    return found
