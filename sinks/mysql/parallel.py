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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.stages import ddl_of
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.keyed import KEYED, KeyedEvents, RowSpool, unpack
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checked import checked
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan, PartPlans
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import patient, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session, Sessions, kept_sessions, session_for, transaction
from pyspark_tidb_binlog.sinks.mysql.state_table import Part, StateTable
from pyspark_tidb_binlog.sinks.mysql.statements import Phase, Statement
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
                yield _reported(part, REFUSED, 0.0, error)

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
    plans = PartPlans(rows, how)
    deleted = _write_part(to, part, Phase.DELETE, plans)
    yield _reported(part, Phase.DELETE.value, time.monotonic() - begun, deleted or Written())
    if not rows.num_rows:
        return
    begun = time.monotonic()
    if not _others_deleted(to, how.skipped_ts, patience):
        yield _reported(part, LEFT, time.monotonic() - begun, Written())
        return
    failpoints.point("between-phases")
    written = _write_part(to, part, Phase.WRITE, plans)
    yield _reported(part, LEFT if written is None else Phase.WRITE.value, time.monotonic() - begun, written or Written())


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


def _reported(part: int, phase: str, seconds: float, done: Written | ApplyError) -> pa.RecordBatch:
    rows, detail = (done.rows, done.findings) if isinstance(done, Written) else (0, done)
    values = (part, phase, rows, int(seconds * 1e6), pickle.dumps(detail))
    return pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(values, DONE, strict=True)], schema=DONE)


def _together(done: pa.Table) -> Written:
    findings = [finding for detail in done.column("detail").to_pylist() for finding in pickle.loads(detail)]
    return Written(sum(done.column("rows").to_pylist()), tuple(findings))


def _write_part(to: PartTarget, part: int, phase: Phase, plans: PartPlans) -> Written | None:
    """One transaction: check the lease, write the marker and the data. Does nothing when the marker exists, and needs no correction.

    Returns None, and writes nothing, if deletes are missing that the target had answered. The target lost them with its last transactions (a crash with
    ``innodb_flush_log_at_trx_commit`` other than 1, a replica in its place). This transaction is the first that can be sure.
    """
    done: Written | None = None
    for attempt in retrying(patient(to.apply.retry_seconds)):
        with attempt, transaction(_sessions(to), attempt) as session:
            done = _write_once(session, to, part, phase, plans, done or Written())
    failpoints.point(f"after-part-{phase.value}")
    return done


def _write_once(session: Session, to: PartTarget, part: int, phase: Phase, plans: PartPlans, answered: Written) -> Written | None:
    """All that belongs to the transaction; as ``_write_part``. ``answered``: what an attempt has written whose answer to COMMIT was lost."""
    for effects in checked(session, to.apply):
        lease.check(session, to.lease)
        if phase is Phase.WRITE and not _all_deleted(session, to, plans.skipped):
            return None
        findings: list[Finding] = []
        statements = _claimed(session, to, part, phase, plans, findings)
        if statements is None:
            return answered
        rows = effects.run(statements)
        failpoints.point(f"before-part-{phase.value}-commit")
    return Written(rows, (*findings, *effects.findings))


def _claimed(
    session: Session, to: PartTarget, part: int, phase: Phase, plans: PartPlans, findings: list[Finding]
) -> Iterable[Statement] | None:
    """What is still to be done for a part and phase, which is marked as done with it; None: nothing. ``findings`` gets what no effect of a statement shows."""
    record, deletes = to.record, to.part(part, Phase.DELETE)
    if record.claim(session, to.part(part, phase), plans.skipped):
        return plans.deletes() if phase is Phase.DELETE else plans.writes()
    before = record.planned_without(session, deletes) if phase is Phase.DELETE else None
    if before is None or before == plans.skipped:
        return None
    plans.require_same(before)
    record.correct(session, deletes, plans.skipped)
    written = record.planned_without(session, to.part(part, Phase.WRITE))
    if written is None:
        return plans.corrections(before, findings)
    findings += plans.partly_applied(written)
    return ()


def _sessions(to: PartTarget) -> Sessions:
    return kept_sessions(to.target.target(), to.apply).use
