"""Keeps the jobs of tests of DDLs as cases of the record: ``python -m pytest -p tests.ddl_record.collect FILES`` writes ``kinds.json.gz``."""

import gzip
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from tests.ddl_record.cases import KINDS
from tests.support import ddl_jobs

_history, _steps_of = ddl_jobs.history, ddl_jobs.steps_of
_jobs: list[tuple[SchemaHistory, list[dict[str, Any]]]] = []
_found: dict[str, tuple[list[dict[str, Any]], dict[int, str]]] = {}


def history(*jobs: dict[str, Any]) -> SchemaHistory:
    made = _history(*jobs)
    _jobs.append((made, list(jobs)))
    return made


def steps_of(h: SchemaHistory, texts: Mapping[int, str] = MappingProxyType({})) -> list[DdlStep]:
    test = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0].removeprefix("tests/integration/")
    jobs = next((jobs for known, jobs in _jobs if known is h), [])
    same = [name for name, (others, those) in _found.items() if others == jobs[: len(others)] and those.items() <= texts.items()]
    for name in same:  # what this one begins with
        del _found[name]
    if not any(jobs == others[: len(jobs)] for others, _ in _found.values()):
        _found[f"{test} {len(_found)}"] = (jobs, dict(texts))
    return _steps_of(h, texts)


# Before any module of tests takes the names.
ddl_jobs.history, ddl_jobs.steps_of = history, steps_of


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was found."""
    text = json.dumps(_found, ensure_ascii=False)
    KINDS.write_bytes(gzip.compress(text.encode(), mtime=0))
