"""Applies a span too big for one transaction in parts, on the executors: plan, delete, write. [spark]

One task per part commits its deletes, waits until the markers show that all parts have committed theirs, and writes. It decodes the rows of the next
statement while the server executes the present one. A part that waits too long, because the tasks of others have no slot, is left to
a second Spark job, which finds the deletes done.

The row of each part and phase says which transactions that part was planned without (``syncer.ignore-txn-commit-ts``). If deletes are committed and
other transactions are to be skipped now, the deletes are corrected first, in one transaction per part: rows that only the skipped transactions deleted are
inserted again. Rows that a part has written stay, and are a finding.

Promises: each part and phase is ONE target transaction that includes its marker. A part whose marker exists is skipped, so a task that
Spark runs twice, or a span that is replayed, has no effect the second time. All deletes of a span are committed before its first write.
Which rows form a part: ``sinks.engine.keyed``.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, SchemaMismatch
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted, without
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.fold import HiddenRows, Indexes, Mask, ends_of, marked, subset_numbers
from pyspark_tidb_binlog.sinks.engine.identity import numbered, repeated, row_numbers, sharing
from pyspark_tidb_binlog.sinks.engine.keyed import IN_MEMORY, KEYED, KeyedEvents, RowSpool, Span, unpack
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checked import checked
from pyspark_tidb_binlog.sinks.mysql.delete_correction import DeleteCorrection
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, SpanPlan
from pyspark_tidb_binlog.sinks.mysql.retry_policy import patient, retrying
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.session import Session, Sessions, kept_sessions, session_for, transaction
from pyspark_tidb_binlog.sinks.mysql.state_table import Part, StateTable
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Origin, Phase, Statement
from pyspark_tidb_binlog.sinks.mysql.structure import OUTDATED, PartsOutdated

DONE = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("micros", pa.int64(), nullable=False),
        pa.field("detail", pa.binary(), nullable=False),
    ]
)
"""What one part did in one phase: the number of rows, how long it took, and the pickled findings. Phase ``LEFT``: it still has to be written.
``REFUSED``: a table has changed since the plan; the pickled error.
"""

LEFT = "left"
REFUSED = "refused"
_OTHERS_SECONDS = 30.0
"""How long a part waits until the others have committed their deletes. The tasks of other parts may be waiting for its slot."""
_POLL = Backoff(0.002, 0.05)


@dataclass(frozen=True, slots=True)
class PartTarget:
    """What an executor needs to write a part. Picklable."""

    target: ShippedTarget
    apply: ApplyConfig
    lease: Lease
    after_ts: int
    upto_ts: int
    parts: int

    @property
    def record(self) -> StateTable:
        """Where it is recorded which parts are done."""
        return StateTable(self.lease.schema, self.lease.cluster_id)

    def part(self, number: int, phase: Phase) -> Part:
        """One part and phase of the span."""
        return Part(self.after_ts, self.upto_ts, number, self.parts, phase.value)


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How executors plan a part. Picklable."""

    span: Span
    tables: Mapping[int, TableAt]
    flavour: Flavour
    limits: PlanLimits
    skipped_ts: frozenset[int]
    """commit_ts of the transactions of the span to skip."""
    gone: frozenset[int]
    """Ids of tables whose rows are not written."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """(table id, operation) of row changes that are not written."""
    hidden: HiddenRows | None = None
    """The images that conditions hide."""
    safe: SafeSpan | None = None
    """None: not in safe mode."""
    ring: bool = False
    """Whether transactions that came back in a ring were left out before."""

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The ``rows`` that concern the span, also those of transactions to skip."""
        return wanted(rows_between(rows, *self.span), self.gone, self.left_out)


@dataclass(frozen=True, slots=True)
class PartsDone:
    """What the executors did with the parts of a span."""

    written: Written
    seconds: float
    """How long the slowest part took for its deletes."""
    left: int
    """Number of parts whose rows are still to be written."""
    phases: frozenset[tuple[int, str]]
    """The parts and phases whose commits the target has answered."""

    @classmethod
    def of(cls, done: pa.Table) -> "PartsDone":
        """Sum up what ``apply_part`` yielded for all parts (``DONE``), none of which was refused."""
        phases = done.column("phase")
        deleting, left = done.filter(pc.equal(phases, Phase.DELETE.value)).column("micros"), pc.equal(phases, LEFT)
        answered = frozenset((row["part"], row["phase"]) for row in done.filter(pc.invert(left)).select(["part", "phase"]).to_pylist())
        return cls(_together(done), (pc.max(deleting).as_py() or 0) / 1e6, pc.sum(left, min_count=0).as_py(), answered)


