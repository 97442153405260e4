"""What the target itself remembers of the stream: the Drainer's checkpoint row and the markers of a batch in parts.

Promises: the functions change rows only inside the transaction that the caller has opened, so that data and marker are one. The table
``checkpoint`` is the Drainer's, byte for byte, and holds nothing else; ``spark_progress`` is ours.

How a batch (from_ts, to_ts] goes: at most ``atomic-rows`` events: data, ``mark_atomic`` and ``save_checkpoint(to_ts,
consistent=True)`` in one transaction. More: ``begin_span`` with ``save_checkpoint(from_ts, consistent=False)``, then for each part and
phase ``claim_part`` and its data, last ``save_checkpoint(to_ts, consistent=True)`` with ``finish_span``.
"""

import enum
import json
from dataclasses import dataclass
from typing import Any

from schemas.ddl_tokens import quote_name
from schemas.errors import ApplyError
from schemas.events import as_time
from sinks.mysql.session import Session

CHECKPOINT_SCHEMA = "tidb_binlog"


class Mark(enum.StrEnum):
    """What a marker row says is done."""

    SPAN = "span"
    """Part -1: a span is begun, with ``parts`` parts."""
    ATOMIC = "atomic"
    """The whole span, in one transaction."""
    DELETE = "delete"
    """All old images of one part."""
    WRITE = "write"
    """All new images of one part."""


@dataclass(frozen=True, slots=True)
class UnfinishedSpan:
    """A span begun in parts whose end was never recorded: to be replayed exactly, with this many parts."""

    from_ts: int
    """Exclusive."""
    to_ts: int
    """Inclusive."""
    parts: int
    done: frozenset[tuple[int, str]]
    """(part, phase) pairs that are in the target."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the target stands."""

    commit_ts: int
    """Everything up to here, inclusive, is in the target."""
    consistent: bool
    schema_version: int
    unfinished: UnfinishedSpan | None
    known: bool = True
    """Whether the target has a checkpoint row."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The value of a ``tidb_binlog.checkpoint`` row."""

    commit_ts: int
    consistent: bool
    schema_version: int

    def to_json(self) -> str:
        """As the Drainer writes it: these keys in this order, without blanks."""
        value = {"consistent": self.consistent, "commitTS": self.commit_ts, "ts-map": {}, "schema-version": self.schema_version}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Checkpoint":
        """Read a row, also one that a real Drainer wrote; keys that are missing count as zero, as the Drainer has it."""
        value: Any = json.loads(text)
        return cls(int(value.get("commitTS", 0)), bool(value.get("consistent", False)), int(value.get("schema-version", 0)))


def words_of_a_gap(after_ts: int, commit_ts: int, checkpoint_dir: str) -> str:
    """What is wrong when Spark's place lies beyond the target's row, and what to do."""
    return (
        f"the stream goes on after {after_ts} ({as_time(after_ts)}), but the target's checkpoint says {commit_ts} "
        f"({as_time(commit_ts)}): what lies between would be lost. Was the target restored from a backup, its checkpoint row with it? "
        f"Then delete Spark's checkpoint directory {checkpoint_dir}: the stream reads again from the target's row, as long as the Pumps "
        "still hold binlogs of that time; if they do not, take a newer backup. If only the row was changed, put it back"
    )


