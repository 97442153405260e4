"""Reads a golden case (tests/golden/README.md): binlogs of both Pumps in commit order, DDLs, history."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.internal.decoder import _DecodeVarint32

from pyspark_tidb_binlog.conf.model import TargetConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenCase:
    """One recorded case."""

    info: dict[str, Any]
    history: SchemaHistory
    ddls: tuple[DdlEvent, ...]


@cache
def load_case(name: str) -> GoldenCase:
    """The case in ``tests/golden/NAME``, read once in a process."""
    root = GOLDEN / name
    history = SchemaHistory.of(JobReader().read(json.loads(gzip.decompress((root / "ddl_history.json.gz").read_bytes()))))
    binlogs = sorted((b for p in root.glob("pump-*.binlogs.gz") for b in _binlogs(p)), key=lambda b: b.commit_ts)
    ddls = tuple(DdlEvent(b.commit_ts, b.ddl_job_id, b.ddl_query.decode(), b.ddl_schema_state) for b in binlogs if b.ddl_job_id)
    return GoldenCase(json.loads((root / "case.json").read_text()), history, ddls)


def compared(case: Path, to: TargetConfig) -> str:
    """How the target differs from what the case in this directory says; empty = not at all."""
    command = [sys.executable, str(GOLDEN / "compare.py"), str(case), to.host, str(to.port), to.user]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"MYSQL_PWD": to.password})
    return found.stdout + found.stderr if found.returncode else ""


def ddl_steps(case: GoldenCase) -> list[DdlStep]:
    """The steps of its DDLs, for a target that has what the first of them builds on."""
    jobs = [j for d in case.ddls if (j := case.history.job(d.job_id))]
    steps = plan_steps(
        (case.info["start_ts"], case.info["end_ts"]), case.ddls, (), case.history, AppliedJobs(min(j.version for j in jobs) - 1)
    )
    return [s for s in steps if isinstance(s, DdlStep)]


def _binlogs(path: Path) -> list[pb.Binlog]:
    data = gzip.decompress(path.read_bytes())
    out, at = [], 0
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        out.append(pb.Binlog.FromString(data[at : at + size]))
        at += size
    return out
