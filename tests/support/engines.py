"""Programs that read a lake's Delta tables, and what each makes of each kind of table.

``python -m tests.support.engines`` writes ``docs/engines.md`` from ``VERDICTS``; tests fail while an engine does otherwise, and while the page differs.
An engine that is not installed is not tried.
"""

import datetime
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal

Row = dict[str, Any]
Where = tuple[str, str, Any]
"""A column, ``=``, ``<=`` or ``>=``, and a value."""
Read = Callable[[str, Where | None], Iterable[Row]]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "engines.md"
EXACT, BYTES, REFUSED = "exact", "bytes", "refused"
DAFT = "0.7.26"
"""Tried by hand: it asks for pyarrow below 26, so it cannot be among the packages of the tests."""
_OPS: Mapping[str, Callable[[Any, Any], Any]] = {"=": operator.eq, "<=": operator.le, ">=": operator.ge}
_REFUSALS = re.compile("reader features|deletion vectors", re.I)


# How each of them reads a table as it is now.


def _pandas(uri: str, where: Where | None) -> Iterable[Row]:
    filters = [(where[0], {"=": "=="}.get(where[1], where[1]), where[2])] if where else None
    rows: list[Row] = DeltaTable(uri).to_pandas(filters=filters).to_dict("records")
    return rows


def _arrow(uri: str, where: Where | None) -> Iterable[Row]:
    rows = DeltaTable(uri).to_pyarrow_dataset()
    if where is None:
        return rows.to_table().to_pylist()
    column, op, value = where
    return rows.to_table(filter=_OPS[op](pads.field(column), pa.scalar(value, rows.schema.field(column).type))).to_pylist()


def _polars(uri: str, where: Where | None) -> Iterable[Row]:
    polars = import_module("polars")
    rows = polars.scan_delta(uri)
    if where is not None:
        rows = rows.filter(_OPS[where[1]](polars.col(where[0]), polars.lit(where[2]).cast(rows.collect_schema()[where[0]])))
    return rows.collect().to_dicts()  # type: ignore[no-any-return]


def _duckdb(uri: str, where: Where | None) -> Iterable[Row]:
    with import_module("duckdb").connect() as connection:
        connection.register("t", DeltaTable(uri).to_pyarrow_dataset())
        found = connection.execute(
            *(("SELECT * FROM t",) if where is None else (f'SELECT * FROM t WHERE "{where[0]}" {where[1]} ?', [where[2]]))
        )
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _daft(uri: str, where: Where | None) -> Iterable[Row]:
    daft = import_module("daft")
    rows = daft.read_deltalake(uri)
    return (rows if where is None else rows.where(_OPS[where[1]](daft.col(where[0]), daft.lit(where[2])))).to_pylist()  # type: ignore[no-any-return]


def _spark(uri: str, where: Where | None) -> Iterable[Row]:
    session = SparkSession.getActiveSession()
    assert session is not None
    rows = session.read.format("delta").load(uri)
    return [row.asDict() for row in (rows if where is None else rows.where(f"`{where[0]}` {where[1]} {literal(where[2])}")).collect()]


def literal(value: Any) -> str:
    """A value in Spark's SQL."""
    if not isinstance(value, datetime.datetime):
        return f"'{value}'"
    kind, text = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ", value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return f"{kind} '{text}{'Z' if value.tzinfo else ''}'"


ENGINES: Mapping[str, tuple[str, Read]] = {
    "pandas {} by deltalake": ("pandas", _pandas),
    "Arrow by deltalake {}": ("deltalake", _arrow),
    "polars {}": ("polars", _polars),
    "DuckDB {} over Arrow": ("duckdb", _duckdb),
    "daft {}": ("daft", _daft),
    "Spark {}": ("pyspark", _spark),
}
"""By the names on the page, with a version: the package, and how it reads."""


def is_installed(engine: str) -> bool:
    """Whether it can be tried here."""
    return find_spec(ENGINES[engine][0]) is not None


