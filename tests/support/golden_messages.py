"""What a real Drainer made of a golden case (tests/golden/README.md), and what ours makes of it."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import google_crc32c
import pyarrow as pa
from google.protobuf.internal.decoder import _DecodeVarint32

from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from pyspark_tidb_binlog.sinks.engine.batch import merge, rows_between, summarise
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.choice import chosen, decided
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep, plan_steps
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.sink import Sink
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, name_of
from pyspark_tidb_binlog.sinks.translate.translation import Translation
from tests.support.golden_case import GOLDEN, GoldenCase, load_case

SYSTEM = Selection(TableFilter((), ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql")))
"""What a real Drainer leaves out by default."""


def from_drainer(case: str, name: str) -> list[bytes]:
    """The messages in ``tests/golden/CASE/NAME.gz``."""
    return list(_delimited(gzip.decompress((GOLDEN / case / f"{name}.gz").read_bytes())))


def checksums_from_drainer(case: str, name: str) -> list[int]:
    """CRC-32C of each message, from ``tests/golden/CASE/NAME.crc``."""
    data = (GOLDEN / case / f"{name}.crc").read_bytes()
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


def checksums(messages: list[bytes]) -> list[int]:
    """CRC-32C of each."""
    return [google_crc32c.value(m) for m in messages]


@cache
def case_steps(case: str) -> tuple[GoldenCase, pa.Table, tuple[RowsStep | DdlStep, ...]]:
    """A case, its row events, and the steps in which a target takes all of it."""
    found, rows = load_case(case), row_events(case)
    summary = merge(summarise(rows, [d.commit_ts for d in found.ddls]))
    jobs = [j for d in found.ddls if (j := found.history.job(d.job_id))]
    ends = (*rows.column("commit_ts").to_pylist(), *(d.commit_ts for d in found.ddls), found.info["end_ts"])
    span = (found.info["start_ts"], max(ends))
    return found, rows, plan_steps(span, found.ddls, summary.tables, found.history, AppliedJobs(min(j.version for j in jobs) - 1))


def spans_of(case: str, count: int) -> list[tuple[int, int]]:
    """The case's time in about so many batches."""
    found, rows, _ = case_steps(case)
    times = sorted({*rows.column("commit_ts").to_pylist(), *(d.commit_ts for d in found.ddls)})
    ends = [found.info["start_ts"], *times[:: len(times) // count], times[-1]]
    return list(zip(ends, ends[1:], strict=False))


def replicate(
    sink: Sink, case: str, spans: Sequence[tuple[int, int]], upto: int = 1 << 62, selection: Selection = SYSTEM, begin_ts: int = 0
) -> None:
    """A life of a stream: everything up to ``upto`` that is not in the target yet, a batch for each of ``spans``; the sink stays open.

    A new target begins at ``begin_ts``; 0: with the case.
    """
    found, rows, _ = case_steps(case)
    first = min(j.version for d in found.ddls if (j := found.history.job(d.job_id))) - 1
    start = begin_ts or found.info["start_ts"]
    opened = sink.open(lambda _, commit_ts: start if commit_ts is None else commit_ts, lambda: found.history)
    applied = opened.applied if sink.commit_ts != found.info["start_ts"] else replace(opened.applied, version=first)
    for begin, end in spans:
        if end <= sink.commit_ts or end > upto:
            continue
        after = max(begin, sink.commit_ts)
        here = rows_between(rows, after, end)
        touched = merge(summarise(here, [d.commit_ts for d in found.ddls])).tables
        for step in plan_steps((after, end), found.ddls, touched, found.history, applied):
            if isinstance(step, DdlStep):
                sink.apply_ddl(decided(step, found.history, selection), found.history, {})
            else:
                sink.apply(rows_between(here, step.after_ts, step.upto_ts), chosen(step, selection), StageClock())
            applied = step.applied


def ours(case: str, form: BinlogFormat) -> list[bytes]:
    """Our messages of a case, in the order of commit_ts."""
    found, rows, steps = case_steps(case)
    out: list[bytes] = []
    for step in steps:
        if isinstance(step, DdlStep):
            name = name_of(step.job, found.history)
            out += [form.ddl(step.commit_ts, name, step.query)] if SYSTEM.tables.keeps(name.schema) else []
        else:
            out += [m.payload for m in Translation.of(chosen(step, SYSTEM), form).messages(rows_between(rows, step.after_ts, step.upto_ts))]
    return out


def row_events(case: str) -> pa.Table:
    """The row events of a case, of both Pumps one after the other."""
    found = [
        pb.Binlog.FromString(m) for p in sorted((GOLDEN / case).glob("pump-*.gz")) for m in _delimited(gzip.decompress(p.read_bytes()))
    ]
    commits = [b for b in found if b.tp == pb.Commit]
    cells = [pa.nulls(len(commits), pa.int8()), pa.array([b.start_ts for b in commits]), pa.array([b.commit_ts for b in commits])]
    cells += [pa.nulls(len(commits), pa.int32()), pa.array([b.SerializeToString() for b in commits], pa.binary())]
    return pa.Table.from_batches([explode(pa.RecordBatch.from_arrays(cells, schema=TRANSACTION)).rows])


def _delimited(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        yield data[at : at + size]
        at += size
