"""The Drainer's checkpoint: one row a cluster, in its own table. [db]

Promises: the row is the real Drainer's, byte for byte, and its table holds nothing else. The functions change rows only in the caller's transaction, so data
and checkpoint commit together. While the checkpoint is kept elsewhere, the table ``spark_checkpoint``, of the same form, is our own record.
"""

import json
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import kinds_of

CHECKPOINT_SCHEMA = "tidb_binlog"
CHECKPOINT_TABLE = "checkpoint"


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """Two timestamps at which source and target hold the same: what tools that compare them read at."""

    primary_ts: int
    """The source's."""
    secondary_ts: int
    """The target's."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The value of a ``tidb_binlog.checkpoint`` row."""

    commit_ts: int
    consistent: bool
    schema_version: int
    sync_point: SyncPoint | None = None
    """The newest one; only TiDB has timestamps of its own."""
    elsewhere: tuple[int, ...] = ()
    """commit_ts that the real checkpoint may have, where that is kept elsewhere and this is our own record (``sinks.mysql.elsewhere``)."""
    beside: int | None = None
    """commit_ts of a row of the real table that an earlier life has left in the target (``sinks.mysql.moved_record``); None: it is not said."""
    written_for: str = ""
    """Identity of the target for which this program wrote it elsewhere, with this very commit_ts; empty: somebody else did, or it is in the target."""

    def to_json(self) -> str:
        """The Drainer's form: these keys in this order, without spaces."""
        point = self.sync_point
        ts_map = {"primary-ts": point.primary_ts, "secondary-ts": point.secondary_ts} if point else {}
        value: dict[str, Any] = {
            "consistent": self.consistent,
            "commitTS": self.commit_ts,
            "ts-map": ts_map,
            "schema-version": self.schema_version,
        }
        if self.elsewhere:
            value["elsewhere"] = self.elsewhere
        if self.beside is not None:
            value["beside"] = self.beside
        if self.written_for:
            value["spark-written"] = {"target": self.written_for, "commitTS": self.commit_ts}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Checkpoint":
        """Parse a row, including one written by the original Drainer; missing keys count as zero, as in the Drainer."""
        value: Any = json.loads(text)
        ts_map = value.get("ts-map") or {}
        point = SyncPoint(int(ts_map["primary-ts"]), int(ts_map["secondary-ts"])) if {"primary-ts", "secondary-ts"} <= set(ts_map) else None
        elsewhere = tuple(int(ts) for ts in value.get("elsewhere", ()))
        beside = int(value["beside"]) if "beside" in value else None
        commit_ts, written = int(value.get("commitTS", 0)), value.get("spark-written") or {}
        return cls(
            commit_ts,
            bool(value.get("consistent", False)),
            int(value.get("schema-version", 0)),
            point,
            elsewhere,
            beside,
            str(written.get("target", "")) if written.get("commitTS") == commit_ts else "",
        )


class TargetCheckpoint:
    """The row of one cluster in one table, on whatever server a session is open."""

    def __init__(self, cluster_id: int, schema: str = CHECKPOINT_SCHEMA, table: str = CHECKPOINT_TABLE) -> None:
        """Accesses nothing."""
        self._cluster_id = cluster_id
        self._schema, self._table = schema, table
        self._name = _quoted(schema, table)

    def create(self, session: Session) -> None:
        """Create the database and the table of checkpoints if missing. DDL: must not be called inside a transaction.

        Raises:
            ApplyError: the target refuses it, or the table is not as it must be.
        """
        session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(self._schema)}")
        columns = "(clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)"
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._name} {columns} {made_with(self._table)}")
        require_sound(session, self._schema, self._table)

    def load(self, session: Session, *, lock: bool = False) -> Checkpoint | None:
        """Read the row; None: there is none.

        ``lock``: the newest committed row, which stays locked until the transaction ends. It comes first in each transaction that changes the row: it waits
        for a predecessor's commit that is still in progress on the server.

        Raises:
            ApplyError: it is not a valid checkpoint.
        """
        sql = f"SELECT checkPoint FROM {self._name} WHERE clusterID = %s{' FOR UPDATE' if lock else ''}"
        rows = session.query(sql, [self._cluster_id])
        if not rows:
            return None
        try:
            return Checkpoint.from_json(rows[0][0])
        except (ValueError, TypeError, AttributeError) as error:
            raise ApplyError(
                f"{self._schema}.{self._table} of cluster {self._cluster_id} is not a valid checkpoint: {rows[0][0]!r} ({error}). Repair or delete the row"
            ) from error

    def write(self, session: Session, checkpoint: Checkpoint) -> None:
        """Replace the row."""
        session.execute(f"REPLACE INTO {self._name} VALUES (%s, %s)", [self._cluster_id, checkpoint.to_json()])

    def delete(self, session: Session) -> None:
        """Remove the row."""
        session.execute(f"DELETE FROM {self._name} WHERE clusterID = %s", [self._cluster_id])


def only_cluster(session: Session, schema: str, table: str) -> int:
    """The cluster id of the only checkpoint row, for a Drainer without a configured cluster id; 0 = no row.

    Raises:
        ApplyError: the table holds rows of several clusters.
    """
    there = kinds_of(session, schema, table)
    ids = sorted({int(row[0]) for row in session.query(f"SELECT clusterID FROM {_quoted(schema, table)}")}) if there else []
    if len(ids) > 1:
        raise ApplyError(
            f"{schema}.{table} holds rows of several clusters {ids}. Set spark.cluster-id to the cluster that this Drainer replicates"
        )
    return ids[0] if ids else 0


def _quoted(schema: str, table: str) -> str:
    return f"{quote_name(schema)}.{quote_name(table)}"
