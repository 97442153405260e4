"""The record of a stream at a target, as a test finds or makes it."""

from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import CHECKPOINT_SCHEMA, Checkpoint, TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenParts, StateTable
from pyspark_tidb_binlog.sinks.sink import TargetProgress

PLACE = "FROM {}.spark_state WHERE name = 'place'"
"""The place of a replay in a checkpoint schema."""


def record_in(session: Session, schema: str = CHECKPOINT_SCHEMA, cluster_id: int = 1) -> StateTable:
    """The record of a cluster; its tables are made."""
    TargetCheckpoint(cluster_id, schema).create(session)
    record = StateTable(schema, cluster_id)
    record.create(session)
    return record


def begun(session: Session, span: tuple[int, int], parts: int, schema: str = CHECKPOINT_SCHEMA, cluster_id: int = 1) -> StateTable:
    """The record of a span that is open in parts."""
    record = record_in(session, schema, cluster_id)
    record.begin_parts(session, OpenParts(*span, parts))
    return record


def progress_in(session: Session, record: StateTable) -> TargetProgress:
    """How far the target is."""
    return record.read(session).progress(TargetCheckpoint(record.cluster_id, record.schema).load(session))


def set_checkpoint(session: Session, record: StateTable, commit_ts: int, *, consistent: bool, version: int = 1) -> None:
    """Write the checkpoint row."""
    TargetCheckpoint(record.cluster_id, record.schema).write(session, Checkpoint(commit_ts, consistent, version))