def apply_phases(events: KeyedEvents, how: PartPlan, to: PartTarget, *, together: bool) -> PartsDone:
    """Apply the keyed ``events`` between two barriers part by part: the deletes, and the writes after the last delete of all parts.

    Args:
        events: each part in the Spark partition of its number.
        how: what to plan.
        to: where to write.
        together: all parts run at the same time, so each waits for the deletes of the others, at most ``_OTHERS_SECONDS``. If they do not, a part
            is left unless the others' deletes are done already. Call this again for parts that are left.

    Raises:
        PartsOutdated: a table of the target has changed since the plan: what no part has marked as done can be planned anew.
    """
    patience = _OTHERS_SECONDS if together else 0.0

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with RowSpool(KEYED) as spool:
            whole = spool.extend(how.chosen(unpack([batch], KEYED)) for batch in batches).table()
            part = _part_of(whole)
            try:
                yield from apply_part(part, whole, how, to, patience)
            except ApplyError as error:
                if error.errno not in OUTDATED:
                    raise
                # As an exception it would reach the driver as Spark's, as a text, and end the stream.
                yield _reported(part, REFUSED, 0, 0.0, error)

    done = events.overlapping(how.span).mapInArrow(run, ddl_of(DONE)).toArrow()
    phases = done.column("phase")
    refused = pc.equal(phases, REFUSED)
    for error in map(pickle.loads, done.filter(refused).column("detail").to_pylist()):
        raise PartsOutdated(error, _together(done.filter(pc.invert(refused))))
    return PartsDone.of(done)


def _part_of(rows: pa.Table) -> int:
    """The part that this task applies: the number of its Spark partition.

    Raises:
        ApplyError: ``rows`` has rows of another part.
    """
    task = TaskContext.get()
    part = task.partitionId() if task is not None else 0
    strange = pc.any(pc.not_equal(rows.column("part"), part), min_count=0).as_py()
    if strange:
        raise ApplyError(f"Spark gave the task of part {part} rows of other parts, so nothing is written for this part")
    return part


def apply_part(part: int, rows: pa.Table, how: PartPlan, to: PartTarget, patience: float) -> Iterator[pa.RecordBatch]:
    """Apply the ``rows`` (``KEYED``) of one part; yields ``DONE``. ``patience``: seconds to wait for the deletes of the other parts."""
    begun = time.monotonic()
    plans = _PartPlans(rows, how)
    deleted = _write_part(to, part, Phase.DELETE, plans)
    yield _row(part, Phase.DELETE.value, deleted or Written(), time.monotonic() - begun)
    if not rows.num_rows:
        return
    begun = time.monotonic()
    if not _others_deleted(to, how.skipped_ts, patience):
        yield _row(part, LEFT, Written(), time.monotonic() - begun)
        return
    failpoints.point("between-phases")
    written = _write_part(to, part, Phase.WRITE, plans)
    yield _row(part, LEFT if written is None else Phase.WRITE.value, written or Written(), time.monotonic() - begun)


def _others_deleted(to: PartTarget, skipped: frozenset[int], patience: float) -> bool:
    """Wait until all parts have committed their deletes, without those of ``skipped``; False: they have not within ``patience`` seconds."""
    retries = Retries(_POLL, patience)
    while True:
        # Not in a transaction that is begun for it: with a mark, each look would write.
        for attempt in retrying(patient(to.apply.retry_seconds)):
            with attempt, session_for(_sessions(to), attempt) as session:
                lease.check_unlocked(session, to.lease)
                done = _all_deleted(session, to, skipped)
        if done or retries.over:
            return done
        retries.pause()


def _all_deleted(session: Session, to: PartTarget, skipped: frozenset[int]) -> bool:
    """Whether all parts have committed their deletes (``StateTable.deletes_done``)."""
    return to.record.deletes_done(session, (to.part(number, Phase.DELETE) for number in range(to.parts)), skipped)


