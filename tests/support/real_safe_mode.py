"""A model of a real Drainer's safe mode (drainer.md 5.3): each row operation by itself, DELETE by the old row's key, then REPLACE."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.sinks.mysql.session import Session

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row operation: the row before and after it."""

    old: Values | None
    new: Values | None


@dataclass(frozen=True, slots=True)
class PlainTable:
    """What the real loader reads of a table: its columns, and its unique keys, the primary one first."""

    name: str
    columns: Sequence[str]
    keys: Sequence[Sequence[str]] = ()


def replay(session: Session, table: PlainTable, changes: Iterable[RowChange]) -> None:
    """Every operation in safe mode, in one transaction."""
    for change in changes:
        if change.old is not None:
            _delete(session, table, dict(zip(table.columns, change.old, strict=True)))
        if change.new is not None:
            holes = ",".join(["%s"] * len(table.columns))
            session.execute(f"REPLACE INTO {table.name} ({','.join(table.columns)}) VALUES ({holes})", change.new)
    session.commit()


def _delete(session: Session, table: PlainTable, row: dict[str, Any]) -> None:
    key = next((k for k in table.keys if all(row[c] is not None for c in k)), table.columns)
    where = " AND ".join(f"{c} IS NULL" if row[c] is None else f"{c} = %s" for c in key)
    session.execute(f"DELETE FROM {table.name} WHERE {where} LIMIT 1", [row[c] for c in key if row[c] is not None])
