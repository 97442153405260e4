"""A target in memory that keeps the contract of ``sinks.sink``: the second implementation, against which the contract is written.

Promises: what is in ``Memory`` outlives its sinks, as a database outlives its clients. A commit replaces the whole state, so a step is in it or not.
Not more than tests need: rows are found by identity alone, and tables are never dropped.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas import decoder as decode
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseHeld, LeaseLost
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.batch import wanted, without
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.fold import fold
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.identity import EventColumns, row_identities
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress

Rows = Mapping[tuple[int, bytes], tuple[object, ...]]
"""By table id and identity."""


@dataclass(frozen=True)
class State:
    """Everything that is committed."""

    commit_ts: int | None = None
    schema_version: int = 0
    rows: Rows = field(default_factory=dict)
    jobs: frozenset[int] = frozenset()


class Memory:
    """One target, and who has its lease."""

    def __init__(self) -> None:
        self.identity = str(uuid.uuid4())
        self.state = State()
        self.holder: MemorySink | None = None


class MemorySink(Sink):
    """One life of one stream."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._commit_ts = 0

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        if self._memory.holder is not None:
            raise LeaseHeld("another Drainer writes to this memory")
        self._memory.holder = self
        state = self._memory.state
        self._commit_ts = begin(self._memory.identity, state.commit_ts)
        version = state.schema_version or history().version_at(self._commit_ts)
        if state.commit_ts is None:
            self._commit(replace(state, commit_ts=self._commit_ts, schema_version=version))
        progress = TargetProgress(self._commit_ts, True, version, None, known=state.commit_ts is not None)
        return Opened(progress, AppliedJobs(version, state.jobs), {})

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        with clock.timed(Stage.APPLY, "write"):
            state = self._next(step.after_ts, step.upto_ts)
            done = 0
            if state.commit_ts != step.upto_ts or step.after_ts == step.upto_ts:
                changed, done = changed_rows(wanted(rows, step.gone, step.left_out), step.tables, state.rows)
                self._commit(replace(state, commit_ts=step.upto_ts, schema_version=step.applied.version, rows=changed))
        self._commit_ts = step.upto_ts
        return Written(done)

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        return self.apply(without(events.rows_in((step.after_ts, step.upto_ts)), "commit_ts", skipped_ts), step, clock)

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> DdlResult:
        state = self._next(self._commit_ts, step.commit_ts)
        version = max(state.schema_version, step.applied.version)
        self._commit(replace(state, commit_ts=step.commit_ts, schema_version=version, jobs=state.jobs | {step.job.id}))
        self._commit_ts = step.commit_ts
        return DdlResult()

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        return ()

    def close(self) -> None:
        if self._memory.holder is self:
            self._memory.holder = None

    @property
    def commit_ts(self) -> int:
        return self._commit_ts

    @property
    def target(self) -> str:
        return self._memory.identity

    @property
    def lost(self) -> LeaseLost | None:
        return None if self._memory.holder is self else LeaseLost("another Drainer writes to this memory")

    @property
    def waited(self) -> None:
        return None

    def _next(self, after_ts: int, upto_ts: int) -> State:
        if self.lost is not None:
            raise self.lost
        state = self._memory.state
        if state.commit_ts not in (after_ts, upto_ts):
            raise ApplyError(f"cannot apply ({after_ts}, {upto_ts}]: the target stands at {state.commit_ts}")
        return state

    def _commit(self, state: State) -> None:
        self._memory.state = state


def changed_rows(events: pa.Table, tables: Mapping[int, TableAt], before: Rows) -> tuple[Rows, int]:
    """``before`` after ``events``, and how many rows were removed or written."""
    if not events.num_rows:
        return before, 0
    keys = row_identities(events, tables)
    events = events.append_column("key", keys)
    columns, rows, done = EventColumns(events), dict(before), 0
    for changes in fold(events):
        table = tables[changes.table_id]
        for place in (*changes.removed.tolist(), *changes.before.tolist()):
            done += rows.pop((changes.table_id, keys[place].as_py()), None) is not None
        places = np.concatenate([changes.after, changes.added])
        images = decode.new_images(table, columns.ops[places], columns.rows_at(places), columns.versions[places])
        values = zip(*(images.column(n).to_pylist() for n in range(len(table.info.columns))), strict=True)
        for place, row in zip(places.tolist(), values, strict=True):
            rows[changes.table_id, keys[place].as_py()] = row
            done += 1
    return rows, done