class _PartPlans:
    """The statements of one part. Each time they are planned anew, except that a part of one subset keeps its plan.

    Each further subset begins with a statement that does nothing. Many subsets may have no other statement, and the server
    would close the idle connection while they are planned.
    """

    def __init__(self, rows: pa.Table, how: PartPlan) -> None:
        rows = _told_apart(rows, how)
        self._how = how
        self._rows = rows
        few = rows.nbytes <= IN_MEMORY
        needed = _all_without if how.safe else _ends_without
        wanted = needed(rows, how.skipped_ts)
        if not how.safe:
            wanted = wanted | self._births(how.skipped_ts)
        self._numbers = None if few else _subset_numbers(rows, wanted)
        self._only = self._plan(without(rows, "commit_ts", how.skipped_ts).combine_chunks()) if few else None

    @property
    def skipped(self) -> frozenset[int]:
        """The transactions that it is planned without."""
        return self._how.skipped_ts

    def deletes(self) -> Iterator[Statement]:
        return self._statements(lambda plan: plan.deletes)

    def writes(self) -> Iterator[Statement]:
        return self._statements(SpanPlan.writes)

    def corrections(self, before: frozenset[int], findings: list[Finding]) -> Iterator[Statement]:
        """Corrects the deletes planned without the transactions ``before`` to ``deletes``; adds what stays uncertain to ``findings``. All rows are inserted again
        first, because the deletes must also find them among equal rows without a key.
        """
        rows, how = self._rows, self._how
        ends = [self._births(frozenset()), *(_ends_without(rows, skipped) for skipped in (frozenset[int](), before, self.skipped))]
        numbers = _subset_numbers(rows, _touched(rows, before ^ self.skipped) & np.logical_or.reduce(ends))
        for kind in (DeleteCorrection.restores, DeleteCorrection.deletes):
            for subset in _subsets(rows, numbers):
                events, keys = marked(subset.select(ROW_EVENT.names), how.hidden), subset.column("key").combine_chunks()
                some = DeleteCorrection(events, how.tables, how.limits, keys, before, self.skipped, flavour=how.flavour)
                if kind is DeleteCorrection.restores:
                    findings += some.doubts()
                yield _NOTHING
                yield from kind(some)

    def partly_applied(self, before: frozenset[int]) -> list[Finding]:
        """What is in the target, or missing there, because this part was written without the transactions ``before``."""
        concerned = self._rows.filter(pa.array(np.isin(self._rows.column("commit_ts").to_numpy(), list(before ^ self.skipped))))
        counted = concerned.group_by(["commit_ts", "table_id"]).aggregate([([], "count_all")]).sort_by("commit_ts").to_pylist()
        named = [(row["commit_ts"], self._how.tables.get(row["table_id"]), row["count_all"]) for row in counted]
        known = [(ts, at, n) for ts, at, n in named if at is not None]
        return [_partly(ts, at, n, left_out=ts in before) for ts, at, n in known]

    def _births(self, skipped: frozenset[int]) -> Mask:
        """Which of the part's events insert a row into a table with columns of its own: between two others they make it another row."""
        others = [i for i, table in self._how.tables.items() if table.others]
        born: Mask = np.zeros(self._rows.num_rows, dtype=bool)
        if others:
            born = np.isin(self._rows.column("table_id").to_numpy(), others) & (self._rows.column("op").to_numpy() == Op.INSERT)
            born &= ~np.isin(self._rows.column("commit_ts").to_numpy(), list(skipped))
        return born

    def _statements(self, kind: Callable[[SpanPlan], Iterable[Statement]]) -> Iterator[Statement]:
        if self._only is not None:
            yield from kind(self._only)
        elif self._numbers is not None:
            for subset in _subsets(self._rows, self._numbers):
                plan = self._plan(subset)
                yield _NOTHING
                yield from kind(plan)

    def _plan(self, rows: pa.Table) -> SpanPlan:
        how, keys = self._how, rows.column("key").combine_chunks()
        if keys.null_count:
            raise _keyless_rows(rows)
        events = marked(rows.select(ROW_EVENT.names), how.hidden)
        if how.safe is not None:
            return SafeSpanPlan(events, how.tables, how.limits, keys, flavour=how.flavour, how=how.safe)
        return SpanPlan(events, how.tables, how.limits, keys, flavour=how.flavour)

    def require_same(self, before: frozenset[int]) -> None:
        """Refuse other transactions to skip than ``before`` in safe mode: more is deleted there than can be inserted again.

        Raises:
            ApplyError: the deletes were planned without other transactions: ``before``.
        """
        if self._how.safe:
            raise ApplyError(
                f"the span {self._how.span} was begun in safe mode with syncer.ignore-txn-commit-ts = {sorted(before)}, and its deletes are committed. "
                f"Start with that value, and change it when the checkpoint has reached {self._how.span[1]}"
            )


