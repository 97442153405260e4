"""The DDLs of a ledger, which have all definitions of its tables.

Promises: files without a DDL are passed over by their statistics.
"""

import json
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.sinks.lake.ledger import scanned
from pyspark_tidb_binlog.sinks.lake.net_changes import ORDER

_COLUMNS = ("commit_ts", "seq", "schema_version", "database", "table", "job")


@dataclass(frozen=True, slots=True)
class LedgerDdl:
    """A row of the ledger."""

    commit_ts: int
    name: tuple[str, str]
    """Database and table in the lake."""
    job: Job


def ledger_ddls(lake: str, upto_ts: int) -> list[LedgerDdl]:
    """Those up to ``upto_ts``, in order.

    Raises:
        ApplyError: the ledger cannot be read.
    """
    found = scanned(f"{lake}/changes", _COLUMNS, f"op = 'ddl' AND commit_ts <= {upto_ts}")
    rows = found.read_all().sort_by(ORDER).to_pylist() if found is not None else []
    return [LedgerDdl(r["commit_ts"], (r["database"] or "", r["table"] or ""), Job.from_json(json.loads(r["job"]))) for r in rows]
