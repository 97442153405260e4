"""The stream's progress as stored on the target: the Drainer's checkpoint row and the markers of a batch applied in parts.

Promises: the functions change rows only in the caller's transaction, so data and marker commit together. The table ``checkpoint`` is the Drainer's,
byte for byte, and holds nothing else; ``spark_progress`` is ours. If the Drainer's checkpoint is kept elsewhere, the table
``spark_checkpoint``, of the same form, is our own record.

How a batch (after_ts, upto_ts] is applied:

* At most ``atomic-rows`` events: data, ``mark_atomic`` and the consistent checkpoint ``upto_ts`` in one transaction.
* More: ``begin_span`` with the inconsistent checkpoint ``after_ts``; then for each part and phase ``claim_part`` and its data; finally the consistent
  checkpoint ``upto_ts`` with ``finish_span``. If the transactions to skip have changed since a part's deletes were committed, ``correct_deletes``
  comes with the rows that this concerns.
"""

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import kinds_of
from pyspark_tidb_binlog.sinks.sink import TargetProgress, UnfinishedSpan

CHECKPOINT_SCHEMA = "tidb_binlog"
CHECKPOINT_TABLE = "checkpoint"

_SKIPPED = "skipped MEDIUMTEXT CHARACTER SET ascii NOT NULL"
"""For a part and phase: commit_ts of the transactions of the span that it was planned without, ascending, with commas. For a span: its filters
(``Selection.text``). For safe mode: its ``Reason``. For a DDL: ``Begun``. Else empty."""


class Mark(enum.StrEnum):
    """What a marker row records as done."""

    SPAN = "span"
    """A span was begun, with ``parts`` parts."""
    ATOMIC = "atomic"
    """The whole span; the newest one shows that the checkpoint is ours."""
    SAFE = "safe"
    """Steps that begin below ``to_ts`` are applied in safe mode, in every life, for its ``Reason``. Its ``parts`` is 0."""
    DDL = "ddl"
    """A replay of the relay log is about to execute the DDL of ``to_ts``, or has. Its ``parts`` is 0."""
    DELETE = "delete"
    """All old images of one part."""
    WRITE = "write"
    """All new images of one part."""


class Begun(enum.StrEnum):
    """Who executes a DDL of a relay log."""

    HERE = "here"
    """By the replay."""
    PERSON = "person"
    """By a person, who then moves the checkpoint to it."""


class Reason(enum.StrEnum):
    """Why a marker of safe mode was written."""

    DOUBT = "doubt"
    """A part of what follows may be in the target, and nobody has recorded which."""
    PARTS = "parts"
    """A life with this setting began a span in parts: the record says what of it is applied."""
    RELAY = "relay"
    """A relay log up to there is being replayed. Everything of it may be in the target, and the log is needed until it is."""


@dataclass(frozen=True, slots=True)
class SafeBounds:
    """What is applied in safe mode, in every life."""

    begin_ts: int = 0
    end_ts: int = 0
    """Steps that begin below it; 0: none."""
    reason: Reason = Reason.DOUBT


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


@dataclass(frozen=True, slots=True)
class Marker:
    """Names a row of ``spark_progress``: one part and phase of a span."""

    cluster_id: int
    after_ts: int
    """Exclusive."""
    upto_ts: int
    part: int
    parts: int
    phase: Mark | str

    @property
    def values(self) -> list[Any]:
        """The values of the table's key, in its order.

        Raises:
            ValueError: there is no such phase.
        """
        return [self.cluster_id, self.after_ts, self.upto_ts, self.part, self.parts, str(Mark(self.phase))]


def ensure_tables(session: Session, schema: str = CHECKPOINT_SCHEMA, table: str = CHECKPOINT_TABLE) -> None:
    """Create the database and both tables if missing. DDL: must not be called inside a transaction.

    Raises:
        ApplyError: the target refuses it, or a table is not as it must be.
    """
    for statement in _create_statements(schema, table):
        session.execute(statement)
    require_sound(session, schema, table, "spark_progress")


def ensure_checkpoint(session: Session, schema: str, table: str) -> None:
    """Create the database and the table of checkpoints if missing, nothing else. DDL: must not be called inside a transaction."""
    for statement in _create_statements(schema, table)[:2]:
        session.execute(statement)
    require_sound(session, schema, table)


