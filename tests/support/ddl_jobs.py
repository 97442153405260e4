"""Small DDL histories for tests, written the way ``/ddl/history`` writes them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps

INT = {"Tp": 3, "Flag": 0, "Flen": 11, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
VARCHAR = {"Tp": 15, "Flag": 0, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin", "Elems": None}


def column(column_id: int, name: str, kind: dict[str, Any] = INT, **more: Any) -> dict[str, Any]:
    """One column; its offset is set by ``table``."""
    return {"id": column_id, "name": {"O": name}, "type": dict(kind), "state": 5, **more}


def table(table_id: int, name: str, columns: Iterable[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """One table; without columns it has an integer primary key ``id``."""
    found = list(columns) or [column(1, "id", {**INT, "Flag": 4099})]
    return {
        "id": table_id,
        "name": {"O": name},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [{**c, "offset": i} for i, c in enumerate(found)],
        "index_info": None,
        "pk_is_handle": True,
        "is_common_handle": False,
        **more,
    }


def index(index_id: int, name: str, *columns: tuple[str, int], unique: bool = False, primary: bool = False) -> dict[str, Any]:
    """One index over (column, offset) pairs."""
    parts = [{"name": {"O": c}, "offset": o, "length": -1} for c, o in columns]
    return {"id": index_id, "idx_name": {"O": name}, "idx_cols": parts, "state": 5, "is_unique": unique, "is_primary": primary}


def foreign_key(name: str, own: str, to: str, its: str, schema: str = "", **actions: int) -> dict[str, Any]:
    """One foreign key over one column, with ``on_delete`` and ``on_update``."""
    ref = {"ref_schema": {"O": schema}, "ref_table": {"O": to}, "ref_cols": [{"O": its}]}
    return {"id": 1, "fk_name": {"O": name}, "cols": [{"O": own}], "state": 5, **ref, **actions}


def partitioned(method: int, *parts: tuple[Any, ...], expr: str = "", columns: tuple[str, ...] = ()) -> dict[str, Any]:
    """The partitions of a table: id, name, and the values of RANGE, or the lists of values of LIST."""
    found = [
        {"id": i, "name": {"O": n}, "less_than": values if method == 1 else None, "in_values": values if method == 3 else None}
        for i, n, *values in parts
    ]
    over = {"type": method, "expr": expr, "columns": [{"O": c} for c in columns]}
    return {**over, "definitions": found, "num": len(found), "enable": True}


def partitions(*pairs: tuple[int, str]) -> dict[str, Any]:
    """The partitions of a table by RANGE of its ``id``: each a hundred rows."""
    return partitioned(1, *((i, n, f"{place}00") for place, (i, n) in enumerate(pairs, 1)), expr="`id`")


def job(job_id: int, kind: int, info: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One job; its schema version is its id unless ``version`` says otherwise, FinishedTS is ten times the id."""
    binlog = {
        "SchemaVersion": more.pop("version", job_id),
        "TableInfo": info,
        "DBInfo": more.pop("db", None),
        "MultipleTableInfos": more.pop("many", None),
        "FinishedTS": job_id * 10,
    }
    found = {
        "id": job_id,
        "type": kind,
        "state": 6,
        "schema_id": 1000,
        "table_id": info["id"] if info else 0,
        "schema_name": "d",
        "binlog": binlog,
    }
    return {**found, "query": f"job {job_id}", **more}


def database(job_id: int, name: str = "d", schema_id: int = 1000) -> dict[str, Any]:
    """The job that creates a database."""
    info = {"id": schema_id, "db_name": {"O": name}, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    return job(job_id, 1, None, db=info, schema_id=schema_id, schema_name=name, query=f"create database {name}")


def history(*jobs: dict[str, Any]) -> SchemaHistory:
    """The history of these jobs."""
    return SchemaHistory.of(JobReader().read(jobs))


def told(*ddls: tuple[Any, ...], **last: Any) -> SchemaHistory:
    """The history of the database ``d``: kind, table behind it, text, and what else there is of each job, from job 2 on; ``last``: of the last."""
    jobs = [
        job(n, kind, info, query=text, **(more[0] if more else {}), **(last if n == len(ddls) + 1 else {}))
        for n, (kind, info, text, *more) in enumerate(ddls, 2)
    ]
    return history(database(1), *jobs)


def steps_of(h: SchemaHistory, texts: Mapping[int, str] = MappingProxyType({})) -> list[DdlStep]:
    """The steps of all DDLs of ``h``, each at ten times its job's id; ``texts``: TiDB's rewritten text where it is not the job's own."""
    events = [DdlEvent(j.id * 10, j.id, texts.get(j.id, j.query), 5) for j in h.ordered]
    return [s for s in plan_steps((0, 10_000), events, (), h, AppliedJobs(0)) if isinstance(s, DdlStep)]
