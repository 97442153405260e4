"""DDL jobs and row changes, each at a commit_ts, into a real lake without Spark."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch import merge, rows_between, summarise
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.choice import chosen, decided, routed
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.mirrors import TableLoads
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, database, job
from tests.support.eventually import eventually
from tests.support.mirror_rows import by_delta, published
from tests.support.plan_samples import row_event

KEY = {**INT, "Flag": 4099}
"""The type of an integer primary key."""
Row = Mapping[str, Any]
_ALL = Selection()


class LakeScene:
    """A stream that begins at ``start``: DDLs up to there are in the lake's history only."""

    def __init__(self, start: int = 1, selection: Selection = _ALL) -> None:
        self._start, self._selection = start, selection
        self._jobs: list[dict[str, Any]] = []
        self._ddls: list[DdlEvent] = []
        self._rows: list[dict[str, Any]] = []
        self._seq: Counter[int] = Counter()
        self._applied = AppliedJobs(0)

    @classmethod
    def of(cls, *tables: dict[str, Any], start: int = 1, selection: Selection = _ALL) -> "LakeScene":
        """The database ``d`` is made at 10, and these tables from 20 on, by the jobs 2, 3, …"""
        scene = cls(start, selection)
        scene.ddl(10, database(1))
        for number, made in enumerate(tables):
            scene.ddl(20 + number, job(2 + number, 3, made))
        return scene

    def ddl(self, ts: int, made: dict[str, Any]) -> None:
        """A job of ``tests.support.ddl_jobs``."""
        made["binlog"]["FinishedTS"] = ts
        self._jobs.append(made)
        self._ddls.append(DdlEvent(ts, made["id"], made["query"], 5))

    def row(self, ts: int, table_id: int, version: int, before: Row | None, after: Row | None) -> None:
        """A change of a row, written at a schema version."""
        at = self.history.table_at(table_id, version)
        assert at is not None
        ids = {c.name: c.id for c in at.info.columns}
        old, new = ({ids[name]: value for name, value in row.items()} if row is not None else None for row in (before, after))
        self._rows.append(row_event(at, ts, self._seq[ts], old, new, version=version))
        self._seq[ts] += 1

    @property
    def history(self) -> SchemaHistory:
        return SchemaHistory.of(JobReader().read(self._jobs))

    def sink(self, lake: Path, loads: TableLoads | None = None, **more: Any) -> LakeSink:
        """A sink that has taken the lake. ``more``: of ``LakeSettings``."""
        settings = LakeSettings(str(lake), 1, lease_timeout=1.0, selection=self._selection, mirror_interval=0.0, **more)
        sink, history = LakeSink(settings, loads=loads), self.history
        opened = sink.open(lambda _, commit_ts: self._start if commit_ts is None else commit_ts, lambda: history)
        self._applied = opened.applied
        return sink

    def play(self, sink: LakeSink, *ends: int) -> None:
        """Everything up to each of ``ends``, a batch each, that is not in the lake yet; the sink stays open."""
        rows, history = pa.Table.from_pylist(self._rows, schema=ROW_EVENT), self.history
        rows = rows.sort_by([("commit_ts", "ascending"), ("seq", "ascending")])
        for end in ends:
            here = rows_between(rows, sink.commit_ts, end)
            touched = merge(summarise(here, [d.commit_ts for d in self._ddls])).tables
            for step in plan_steps((sink.commit_ts, end), self._ddls, touched, history, self._applied):
                if isinstance(step, DdlStep):
                    sink.apply_ddl(decided(step, history, self._selection), history, {})
                else:
                    part = rows_between(here, step.after_ts, step.upto_ts)
                    sink.apply(part, routed(chosen(step, self._selection), self._selection.routes), StageClock())
                self._applied = step.applied

    def follow(self, sink: LakeSink, *ends: int) -> None:
        """Likewise, and each of ``ends``, at which there are changes, is a moment."""
        for end in ends:
            self.play(sink, end)
            eventually(lambda: followed_ts(sink) == sink.commit_ts)

    def run(self, lake: Path, *ends: int, **more: Any) -> Path:
        """A life of a writer; the lake. ``more``: of ``LakeSettings``."""
        sink = self.sink(lake, **more)
        try:
            self.play(sink, *ends)
        finally:
            sink.close()
        return lake

    def moments(self, lake: Path, *ends: int) -> Path:
        """Likewise, with a moment at each of ``ends``, at which there are changes but at the last one."""
        sink = self.sink(lake)
        self.follow(sink, *ends[:-1])
        self.play(sink, ends[-1])
        sink.close()
        return lake


def followed_ts(sink: LakeSink) -> int:
    """The newest moment."""
    assert sink._mirrors is not None
    return sink._mirrors._snapshots.moment.resolved_ts


def cells_of(lake: Path, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a mirror as it was published last."""
    return sorted(tuple(row[c] for c in columns) for row in by_delta(lake, published(lake)[name]))