def load(session: Session, cluster_id: int, schema: str = CHECKPOINT_SCHEMA, table: str = CHECKPOINT_TABLE) -> TargetProgress:
    """Read the target's progress.

    Raises:
        ApplyError: the row is not a valid checkpoint, or more than one span is unfinished.
    """
    return progress_at(session, cluster_id, load_checkpoint(session, cluster_id, schema, table), schema)


def progress_at(session: Session, cluster_id: int, recorded: Checkpoint | None, schema: str = CHECKPOINT_SCHEMA) -> TargetProgress:
    """The target's progress for the checkpoint row ``recorded``; None: there is none.

    Raises:
        ApplyError: more than one span is unfinished.
    """
    checkpoint = recorded or Checkpoint(0, True, 0)
    unfinished = _load_unfinished(session, cluster_id, checkpoint.commit_ts, schema)
    return TargetProgress(checkpoint.commit_ts, checkpoint.consistent, checkpoint.schema_version, unfinished, recorded is not None)


def only_cluster(session: Session, schema: str = CHECKPOINT_SCHEMA, table: str = CHECKPOINT_TABLE) -> int:
    """The cluster id of the only checkpoint row, for a Drainer without a configured cluster id; 0 = no row.

    Raises:
        ApplyError: the table holds rows of several clusters.
    """
    there = kinds_of(session, schema, table)
    ids = sorted({int(row[0]) for row in session.query(f"SELECT clusterID FROM {_checkpoint(schema, table)}")}) if there else []
    if len(ids) > 1:
        raise ApplyError(
            f"{schema}.{table} holds rows of several clusters {ids}. Set spark.cluster-id to the cluster that this Drainer replicates"
        )
    return ids[0] if ids else 0


def write_checkpoint(
    session: Session, cluster_id: int, checkpoint: Checkpoint, schema: str = CHECKPOINT_SCHEMA, table: str = CHECKPOINT_TABLE
) -> None:
    """Replace the cluster's row."""
    session.execute(f"REPLACE INTO {_checkpoint(schema, table)} VALUES (%s, %s)", [cluster_id, checkpoint.to_json()])


def delete_checkpoint(session: Session, cluster_id: int, schema: str, table: str) -> None:
    """Remove the cluster's row."""
    session.execute(f"DELETE FROM {_checkpoint(schema, table)} WHERE clusterID = %s", [cluster_id])


def begin_span(
    session: Session,
    cluster_id: int,
    after_ts: int,
    upto_ts: int,
    parts: int,
    schema: str = CHECKPOINT_SCHEMA,
    filters: str = "",
) -> None:
    """Record that (after_ts, upto_ts] is being applied in ``parts`` parts, by these ``filters``; idempotent.

    Raises:
        ApplyError: it was begun by other filters, so that its parts would not fit each other.
    """
    require_same_filters(session, cluster_id, after_ts, upto_ts, schema, filters)
    _mark(session, Marker(cluster_id, after_ts, upto_ts, 0, parts, Mark.SPAN), schema, filters)


def require_same_filters(session: Session, cluster_id: int, after_ts: int, upto_ts: int, schema: str, filters: str) -> None:
    """Check that (after_ts, upto_ts], if it was begun, was begun by these filters.

    Raises:
        ApplyError: it was not, so that its parts would not fit each other.
    """
    sql = f"SELECT skipped FROM {_progress(schema)} WHERE cluster_id = %s AND from_ts = %s AND to_ts = %s AND phase = %s"
    for (begun,) in session.query(sql, [cluster_id, after_ts, upto_ts, str(Mark.SPAN)]):
        if begun != filters:
            raise ApplyError(
                f"the span ({after_ts}, {upto_ts}] was begun with other filters or routes, and a part of it is in the target. Start the Drainer with those "
                f"settings until the checkpoint has passed {upto_ts}, and change them then. They were: {begun}; now: {filters}"
            )


