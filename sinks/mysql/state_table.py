"""What the target records of a stream beside its checkpoint: the table ``spark_state``, one row for each fact, named by it. [db]

    name                      from_ts, to_ts                         value
    ours                      the newest span that we have ended     -
    open                      a span that is applied in parts        parts, filters
    part 7-9 0/2 delete       the same                               transactions that this part was planned without
    lane 3                    a span that is applied row by row      plan, operations that this lane has done
    safe doubt                steps that begin there: safe mode      -
    place                     what a replay of files has open        the transaction or DDL, how much of it is done

Cluster 0 is Reparo's; a recovery from a relay log has its place in the stream's cluster. A batch (after_ts, upto_ts] is applied in one of these ways:

* In one transaction: data, ``end`` and the consistent checkpoint ``upto_ts``.
* In parts: ``begin_parts`` with the inconsistent checkpoint ``after_ts``; then for each part and phase ``claim`` with its data; then ``end`` with the
  consistent checkpoint. If the transactions to skip change after the deletes of a part are committed, ``correct`` comes with the rows concerned.
* In lanes: ``begin_lanes`` with the inconsistent checkpoint; then ``advance`` with the operations of each transaction of a lane; then ``end``.
* A replay of files: ``swap`` of its place with the rows of each of its transactions, and with each DDL.

Promises: functions change rows only in the caller's transaction, so data and record commit together. ``State`` answers questions about rows that were read
once. ``end`` deletes every row that ends with its span or before it.
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.sink import TargetProgress, UnfinishedSpan

TABLE = "spark_state"
OURS, OPEN, PART, LANE, SAFE, PLACE = "ours", "open", "part", "lane", "safe", "place"
ROWS = "rows"
"""The kind of a place within a transaction (``replay.replay_record``)."""


class CommitsLost(ApplyError):
    """The target lacks what it had answered: a server that crashed without having written it, or a replica in its place that was behind."""


def commits_lost(what: str, way_on: str = "Start the Drainer again: it continues from what the target has") -> CommitsLost:
    """``what``: how it shows; ``way_on``: what to do."""
    return CommitsLost(
        f"the target has lost transactions that it had committed: {what}. Did the server crash with innodb_flush_log_at_trx_commit other than 1, or has a "
        f"replica that was behind taken its place? {way_on}"
    )


class Reason(enum.StrEnum):
    """Why safe mode is recorded."""

    DOUBT = "doubt"
    """A part of what follows may be in the target, and nobody has recorded which."""
    PARTS = "parts"
    """A life with this setting began a span in parts: the record says what of it is applied."""
    LANES = "lanes"
    """A span was begun row by row with other operations: some of its rows may be in the target, but no DDL behind it."""
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
class OpenParts:
    """A span that is applied in parts."""

    after_ts: int
    """Exclusive."""
    upto_ts: int
    """Inclusive."""
    parts: int
    filters: str = ""
    """Which rows are replicated (``Selection.text``): parts planned by other filters do not fit each other."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part and phase of a span."""

    after_ts: int
    upto_ts: int
    part: int
    parts: int
    phase: str

    @property
    def name(self) -> str:
        """The name of its row. The span is part of it, so the row of a late task does not count for a later span."""
        return f"{PART} {self.after_ts}-{self.upto_ts} {self.part}/{self.parts} {self.phase}"