_ALL = dict.fromkeys(ENGINES, EXACT)
_BY_FEATURE = dict.fromkeys(ENGINES, REFUSED) | {"Spark {}": EXACT}
_OF_BYTES = dict.fromkeys(ENGINES, BYTES) | {"Spark {}": EXACT}
VERDICTS: Mapping[str, Mapping[str, str]] = {
    "a mirror": _ALL,
    "after ADD COLUMN": _ALL,
    "after RENAME and DROP COLUMN": _ALL,
    'with JSON, `lake-json = "string"`': _ALL,
    'with JSON, `lake-json = "variant"`': _OF_BYTES,
    "above 1 GiB": _BY_FEATURE | {"polars {}": EXACT},
    "above 1 GiB, after RENAME and DROP COLUMN": _BY_FEATURE,
    "of an earlier build": _BY_FEATURE | {"daft {}": EXACT},
    "the ledger, `changes`": _OF_BYTES,
}
"""What each engine makes of each kind of table."""


def verdict(engine: str, uri: str, wanted: list[Row]) -> str:
    """What an engine makes of a table that has the rows ``wanted``. Fewer rows or other values fail, also where an engine has NULL."""
    try:
        rows = list(ENGINES[engine][1](uri, None))
    except Exception as error:
        assert _REFUSALS.search(str(error)), error
        return REFUSED
    found = [{name: _plain(name, cell) for name, cell in row.items() if name in wanted[0]} for row in rows]
    assert sorted(found, key=repr) == sorted(wanted, key=repr), engine
    return BYTES if any(isinstance(cell, dict) for row in rows for cell in row.values()) else EXACT


def document(value: Any) -> Any:
    """A JSON document among ``wanted``: none is NULL."""
    return "document", repr(value)


def _plain(name: str, cell: Any) -> Any:
    """A cell as ``wanted`` has it. A time with a zone is in ``stamp`` only, and documents are in ``doc`` and ``after`` only."""
    match cell:
        case VariantVal():
            return document(cell.toPython())
        case {"value": value, "metadata": metadata}:
            return document(VariantVal(value, metadata).toPython())
        case str() if name == "doc":
            return document(json.loads(cell))
        case bytearray():
            return bytes(cell)
    if pd.isna(cell):
        return None
    if isinstance(cell, pd.Timestamp):
        cell = cell.to_pydatetime()
    return cell.astimezone(datetime.UTC) if name == "stamp" else cell


# The page.


def page() -> str:
    """``docs/engines.md``."""
    versions = {**_pinned(), "daft": DAFT}
    head = ["a table", *(name.format(versions[package]) for name, (package, _) in ENGINES.items())]
    rows = [[kind, *(of[engine] for engine in ENGINES)] for kind, of in VERDICTS.items()]
    table = [head, ["---"] * len(head), *rows]
    return _TEXT.format(table="\n".join(f"| {' | '.join(row)} |" for row in table), deltalake=versions["deltalake"])


def _pinned() -> dict[str, str]:
    lines = "\n".join((ROOT / name).read_text() for name in ("requirements.txt", "requirements-dev.txt"))
    return dict(re.findall(r"^([\w-]+)==(\S+)$", lines, re.M))


_TEXT = """\
# Which engine reads what

Made by `make engines` from `tests/support/engines.py`; a test tries each cell but those of daft, which asks for an older pyarrow.

The tables of [a lake](lake.md) are Delta tables. `lake.versions()` names the path and the version of each table at one moment: open these, not the newest versions. A version has what was committed up to its `complete_ts`: without Spark that is the moment that you have.

{table}

- **exact**: all rows, each value as upstream. pandas makes floats of integers in a column with NULLs.
- **bytes**: all rows; a VARIANT is its two parts, `value` and `metadata`, as the Parquet format has them. All other columns are exact.
- **refused**: an error that names the feature. No engine has NULLs or fewer rows.

deltalake {deltalake} opens each table for pandas, Arrow and DuckDB:

    import duckdb, polars
    from deltalake import DeltaTable

    table = DeltaTable("/data/lake/tables/112-5f0c7e1a", version=17)
    table.to_pandas()                                                    # pandas
    table.to_pyarrow_table()                                             # Arrow
    polars.scan_delta("/data/lake/tables/112-5f0c7e1a", version=17)      # polars
    orders = table.to_pyarrow_dataset(); duckdb.sql("FROM orders")       # DuckDB

A mirror has the columns in the order in which they came. That of a table without a clustered key has `_tidb_rowid`, too. Filters on any column give what a full scan gives, also on times with microseconds, whose
statistics have milliseconds: in any time zone of Spark, and with any `timeParserPolicy`.
"""

if __name__ == "__main__":
    PAGE.write_text(page())
