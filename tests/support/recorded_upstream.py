"""A recorded case as the upstream of a lake's loads: its tables as they were at any moment, from a lake that has followed the case from its beginning."""

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.lake_table import WrittenPart, written_files
from pyspark_tidb_binlog.sinks.lake.mirror_round import LoadLater
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorTable, Stamp
from pyspark_tidb_binlog.sinks.lake.mirrors import TableLoads
from pyspark_tidb_binlog.sinks.lake.moments import _state_of
from tests.support import golden_messages
from tests.support.golden_case import load_case
from tests.support.golden_messages import SYSTEM, spans_of

STEPS = 12


@cache
def begin_of(case: str) -> int:
    """A moment in the middle of a case, at which it is known which DDLs have ended."""
    found = load_case(case)
    ends = [end for _, end in spans_of(case, STEPS)]

    def is_plain(ts: int) -> bool:
        done = [job.version for d in found.ddls if d.commit_ts <= ts and (job := found.history.job(d.job_id)) is not None]
        return bool(done) and max(done) == found.history.version_at(ts) and ts < ends[-1]

    plain = [ts for ts in ends if is_plain(ts)]
    return plain[len(plain) // 2]


def spans_from(case: str, ts: int) -> list[tuple[int, int]]:
    """The rest of a case, and up to when its last DDL has ended."""
    ends = [ts, *(end for _, end in spans_of(case, STEPS) if end > ts)]
    ends.append(max(ends[-1], *(job.finished_ts for job in load_case(case).history.ordered)) + 1)
    return list(zip(ends, ends[1:], strict=False))


class RecordedUpstream:
    """``later``: how often each table cannot be read yet."""

    def __init__(self, case: str, directory: Path, later: int = 0) -> None:
        self._case, self._directory, self._later = case, directory, later
        self.asked: Counter[int] = Counter()
        self._lake = directory

    @property
    def loads(self) -> TableLoads:
        return TableLoads(self.tables, self.at)

    def tables(self, history: SchemaHistory, version: int) -> Sequence[Job]:
        databases = load_case(self._case).info["databases"]
        live = [t for t in SYSTEM.live(history, version) if t.schema in databases and not t.info.is_view and not t.info.is_sequence]
        return [table_as_job(table, history) for table in live]

    @contextmanager
    def at(self, ts: int, stopped: Callable[[], bool]) -> Iterator["RecordedUpstream"]:
        self._lake = self._directory / str(ts)
        if not self._lake.exists():
            self._follow(ts)
        yield self

    def files_of(self, table: TableAt, uri: str, stored: pa.Schema) -> Sequence[WrittenPart]:
        self.asked[table.table_id] += 1
        if self.asked[table.table_id] <= self._later:
            raise LoadLater("not yet")
        rows = DeltaTable(self._lake / "snapshots").to_pyarrow_table().sort_by("number").to_pylist()
        state = [_state_of(row) for row in rows if row["table_id"] == table.table_id][-1]
        assert state.state == "mirrored" and state.version is not None, state
        mirror = MirrorTable.at(str(self._lake / state.path), state.version, Stamp(0, 0))
        batches = [pa.RecordBatch.from_arrays(batch.columns, schema=stored) for batch in mirror.read()]
        return list(written_files(uri, stored, iter(batches)))

    def _follow(self, ts: int) -> None:
        """The case up to ``ts``, in a lake of its own."""
        made = self._directory / f"{ts}-{uuid.uuid4()}"
        sink = LakeSink(LakeSettings(str(made), 1, mirror_interval=0.0))
        spans = [(begin, min(end, ts)) for begin, end in spans_of(self._case, STEPS) if begin < ts]
        golden_messages.replicate(sink, self._case, spans)
        sink.close()
        os.replace(made, self._lake)