_NOTHING = Statement(b"DO 0", 0, Phase.DELETE, Effect.REMOVES, Origin("", 0, (), ()), ends=bytes(8))


def _partly(commit_ts: int, at: TableAt, changes: int, *, left_out: bool) -> Finding:
    how = "left out" if left_out else "written"
    words = f"the transaction is skipped in part: {changes} of its row changes were {how} before syncer.ignore-txn-commit-ts was changed"
    return Finding(FindingKind.ROWS, words, table_name(at.schema, at.name), commit_ts)


def _with_keys(rows: pa.Table) -> pa.Table:
    """``rows`` with an empty key where a transaction that is skipped changes an unknown table."""
    keys = rows.column("key")
    return rows.set_column(rows.schema.get_field_index("key"), "key", pc.fill_null(keys, b"")) if keys.null_count else rows


def _told_apart(rows: pa.Table, how: PartPlan) -> pa.Table:
    """``rows`` with an identity of its own for each row, also for rows that share a ``_tidb_rowid``; this includes transactions to skip."""
    if not rows.num_rows or not sharing(how.tables):
        return rows
    keys = _with_keys(rows).column("key").combine_chunks()
    again = repeated(rows.column("table_id").to_numpy(), keys, how.tables) & rows.column("key").is_valid().to_numpy()
    if not again.any():
        return rows
    gapped = frozenset(how.tables) if how.ring else frozenset(table_id for table_id, _ in how.left_out)
    subsets, found = _subset_numbers(rows, again), np.zeros(rows.num_rows, dtype=np.int64)
    for number, subset in enumerate(_subsets(rows, subsets)):
        found[subsets == number] = _row_numbers(subset, how, gapped)
    if not found.any():
        return rows
    return rows.set_column(rows.schema.get_field_index("key"), "key", numbered(rows.column("key").combine_chunks(), found))


def _row_numbers(rows: pa.Table, how: PartPlan, gapped: frozenset[int]) -> Indexes:
    """``row_numbers``; without the transactions to skip where a row is damaged, which may be why they are skipped."""
    try:
        return row_numbers(rows, rows.column("key").combine_chunks(), how.tables, gapped)
    except Corruption:
        chosen = _all_without(rows, how.skipped_ts)
        if chosen.all():
            raise
        left, found = rows.filter(pa.array(chosen)).combine_chunks(), np.zeros(rows.num_rows, dtype=np.int64)
        found[chosen] = row_numbers(left, left.column("key").combine_chunks(), how.tables, frozenset(how.tables))
        return found


def _ends_without(rows: pa.Table, skipped: frozenset[int]) -> Mask:
    """Which of ``rows`` are the first or the last event of their row, without the transactions ``skipped``."""
    events = _with_keys(rows.select(["commit_ts", "seq", "op", "table_id", "key"]))
    if not skipped:
        return ends_of(events)
    chosen = ~np.isin(events.column("commit_ts").to_numpy(), list(skipped))
    chosen[chosen] = ends_of(events.filter(pa.array(chosen)))
    return chosen


def _all_without(rows: pa.Table, skipped: frozenset[int]) -> Mask:
    """Which of ``rows`` are not of the transactions ``skipped``."""
    found: Mask = ~np.isin(rows.column("commit_ts").to_numpy(), list(skipped))
    return found


def _touched(rows: pa.Table, transactions: frozenset[int]) -> Mask:
    """Which of ``rows`` have the key of one that these transactions change."""
    theirs = np.isin(rows.column("commit_ts").to_numpy(), list(transactions))
    touched: Mask = pc.is_in(rows.column("key"), rows.column("key").filter(pa.array(theirs))).to_numpy()
    return touched