def claim_part(session: Session, marker: Marker, schema: str = CHECKPOINT_SCHEMA, skipped: Iterable[int] = ()) -> bool:
    """Mark one part and phase as done before its data is written, in the same transaction; False: it is already in the target.

    ``skipped``: commit_ts of the transactions that its data was planned without.

    A worker that outlives its killed driver, or a commit whose answer was lost, may still be processing the same part on another
    connection: the lock on the marker row blocks this call until that transaction commits or is rolled back. A late worker finds its span
    closed.

    Raises:
        ApplyError: the span is not open, or no longer open: nothing may be written for it.
    """
    columns = "(cluster_id, from_ts, to_ts, part, parts, phase, skipped)"
    sql = f"INSERT IGNORE INTO {_progress(schema)} {columns} VALUES (%s, %s, %s, %s, %s, %s, %s)"
    if not session.execute(sql, [*marker.values, _listed(skipped)]):
        return False
    # Must be checked after the insert: while this marker is uncommitted, no other process can finish the part, and so not the span either.
    if not _is_open(session, marker, schema):
        raise ApplyError(
            f"part {marker.part} of {marker.parts} of ({marker.after_ts}, {marker.upto_ts}] is not written: the span is not open in {schema}.spark_progress. Either another life "
            f"of the Drainer of cluster {marker.cluster_id} has finished it, or the target has lost transactions that it had committed. Start the Drainer "
            "again: it continues from the target's checkpoint"
        )
    return True


def planned_without(session: Session, marker: Marker, schema: str = CHECKPOINT_SCHEMA) -> frozenset[int] | None:
    """The transactions that one part and phase was planned without, its ``marker`` locked until this transaction ends; None: it is not done."""
    sql = f"SELECT skipped FROM {_progress(schema)} WHERE {_ONE_MARKER} FOR UPDATE"
    rows = session.query(sql, marker.values)
    if not rows:
        return None
    return frozenset(int(ts) for ts in rows[0][0].split(",") if ts)


def correct_deletes(session: Session, marker: Marker, skipped: Iterable[int], schema: str = CHECKPOINT_SCHEMA) -> None:
    """Record, in the transaction that corrects them, that the deletes of the part of ``marker`` are those planned without the transactions ``skipped``."""
    sql = f"UPDATE {_progress(schema)} SET skipped = %s WHERE {_ONE_MARKER}"
    session.execute(sql, [_listed(skipped), *marker.values])


def deletes_done(
    session: Session,
    cluster_id: int,
    after_ts: int,
    upto_ts: int,
    parts: int,
    schema: str = CHECKPOINT_SCHEMA,
    skipped: Iterable[int] = (),
) -> bool:
    """Whether the old images of every part, without the transactions ``skipped``, are deleted, so that new ones may be written."""
    sql = (
        f"SELECT COUNT(*) FROM {_progress(schema)} WHERE cluster_id = %s AND from_ts = %s AND to_ts = %s AND parts = %s AND phase = %s "
        "AND skipped = %s"
    )
    return int(session.query(sql, [cluster_id, after_ts, upto_ts, parts, str(Mark.DELETE), _listed(skipped)])[0][0]) == parts


def parts_done(
    session: Session, cluster_id: int, after_ts: int, upto_ts: int, parts: int, schema: str = CHECKPOINT_SCHEMA
) -> frozenset[tuple[int, str]]:
    """The parts and phases of (after_ts, upto_ts] that are in the target."""
    sql = f"SELECT part, phase FROM {_progress(schema)} WHERE cluster_id = %s AND from_ts = %s AND to_ts = %s AND parts = %s AND phase IN (%s, %s)"
    found = session.query(sql, [cluster_id, after_ts, upto_ts, parts, str(Mark.DELETE), str(Mark.WRITE)])
    return frozenset((int(part), str(phase)) for part, phase in found)


def _is_open(session: Session, marker: Marker, schema: str) -> bool:
    """Whether the span of ``marker`` was begun with so many parts and is not finished."""
    sql = f"SELECT 1 FROM {_progress(schema)} WHERE cluster_id = %s AND from_ts = %s AND to_ts = %s AND parts = %s AND phase = %s"
    return bool(session.query(sql, [marker.cluster_id, marker.after_ts, marker.upto_ts, marker.parts, str(Mark.SPAN)]))