def ensure_tables(session: Session, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Create the database and both tables where missing. DDL: not to be called inside a transaction."""
    for statement in _create_statements(schema):
        session.execute(statement)


def load(session: Session, cluster_id: int, schema: str = CHECKPOINT_SCHEMA) -> Progress:
    """Where the target stands.

    Raises:
        ApplyError: the row is not JSON, or more than one span is unfinished.
    """
    recorded = _load_checkpoint(session, cluster_id, schema)
    checkpoint = recorded or Checkpoint(0, True, 0)
    return Progress(
        checkpoint.commit_ts,
        checkpoint.consistent,
        checkpoint.schema_version,
        _load_unfinished(session, cluster_id, checkpoint.commit_ts, schema),
        recorded is not None,
    )


def only_cluster(session: Session, schema: str = CHECKPOINT_SCHEMA) -> int:
    """The cluster whose row is the only one, for a Drainer that does not know its cluster's id; 0 = there is no row.

    Raises:
        ApplyError: the table holds rows of several.
    """
    there = session.query("SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = 'checkpoint'", [schema])
    ids = sorted(int(row[0]) for row in session.query(f"SELECT clusterID FROM {_checkpoint(schema)}")) if there else []
    if len(ids) > 1:
        raise ApplyError(
            f"{schema}.checkpoint holds rows of several clusters {ids}: set source.cluster-id to the one that is replicated here"
        )
    return ids[0] if ids else 0


def save_checkpoint(
    session: Session, cluster_id: int, commit_ts: int, schema_version: int, consistent: bool, schema: str = CHECKPOINT_SCHEMA
) -> None:
    """Write the Drainer-compatible row: everything up to ``commit_ts`` is in the target once this transaction commits."""
    value = Checkpoint(commit_ts, consistent, schema_version).to_json()
    session.execute(f"REPLACE INTO {_checkpoint(schema)} VALUES (%s, %s)", [cluster_id, value])


def begin_span(session: Session, cluster_id: int, from_ts: int, to_ts: int, parts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Record that (from_ts, to_ts] is being applied in ``parts`` parts; again for the same span is no change."""
    _mark(session, cluster_id, from_ts, to_ts, -1, parts, Mark.SPAN, schema)


def claim_part(
    session: Session, cluster_id: int, from_ts: int, to_ts: int, part: int, parts: int, phase: Mark | str, schema: str = CHECKPOINT_SCHEMA
) -> bool:
    """Mark one part and phase as done before its data is written, in the same transaction; False: it is in the target already.

    A worker that outlives its killed driver, or a commit whose answer was lost, may still be at the same part on another connection:
    the marker's lock makes this one wait until that one has committed or is undone. One that comes too late finds its span closed.

    Raises:
        ApplyError: the span is not open (any more): nothing may be written for it.
    """
    sql = f"INSERT IGNORE INTO {_progress(schema)} (cluster_id, from_ts, to_ts, part, parts, phase) VALUES (%s, %s, %s, %s, %s, %s)"
    if not session.execute(sql, [cluster_id, from_ts, to_ts, part, parts, str(Mark(phase))]):
        return False
    # Asked only now: as long as this marker is not committed, nobody else can finish the part, and so nobody the span.
    if not is_marked(session, cluster_id, from_ts, to_ts, -1, parts, Mark.SPAN, schema):
        raise ApplyError(
            f"part {part} of {parts} of ({from_ts}, {to_ts}] is not written: the span is not open in {schema}.spark_progress; another life of "
            f"the Drainer of cluster {cluster_id} has finished it"
        )
    return True


def lock_checkpoint(session: Session, cluster_id: int, schema: str = CHECKPOINT_SCHEMA) -> int:
    """The newest committed commitTS, held against everybody else until this transaction ends; 0 = there is no row.

    First in each transaction that moves it: a predecessor's commit that is still under way on the server is waited for and then seen.
    """
    rows = session.query(f"SELECT checkPoint FROM {_checkpoint(schema)} WHERE clusterID = %s FOR UPDATE", [cluster_id])
    return Checkpoint.from_json(rows[0][0]).commit_ts if rows else 0


def is_marked(
    session: Session, cluster_id: int, from_ts: int, to_ts: int, part: int, parts: int, phase: Mark | str, schema: str = CHECKPOINT_SCHEMA
) -> bool:
    """Whether that part and phase is in the target already."""
    sql = f"SELECT 1 FROM {_progress(schema)} WHERE cluster_id = %s AND from_ts = %s AND to_ts = %s AND part = %s AND parts = %s AND phase = %s"
    return bool(session.query(sql, [cluster_id, from_ts, to_ts, part, parts, str(Mark(phase))]))


def mark_atomic(session: Session, cluster_id: int, from_ts: int, to_ts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Record a span applied in one transaction, in that transaction; the markers before it go."""
    finish_span(session, cluster_id, from_ts, to_ts, schema)
    _mark(session, cluster_id, from_ts, to_ts, 0, 1, Mark.ATOMIC, schema)


def finish_span(session: Session, cluster_id: int, from_ts: int, to_ts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Forget the markers of (from_ts, to_ts] and of every span before it; with the checkpoint row of ``to_ts``."""
    session.execute(f"DELETE FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts <= %s", [cluster_id, to_ts])


def forget_other_spans(session: Session, cluster_id: int, commit_ts: int, schema: str = CHECKPOINT_SCHEMA) -> None:
    """Forget markers of spans that begin elsewhere than at the checkpoint: they are of data that was there before it was set."""
    session.execute(
        f"DELETE FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts > %s AND from_ts <> %s", [cluster_id, commit_ts, commit_ts]
    )


def _create_statements(schema: str) -> tuple[str, ...]:
    return (
        f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}",
        f"CREATE TABLE IF NOT EXISTS {_checkpoint(schema)} (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT) ENGINE=InnoDB",
        f"CREATE TABLE IF NOT EXISTS {_progress(schema)} ("
        "cluster_id bigint unsigned NOT NULL, "
        "from_ts bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, part int NOT NULL, parts int NOT NULL, "
        "phase varchar(16) CHARACTER SET ascii NOT NULL, "
        "done_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), "
        "PRIMARY KEY (cluster_id, from_ts, to_ts, part, parts, phase)) ENGINE=InnoDB",
    )


def _checkpoint(schema: str) -> str:
    return f"{quote_name(schema)}.`checkpoint`"


def _progress(schema: str) -> str:
    return f"{quote_name(schema)}.`spark_progress`"


def _mark(session: Session, cluster_id: int, from_ts: int, to_ts: int, part: int, parts: int, phase: Mark, schema: str) -> None:
    sql = f"REPLACE INTO {_progress(schema)} (cluster_id, from_ts, to_ts, part, parts, phase) VALUES (%s, %s, %s, %s, %s, %s)"
    session.execute(sql, [cluster_id, from_ts, to_ts, part, parts, str(phase)])


def _load_checkpoint(session: Session, cluster_id: int, schema: str) -> Checkpoint | None:
    rows = session.query(f"SELECT checkPoint FROM {_checkpoint(schema)} WHERE clusterID = %s", [cluster_id])
    if not rows:
        return None
    try:
        return Checkpoint.from_json(rows[0][0])
    except (ValueError, TypeError, AttributeError) as error:
        raise ApplyError(
            f"{schema}.checkpoint of cluster {cluster_id} is no checkpoint: {rows[0][0]!r} ({error}); mend or delete the row"
        ) from error


def _load_unfinished(session: Session, cluster_id: int, commit_ts: int, schema: str) -> UnfinishedSpan | None:
    sql = f"SELECT from_ts, to_ts, part, parts, phase FROM {_progress(schema)} WHERE cluster_id = %s AND to_ts > %s ORDER BY from_ts, to_ts, part"
    rows = session.query(sql, [cluster_id, commit_ts])
    spans = [(from_ts, to_ts, parts) for from_ts, to_ts, _, parts, phase in rows if phase == Mark.SPAN]
    if not spans:
        return None
    if len(spans) > 1:
        raise ApplyError(
            f"{schema}.spark_progress holds {len(spans)} unfinished spans of cluster {cluster_id}: {spans}; two Drainers wrote to this target for it "
            "before there was a lease. Compare the tables with the upstream, mend them, delete the markers of the spans that are not to be finished"
        )
    from_ts, to_ts, parts = spans[0]
    if from_ts != commit_ts:
        return None  # a span is begun with the checkpoint at its start: the data was restored, or the checkpoint set, since
    done = frozenset((part, str(phase)) for f, t, part, n, phase in rows if (f, t, n) == spans[0] and phase != Mark.SPAN)
    return UnfinishedSpan(from_ts, to_ts, parts, done)
