"""The rows of a lake's ledger, read without Spark, and what they leave."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import VariantVal

IMAGES = ("key", "before", "after")


def ledger_of(lake: Path | str) -> list[dict[str, Any]]:
    """All rows in their order, images as dicts."""
    table = pa.table(DeltaTable(f"{lake}/changes").scan())
    rows = [{**row, **{name: image(row[name]) for name in IMAGES}} for row in table.to_pylist()]
    return sorted(rows, key=place)


def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["commit_ts"], row["seq"], row["schema_version"]


def image(value: Mapping[str, bytes] | None) -> Any:
    return None if value is None else VariantVal(value["value"], value["metadata"]).toPython()


def net_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The images that are left by ``rows``, in their order, by table; DDLs that empty a table are not looked at."""
    left: dict[tuple[str, bytes], Any] = {}
    for row in rows:
        if row["op"] == "ddl":
            continue
        key = f"{row['database']}.{row['table']}", row["row_key"]
        assert left.pop(key, None) == row["before"], row
        if row["after"] is not None:
            left[key] = row["after"]
    found: dict[str, list[dict[str, Any]]] = {}
    for (table, _), after in left.items():
        found.setdefault(table, []).append(after)
    return found
