"""The rows that come out when messages of either format are applied in their order: what a consumer of them has."""

from collections.abc import Iterable
from typing import Any

from pyspark_tidb_binlog.schemas.codec.cursor import Cursor
from pyspark_tidb_binlog.schemas.codec.datum import as_integer, take_datum
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave

Row = tuple[int, ...]


def rows_of_pb(payloads: Iterable[bytes]) -> list[Row]:
    """Of tables with integer columns only. Fails where an event does not fit the rows, as it would the second time."""
    rows: list[Row] = []
    for payload in payloads:
        for event in pb.Binlog.FromString(payload).dml_data.events:
            columns = [pb.column.FromString(c) for c in event.row]
            old, new = (tuple(_integer(getattr(c, f)) for c in columns if getattr(c, f)) for f in ("value", "changed_value"))
            _apply(rows, event.tp, new if event.tp == pb.Update else old, old)
    return sorted(rows)


def rows_of_secondary(payloads: Iterable[bytes]) -> list[Row]:
    """Of tables with integer columns only; as ``rows_of_pb``."""
    rows: list[Row] = []
    for payload in payloads:
        for table in slave.Binlog.FromString(payload).dml_data.tables:
            for mutation in table.mutations:
                new, old = (tuple(c.int64_value for c in row.columns) for row in (mutation.row, mutation.change_row))
                _apply(rows, mutation.type, new, old if mutation.type == slave.Update else new)
    return sorted(rows)


def _apply(rows: list[Row], kind: Any, new: Row, old: Row) -> None:
    """``kind``: both formats number their kinds of changes alike."""
    if kind != pb.Insert:
        rows.remove(old)
    if kind != pb.Delete:
        assert new not in rows
        rows.append(new)


def _integer(raw: bytes) -> int:
    return as_integer(take_datum(Cursor(raw)))