@dataclass(frozen=True, slots=True)
class OpenLanes:
    """A span that is applied row by row."""

    after_ts: int
    """Exclusive."""
    upto_ts: int
    """Inclusive."""
    plan: str
    """Fingerprint of what its lanes do: a number of operations means the same ones only under the same plan."""
    done: tuple[int, ...]
    """Number of operations that each lane has done."""

    def lane(self, done: int) -> str:
        """The value of the row of a lane that has done so many operations."""
        return as_value({"plan": self.plan, "done": done})


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str
    after_ts: int
    upto_ts: int
    value: str = ""

    @property
    def kind(self) -> str:
        """The first word of its name."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class State:
    """The rows of one cluster, ordered by name."""

    rows: tuple[Row, ...] = ()

    def of_kind(self, *kinds: str) -> list[Row]:
        """The rows of these kinds."""
        return [row for row in self.rows if row.kind in kinds]

    @property
    def open(self) -> OpenParts | None:
        """The span that was begun in parts last and is not ended."""
        return next((OpenParts(row.after_ts, row.upto_ts, **json.loads(row.value)) for row in self.of_kind(OPEN)), None)

    @property
    def lanes(self) -> OpenLanes | None:
        """The span that was begun row by row last and is not ended."""
        rows = sorted(self.of_kind(LANE), key=lambda row: int(row.name.split()[1]))
        values = [json.loads(row.value) for row in rows]
        if not rows:
            return None
        return OpenLanes(rows[0].after_ts, rows[0].upto_ts, values[0]["plan"], tuple(v["done"] for v in values))

    def lanes_at(self, commit_ts: int) -> OpenLanes | None:
        """The ``lanes`` whose span is open behind the checkpoint; None also for data from before the checkpoint was moved."""
        lanes = self.lanes
        return lanes if lanes is not None and lanes.after_ts <= commit_ts < lanes.upto_ts else None

    def row(self, name: str) -> Row | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)

    def relayed_upto(self, commit_ts: int) -> int:
        """The commit_ts of the transaction behind the checkpoint that a recovery from the relay log has begun; 0: there is none."""
        place = self.row(PLACE)
        begun = place is not None and place.after_ts == commit_ts and json.loads(place.value)["kind"] == ROWS
        return place.upto_ts if place is not None and begun else 0

    def parts_done(self, after_ts: int, upto_ts: int, parts: int) -> frozenset[tuple[int, str]]:
        """The parts and phases of the span that are in the target."""
        span = f"{after_ts}-{upto_ts}"
        names = (row.name.split() for row in self.of_kind(PART))
        named = [(*where.split("/"), phase) for _, of, where, phase in names if of == span]
        return frozenset((int(part), phase) for part, count, phase in named if int(count) == parts)

    def unfinished(self, commit_ts: int) -> UnfinishedSpan | None:
        """The span in parts that begins at the checkpoint; any other is of data from before a restore, or before the checkpoint was moved."""
        span = self.open
        if span is None or span.after_ts != commit_ts or span.upto_ts <= commit_ts:
            return None
        return UnfinishedSpan(span.after_ts, span.upto_ts, span.parts, self.parts_done(span.after_ts, span.upto_ts, span.parts))

    def is_ours(self, commit_ts: int, *, consistent: bool) -> bool:
        """Whether a span of ours ends, or is open, at the checkpoint ``commit_ts``, so that no other program has written it.

        ``consistent``: what the checkpoint says. If none of our spans is open, ours says "not consistent" only in safe mode. A real Drainer that continued
        from our checkpoint and failed at once says it at the same commit_ts.
        """
        ends = any(row.upto_ts == commit_ts for row in self.of_kind(OURS)) or any(row.after_ts == commit_ts for row in self.of_kind(OPEN))
        return ends and (consistent or any(row.upto_ts > commit_ts for row in self.of_kind(OPEN, SAFE)))

    def around(self, commit_ts: int) -> int:
        """The end of the spans within which a checkpoint is that another program or a person has moved; 0: there is none."""
        return max((row.upto_ts for row in self.rows if row.kind != SAFE and row.after_ts < commit_ts < row.upto_ts), default=0)

    def beyond(self, commit_ts: int) -> int:
        """The end of the spans that end behind such a checkpoint and do not begin there; 0: there is none."""
        return max((row.upto_ts for row in self.rows if row.kind != SAFE and row.after_ts != commit_ts < row.upto_ts), default=0)

    def safe_bounds(self, commit_ts: int) -> SafeBounds:
        """What is applied in safe mode behind the checkpoint: over all rows, of a relay log's replay if any is; in doubt if their reasons differ."""
        rows = [row for row in self.of_kind(SAFE) if row.upto_ts > commit_ts]
        if not rows:
            return SafeBounds()
        reasons = {Reason(row.name.split()[1]) for row in rows}
        reason = Reason.RELAY if Reason.RELAY in reasons else reasons.pop() if len(reasons) == 1 else Reason.DOUBT
        return SafeBounds(min(row.after_ts for row in rows), max(row.upto_ts for row in rows), reason)

    def progress(self, recorded: Checkpoint | None) -> TargetProgress:
        """How far the target is with the checkpoint row ``recorded``; None: there is no row."""
        checkpoint = recorded or Checkpoint(0, True, 0)
        unfinished = self.unfinished(checkpoint.commit_ts)
        return TargetProgress(checkpoint.commit_ts, checkpoint.consistent, checkpoint.schema_version, unfinished, recorded is not None)