def _subset_numbers(rows: pa.Table, needed: Mask) -> Indexes:
    """The subset of each of ``rows``: by key, in subsets of about ``IN_MEMORY`` bytes; -1 where the row is not ``needed``."""
    if bool(np.any(needed & rows.column("key").is_null().to_numpy())):
        raise _keyless_rows(rows.filter(pa.array(needed)))
    keys = _with_keys(rows).column("key").combine_chunks().filter(pa.array(needed))
    sizes = pc.binary_length(rows.column("row")).to_numpy()[needed].astype(np.int64) + 1
    numbers = np.full(rows.num_rows, -1, dtype=np.int64)
    numbers[needed] = subset_numbers(rows.column("table_id").to_numpy()[needed], keys, sizes, -(-rows.nbytes // IN_MEMORY))
    return numbers


def _subsets(rows: pa.Table, numbers: Indexes) -> Iterator[pa.Table]:
    for number in range(int(numbers.max(initial=-1)) + 1):
        yield _only(rows, numbers == number).combine_chunks()


def _only(rows: pa.Table, mask: Mask) -> pa.Table:
    """The rows selected by ``mask``, filtered batch by batch: filtering the whole table would first combine it into one array."""
    if bool(mask.all()):
        return rows
    found, at = [], 0
    for batch in rows.to_batches():
        found.append(batch.filter(pa.array(mask[at : at + batch.num_rows])))
        at += batch.num_rows
    return pa.Table.from_batches(found, rows.schema)


def _keyless_rows(rows: pa.Table) -> SchemaMismatch:
    first = rows.drop_columns(["row"]).filter(pc.is_null(rows.column("key"))).slice(0, 1).to_pylist()[0]
    return SchemaMismatch(
        f"table id {first['table_id']}: a row event at commit_ts {first['commit_ts']} (schema version {first['schema_version']}) has no "
        "row identity, because the DDL history has no such table at that version. Check that spark.tidb-status is the history of this cluster. "
        "If it does not reach back to the table's CREATE TABLE, set syncer.load-schema-snapshot = true"
    )


def _row(part: int, phase: str, done: Written, seconds: float) -> pa.RecordBatch:
    return _reported(part, phase, done.rows, seconds, done.findings)


def _reported(part: int, phase: str, rows: int, seconds: float, detail: object) -> pa.RecordBatch:
    values = (part, phase, rows, int(seconds * 1e6), pickle.dumps(detail))
    return pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(values, DONE, strict=True)], schema=DONE)


def _together(done: pa.Table) -> Written:
    findings = [finding for detail in done.column("detail").to_pylist() for finding in pickle.loads(detail)]
    return Written(sum(done.column("rows").to_pylist()), tuple(findings))


def _write_part(to: PartTarget, part: int, phase: Phase, plans: _PartPlans) -> Written | None:
    """One transaction: check the lease, write the marker and the data. Does nothing when the marker exists, and needs no correction.

    Returns None, and writes nothing, if deletes are missing that the target had answered. The target lost them with its last transactions (a crash with
    ``innodb_flush_log_at_trx_commit`` other than 1, a replica in its place). This transaction is the first that can be sure.
    """
    for attempt in retrying(patient(to.apply.retry_seconds)):
        with attempt, transaction(_sessions(to), attempt) as session:
            done = _write_once(session, to, part, phase, plans)
    failpoints.point(f"after-part-{phase.value}")
    return done


def _write_once(session: Session, to: PartTarget, part: int, phase: Phase, plans: _PartPlans) -> Written | None:
    """All that belongs to the transaction; as ``_write_part``."""
    for effects in checked(session, to.apply):
        lease.check(session, to.lease)
        if phase is Phase.WRITE and not _all_deleted(session, to, plans.skipped):
            return None
        rows, findings = 0, list[Finding]()
        if to.record.claim(session, to.part(part, phase), plans.skipped):
            rows += effects.run(plans.deletes()) if phase is Phase.DELETE else 0
            rows += effects.run(plans.writes()) if phase is Phase.WRITE else 0
        else:
            statements = _corrected(session, to, part, phase, plans, findings)
            if statements is None:
                return Written()
            rows += effects.run(statements)
        failpoints.point(f"before-part-{phase.value}-commit")
    return Written(rows, (*findings, *effects.findings))


def _corrected(
    session: Session, to: PartTarget, part: int, phase: Phase, plans: _PartPlans, findings: list[Finding]
) -> Iterable[Statement] | None:
    """What is still to be done for a part and phase that is marked as done; None: nothing. Once the statements are planned, ``findings`` has those
    that do not come from their effects.
    """
    deletes = to.part(part, Phase.DELETE)
    before = to.record.planned_without(session, deletes) if phase is Phase.DELETE else None
    if before is None or before == plans.skipped:
        return None
    plans.require_same(before)
    to.record.correct(session, deletes, plans.skipped)
    written = to.record.planned_without(session, to.part(part, Phase.WRITE))
    if written is None:
        return plans.corrections(before, findings)
    findings += plans.partly_applied(written)
    return ()


def _sessions(to: PartTarget) -> Sessions:
    return kept_sessions(to.target.target(), to.apply).use