def mark_atomic(session: Session, cluster_id: int, after_ts: int, upto_ts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Record, in the same transaction, a span that was applied in one transaction; deletes the earlier markers."""
    finish_span(session, cluster_id, upto_ts, schema)
    _mark(session, Marker(cluster_id, after_ts, upto_ts, 0, 1, Mark.ATOMIC), schema)


def finish_span(session: Session, cluster_id: int, upto_ts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Delete the markers of the span that ends at ``upto_ts`` and of every earlier one; in the transaction that saves ``upto_ts`` as the checkpoint."""
    session.execute(f"DELETE FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts <= %s", [cluster_id, upto_ts])


def forget_other_spans(session: Session, cluster_id: int, commit_ts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Delete markers of spans that do not begin at the checkpoint: they describe data from before the checkpoint was set back."""
    session.execute(
        f"DELETE FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts > %s AND from_ts <> %s AND phase <> %s",
        [cluster_id, commit_ts, commit_ts, str(Mark.SAFE)],
    )


def begin_safe(session: Session, cluster_id: int, bounds: SafeBounds, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Record that steps that begin below the end of ``bounds`` are applied in safe mode; ends with the first span that ends there or later."""
    _mark(session, Marker(cluster_id, bounds.begin_ts, bounds.end_ts, 0, 0, Mark.SAFE), schema, str(bounds.reason))


def begin_ddl(session: Session, cluster_id: int, commit_ts: int, begun: Begun, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Record that everything before the DDL of ``commit_ts`` is in the target, and that it may be; ends with the first span that ends there or later."""
    _mark(session, Marker(cluster_id, commit_ts - 1, commit_ts, 0, 0, Mark.DDL), schema, str(begun))


def ddl_begun(session: Session, cluster_id: int, commit_ts: int, schema: str = CHECKPOINT_SCHEMA) -> Begun | None:
    """What ``begin_ddl`` has recorded of it; None: nothing."""
    sql = f"SELECT skipped FROM {_progress(schema)} WHERE {_ONE_MARKER}"
    found = session.query(sql, Marker(cluster_id, commit_ts - 1, commit_ts, 0, 0, Mark.DDL).values)
    return Begun(found[0][0]) if found else None


def safe_bounds(session: Session, cluster_id: int, commit_ts: int, schema: str = CHECKPOINT_SCHEMA) -> SafeBounds:
    """What is applied in safe mode behind the checkpoint ``commit_ts``: over all markers, and in doubt if any of them is; of a relay log's replay if any is."""
    sql = f"SELECT from_ts, to_ts, skipped FROM {_progress(schema)} WHERE cluster_id = %s AND phase = %s AND to_ts > %s"
    found = session.query(sql, [cluster_id, str(Mark.SAFE), commit_ts])
    if not found:
        return SafeBounds()
    reasons = {reason for _, _, reason in found}
    reason = Reason.RELAY if Reason.RELAY in reasons else Reason.PARTS if reasons == {Reason.PARTS} else Reason.DOUBT
    return SafeBounds(min(int(f) for f, _, _ in found), max(int(t) for _, t, _ in found), reason)


def recorded_beyond(session: Session, cluster_id: int, commit_ts: int, schema: str = CHECKPOINT_SCHEMA, *, around: bool) -> int:
    """The end of what was applied, or begun, beyond a checkpoint that another program or a person has moved; 0: nothing.

    ``around``: count only spans that contain the checkpoint.
    """
    sql = f"SELECT COALESCE(MAX(to_ts), 0) FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts > %s AND from_ts {_not_at(around)} AND phase <> %s"
    return int(session.query(sql, [cluster_id, commit_ts, commit_ts, str(Mark.SAFE)])[0][0])


def _not_at(around: bool) -> str:
    return "< %s" if around else "<> %s"


def is_ours(session: Session, cluster_id: int, commit_ts: int, schema: str = CHECKPOINT_SCHEMA, *, consistent: bool) -> bool:
    """Whether a span of ours ends, or is open, at the checkpoint ``commit_ts``, so that no other program has written it.

    ``consistent``: what the checkpoint says. If none of our spans is open, ours says "not consistent" only in safe mode. A real Drainer
    that continued from our checkpoint and failed at once says it at the same commit_ts.
    """
    sql = f"SELECT 1 FROM {_progress(schema)} WHERE cluster_id = %s AND (to_ts = %s AND phase = %s OR from_ts = %s AND phase = %s) LIMIT 1"
    if not session.query(sql, [cluster_id, commit_ts, str(Mark.ATOMIC), commit_ts, str(Mark.SPAN)]):
        return False
    spans = f"SELECT 1 FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts > %s AND phase IN (%s, %s) LIMIT 1"
    return consistent or bool(session.query(spans, [cluster_id, commit_ts, str(Mark.SPAN), str(Mark.SAFE)]))


def _create_statements(schema: str, table: str) -> tuple[str, ...]:
    return (
        f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}",
        f"CREATE TABLE IF NOT EXISTS {_checkpoint(schema, table)} (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT) {made_with(table)}",
        f"CREATE TABLE IF NOT EXISTS {_progress(schema)} ("
        "cluster_id bigint unsigned NOT NULL, "
        "from_ts bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, part int NOT NULL, parts int NOT NULL, "
        f"phase varchar(16) CHARACTER SET ascii NOT NULL, {_SKIPPED}, "
        "done_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), "
        f"PRIMARY KEY (cluster_id, from_ts, to_ts, part, parts, phase)) {made_with('spark_progress')}",
    )


_ONE_MARKER = "cluster_id = %s AND from_ts = %s AND to_ts = %s AND part = %s AND parts = %s AND phase = %s"


def _listed(skipped: Iterable[int]) -> str:
    return ",".join(str(ts) for ts in sorted(skipped))


def _checkpoint(schema: str, table: str) -> str:
    return f"{quote_name(schema)}.{quote_name(table)}"


def _progress(schema: str) -> str:
    return f"{quote_name(schema)}.`spark_progress`"


def _mark(session: Session, marker: Marker, schema: str, note: str = "") -> None:
    sql = f"REPLACE INTO {_progress(schema)} (cluster_id, from_ts, to_ts, part, parts, phase, skipped) VALUES (%s, %s, %s, %s, %s, %s, %s)"
    session.execute(sql, [*marker.values, note])


def load_checkpoint(
    session: Session, cluster_id: int, schema: str = CHECKPOINT_SCHEMA, table: str = CHECKPOINT_TABLE, *, lock: bool = False
) -> Checkpoint | None:
    """Read the cluster's row; None: there is none.

    ``lock``: the newest committed row, which stays locked until the transaction ends. It comes first in each transaction that changes the row: it waits for a
    predecessor's commit that is still in progress on the server.

    Raises:
        ApplyError: it is not a valid checkpoint.
    """
    sql = f"SELECT checkPoint FROM {_checkpoint(schema, table)} WHERE clusterID = %s{' FOR UPDATE' if lock else ''}"
    rows = session.query(sql, [cluster_id])
    if not rows:
        return None
    try:
        return Checkpoint.from_json(rows[0][0])
    except (ValueError, TypeError, AttributeError) as error:
        raise ApplyError(
            f"{schema}.{table} of cluster {cluster_id} is not a valid checkpoint: {rows[0][0]!r} ({error}). Repair or delete the row"
        ) from error


def _load_unfinished(session: Session, cluster_id: int, commit_ts: int, schema: str) -> UnfinishedSpan | None:
    sql = f"SELECT from_ts, to_ts, part, parts, phase FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts > %s ORDER BY from_ts, to_ts"
    rows = session.query(sql, [cluster_id, commit_ts])
    spans = [(after_ts, upto_ts, parts) for after_ts, upto_ts, _, parts, phase in rows if phase == Mark.SPAN]
    if not spans:
        return None
    if len(spans) > 1:
        raise ApplyError(
            f"{schema}.spark_progress holds {len(spans)} unfinished spans of cluster {cluster_id}: {spans}, but a Drainer begins one at a time. "
            "Was the table edited, or filled from two targets? Compare the tables with the upstream, repair them, and delete the markers of the "
            "spans that are not to be finished"
        )
    after_ts, upto_ts, parts = spans[0]
    if after_ts != commit_ts:
        return None  # a span begins at the checkpoint, so the data was restored, or the checkpoint set, after it was begun
    done = frozenset((part, str(phase)) for f, t, part, n, phase in rows if (f, t, n) == spans[0] and phase != Mark.SPAN)
    return UnfinishedSpan(after_ts, upto_ts, parts, done)