class StateTable:
    """The rows of one cluster at a target. Picklable."""

    def __init__(self, schema: str, cluster_id: int) -> None:
        """Accesses nothing. ``schema``: database of the table, ``syncer.to.checkpoint.schema``."""
        self.schema = schema
        self.cluster_id = cluster_id
        self._table = f"{quote_name(schema)}.`{TABLE}`"

    def create(self, session: Session) -> None:
        """Create the table if missing. DDL: must not be called inside a transaction.

        Raises:
            ApplyError: the target refuses it, or the table is not as it must be.
        """
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (cluster_id bigint unsigned NOT NULL, name varchar(96) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
            "from_ts bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, value MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
            f"done_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), PRIMARY KEY (cluster_id, name)) {made_with(TABLE)}"
        )
        require_sound(session, self.schema, TABLE)

    def read(self, session: Session, *, lock: bool = False) -> State:
        """All rows; ``lock``: the newest committed ones, which stay locked until the transaction ends."""
        sql = f"SELECT name, from_ts, to_ts, value FROM {self._table} WHERE cluster_id = %s ORDER BY name{' FOR UPDATE' if lock else ''}"
        rows = session.query(sql, [self.cluster_id])
        return State(tuple(Row(str(name), int(after_ts), int(upto_ts), str(value)) for name, after_ts, upto_ts, value in rows))

    # A span in one transaction, or the end of any other.

    def end(self, session: Session, after_ts: int, upto_ts: int) -> None:
        """Record that the span is in the target, with the transaction that saves ``upto_ts`` as the checkpoint."""
        self.forget_upto(session, upto_ts)
        self._replace(session, Row(OURS, after_ts, upto_ts))

    def forget_upto(self, session: Session, upto_ts: int) -> None:
        """Delete the rows of the spans that end at ``upto_ts`` or before."""
        session.execute(f"DELETE FROM {self._table} WHERE cluster_id = %s AND to_ts <= %s", [self.cluster_id, upto_ts])

    def forget_beyond(self, session: Session, commit_ts: int) -> None:
        """Delete the rows of spans beyond the checkpoint that do not begin there: they describe data from before the checkpoint was set back."""
        beyond = "cluster_id = %s AND to_ts > %s AND from_ts <> %s"
        kept = f"name LIKE '{SAFE} %%' OR name LIKE '{LANE} %%' AND from_ts < %s"
        session.execute(f"DELETE FROM {self._table} WHERE {beyond} AND NOT ({kept})", [self.cluster_id, commit_ts, commit_ts, commit_ts])

    # Parts.

    def begin_parts(self, session: Session, span: OpenParts) -> None:
        """Record that ``span`` is being applied in parts; idempotent.

        Raises:
            ApplyError: it was begun otherwise.
        """
        self.require_same(session, span)
        self._forget_begun(session, span.after_ts)
        value = as_value({"parts": span.parts, "filters": span.filters})
        self._replace(session, Row(OPEN, span.after_ts, span.upto_ts, value))

    def require_same(self, session: Session, span: OpenParts) -> None:
        """Check that no other span in parts is open, and that ``span``, if it was begun, was begun by these filters.

        Raises:
            ApplyError: its parts would not fit each other.
        """
        begun = self.read(session).open
        if begun is None or begun.upto_ts <= span.after_ts or begun == span:
            return
        here = f"({span.after_ts}, {span.upto_ts}]"
        if (begun.after_ts, begun.upto_ts, begun.parts) != (span.after_ts, span.upto_ts, span.parts):
            raise ApplyError(
                f"{self.schema}.{TABLE} holds the unfinished span ({begun.after_ts}, {begun.upto_ts}] in {begun.parts} parts of cluster {self.cluster_id}, but "
                f"{here} in {span.parts} parts is to begin. Were filters or routes changed? Start with those of before until the checkpoint has passed {begun.upto_ts}. Was the table edited, or filled from two targets? Start the Drainer again: the start finishes the span"
            )
        raise ApplyError(
            f"the span {here} was begun with other filters or routes, and a part of it is in the target. Start the Drainer with those settings until the "
            f"checkpoint has passed {span.upto_ts}, and change them then. They were: {begun.filters}; now: {span.filters}"
        )

    def claim(self, session: Session, part: Part, skipped: Iterable[int] = ()) -> bool:
        """Record a part and phase as done before its data is written, in the same transaction; False: it is already in the target.

        ``skipped``: commit_ts of the transactions that its data was planned without.

        A task that outlives its killed driver, or a commit whose answer was lost, may still be processing the same part on another connection: the lock on
        the row blocks this call until that transaction commits or is rolled back. A late task finds its span closed.

        Raises:
            ApplyError: the span is not open, or no longer open: nothing may be written for it.
        """
        sql = f"INSERT IGNORE INTO {self._table} (cluster_id, name, from_ts, to_ts, value) VALUES (%s, %s, %s, %s, %s)"
        if not session.execute(sql, [self.cluster_id, part.name, part.after_ts, part.upto_ts, _listed(skipped)]):
            return False
        # Must be checked after the insert: while this row is uncommitted, no other process can finish the part, and so not the span either.
        span = self.read(session).open
        if span is None or (span.after_ts, span.upto_ts, span.parts) != (part.after_ts, part.upto_ts, part.parts):
            raise ApplyError(
                f"part {part.part} of {part.parts} of ({part.after_ts}, {part.upto_ts}] is not written: the span is not open in {self.schema}.{TABLE}. Either "
                f"another life of the Drainer of cluster {self.cluster_id} has finished it, or the target has lost transactions that it had committed. Start the "
                "Drainer again: it continues from the target's checkpoint"
            )
        return True

    def planned_without(self, session: Session, part: Part) -> frozenset[int] | None:
        """The transactions that a part and phase was planned without, its row locked until this transaction ends; None: it is not done."""
        rows = session.query(f"SELECT value FROM {self._table} WHERE {_ONE} FOR UPDATE", [self.cluster_id, part.name])
        return frozenset(int(ts) for ts in str(rows[0][0]).split(",") if ts) if rows else None

    def correct(self, session: Session, part: Part, skipped: Iterable[int]) -> None:
        """Record, in the transaction that corrects them, that the deletes of a part are those planned without the transactions ``skipped``."""
        session.execute(f"UPDATE {self._table} SET value = %s WHERE {_ONE}", [_listed(skipped), self.cluster_id, part.name])

    def deletes_done(self, session: Session, parts: Iterable[Part], skipped: Iterable[int]) -> bool:
        """Whether the old images of these ``parts``, without the transactions ``skipped``, are deleted, so that new ones may be written."""
        wanted, state = _listed(skipped), self.read(session)
        return {part.name for part in parts} <= {row.name for row in state.of_kind(PART) if row.value == wanted}

    # Lanes.

    def begin_lanes(self, session: Session, lanes: OpenLanes) -> None:
        """Record a span that is applied row by row, and what each lane has done; replaces any other."""
        self._forget_begun(session, lanes.after_ts)
        values = ", ".join(["(%s, %s, %s, %s, %s)"] * len(lanes.done))
        named = [(f"{LANE} {lane}", lanes.lane(done)) for lane, done in enumerate(lanes.done)]
        args = [v for name, value in named for v in (self.cluster_id, name, lanes.after_ts, lanes.upto_ts, value)]
        session.execute(f"INSERT INTO {self._table} (cluster_id, name, from_ts, to_ts, value) VALUES {values}", args)

    def give_up_lanes(self, session: Session, commit_ts: int, upto_ts: int) -> None:
        """Record safe mode from the checkpoint, which stays ours, to the end of a span that was begun with other operations."""
        self.begin_safe(session, SafeBounds(commit_ts, upto_ts, Reason.LANES))
        self._forget_begun(session, commit_ts)
        self._replace(session, Row(OURS, commit_ts, commit_ts))

    def advance(self, session: Session, lanes: OpenLanes, lane: int, before: int, after: int, ends: Sequence[int] = ()) -> bool:
        """Move the lane's number of operations from ``before`` to ``after``; False: the number is already there, because the answer to that commit was lost.

        This waits for a transaction of the same lane that is still in progress on another connection. ``ends``: as for ``require_done``.

        Raises:
            ApplyError: the lane is somewhere else, or its span is not open: nothing may be written.
        """
        if ends:
            self.require_done(session, lanes, ends)
        place = [self.cluster_id, f"{LANE} {lane}"]
        sql = f"UPDATE {self._table} SET value = %s WHERE {_ONE} AND to_ts = %s AND value = %s"
        if session.execute(sql, [lanes.lane(after), *place, lanes.upto_ts, lanes.lane(before)]):
            return True
        found = session.query(f"SELECT to_ts, value FROM {self._table} WHERE {_ONE} FOR UPDATE", place)
        if found == [(lanes.upto_ts, lanes.lane(after))]:
            return False
        raise ApplyError(
            f"operations {before} to {after} of lane {lane} up to {lanes.upto_ts} are not written, because {self.schema}.{TABLE} says {found} for this lane. Was "
            "the table edited, or the target restored, while the stream was running? Start the Drainer again: it continues from the target's checkpoint"
        )

    def require_done(self, session: Session, lanes: OpenLanes, ends: Sequence[int]) -> None:
        """Check that each lane has done at least so many operations; call it in the transaction that relies on it.

        A server that crashed with ``innodb_flush_log_at_trx_commit`` other than 1, or a replica that took its place and was behind, lacks the last
        transactions that the server had answered.

        Raises:
            ApplyError: a lane has done fewer.
        """
        found = self.read(session).lanes
        done = found.done if found is not None and (found.upto_ts, found.plan) == (lanes.upto_ts, lanes.plan) else ()
        if len(done) < len(ends) or any(have < end for have, end in zip(done, ends, strict=False)):
            had = f"its lanes up to {lanes.upto_ts} had done {list(ends)} operations"
            raise commits_lost(f"{had}, but {self.schema}.{TABLE} says {list(done)}")

    # Replays of files.

    def swap(self, session: Session, held: Row | None, to: Row) -> bool:
        """Replace the row ``held`` by ``to``, of the same name; False: it is not as ``held``. ``held`` None: whatever is there.

        This waits for a transaction that is still in progress on the same row on another connection.
        """
        if held is None:
            self._replace(session, to)
            return True
        sql = f"UPDATE {self._table} SET from_ts = %s, to_ts = %s, value = %s WHERE {_ONE} AND from_ts = %s AND to_ts = %s AND value = %s"
        new, old = ([row.after_ts, row.upto_ts, row.value] for row in (to, held))
        return bool(session.execute(sql, [*new, self.cluster_id, held.name, *old]))

    # What the next lives do.

    def begin_safe(self, session: Session, bounds: SafeBounds) -> None:
        """Record that steps that begin below the end of ``bounds`` are applied in safe mode; ends with the first span that ends there or later."""
        name = f"{SAFE} {bounds.reason}"
        # An earlier life has recorded it for the same reason, and is not past it.
        known = [row for row in self.read(session).of_kind(SAFE) if row.name == name and row.upto_ts > bounds.begin_ts]
        begin_ts = min([bounds.begin_ts, *(row.after_ts for row in known)])
        self._replace(session, Row(name, begin_ts, max([bounds.end_ts, *(row.upto_ts for row in known)])))

    def _forget_begun(self, session: Session, after_ts: int) -> None:
        """Delete what describes another attempt at a span that begins at ``after_ts``, and what ends before: its parts would count as done if somebody had moved
        the checkpoint past it, and it came again.
        """
        begun = f"to_ts <= %s OR name = '{PLACE}' OR name LIKE '{LANE} %%'"
        session.execute(f"DELETE FROM {self._table} WHERE cluster_id = %s AND ({begun})", [self.cluster_id, after_ts])

    def _replace(self, session: Session, row: Row) -> None:
        sql = f"REPLACE INTO {self._table} (cluster_id, name, from_ts, to_ts, value) VALUES (%s, %s, %s, %s, %s)"
        session.execute(sql, [self.cluster_id, row.name, row.after_ts, row.upto_ts, row.value])


_ONE = "cluster_id = %s AND name = %s"


def _listed(skipped: Iterable[int]) -> str:
    return ",".join(str(ts) for ts in sorted(skipped))


def as_value(value: Mapping[str, object]) -> str:
    """The value of a row, as JSON."""
    return json.dumps(value, separators=(",", ":"))
