"""Moves rows whose unique keys change, in tables with columns that only the target has: these columns keep their values. Pure.

    in place    UPDATE t SET every column of the upstream WHERE old key
    in two      SELECT the other columns WHERE old key FOR UPDATE, DELETE WHERE old key  ..  INSERT with what was read

Rows usually move in place, where the target has all of them. If another row is in the way (a swap, a cycle, a chain in the wrong order, keys
that only the collation treats as equal), the server refuses the UPDATE. Then all rows of the table leave their places before any of them takes its new place.
A part of a big span always moves in two: its deletes, and the values read with them (``sinks.mysql.kept_columns``), are committed before the first write of
any part. Several rows without a key, which are found by their columns, also move in two: a row that has moved may look like a row that has not.

Promises: the server itself makes the text that is read, as SQL literals, and stores the same values from it again. The text carries the names of
its columns, because a person may change the table before it is written.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import OtherColumn
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Phase, Statement

_NUMBERS = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "decimal", "numeric", "double", "year", "boolean", "bool"}
)
_BYTES = frozenset(
    {
        "binary",
        "varbinary",
        "tinyblob",
        "blob",
        "mediumblob",
        "longblob",
        "vector",
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
_TIMES = frozenset({"date", "datetime", "timestamp", "time"})


@dataclass(frozen=True, slots=True)
class HeldValues:
    """What a row that was taken away held in the columns that only the target has."""

    literals: Mapping[str, str]
    """SQL literals by column, as the columns were named then."""

    @classmethod
    def of(cls, others: Sequence[OtherColumn], text: str) -> "HeldValues":
        """From what ``RowMove.look`` answers about ``others``. No literal has a comma."""
        return cls({other.name: literal for other, literal in zip(others, text.split(","), strict=True)})


@dataclass(frozen=True, slots=True)
class RowMove:
    """One row that gets other unique keys."""

    row: bytes
    """Identifies it among the rows of all tables (``row_hash``)."""
    update: Statement
    """In place."""
    take: Statement
    """Its DELETE."""
    fresh: Statement
    """Its INSERT without the other columns."""
    text: bytes
    """The values of its INSERT with the other columns, without those."""
    others: tuple[OtherColumn, ...]
    """The columns that only the target has."""
    columns: Sequence[str]
    """Those of ``text``."""
    by_key: bool
    """Whether a unique key finds it, and no other row."""

    @property
    def table(self) -> str:
        """`` `db`.`table` ``."""
        return self.update.origin.table

    @property
    def condition(self) -> bytes:
        """What finds it under its old key."""
        return self.take.sql[self.take.begin : int(np.frombuffer(self.take.ends, dtype="<i8")[0])]

    @property
    def look(self) -> bytes:
        """The query for the literals of the other columns, which locks the row."""
        condition = self.take.sql[self.take.begin :]
        return f"SELECT {literals_of(self.others)} FROM {self.table} WHERE ".encode() + condition + b" FOR UPDATE"

    def taken(self, literals: str) -> Statement:
        """``take``, which removes no other row than the one that has ``literals``."""
        if self.by_key:
            return self.take
        same = f"CAST({literals_of(self.others)} AS BINARY) = X'{literals.encode().hex()}' AND ".encode()
        head, condition = self.take.sql[: self.take.begin], self.take.sql[self.take.begin :]
        shift = len(same)
        ends = (np.frombuffer(self.take.ends, dtype="<i8") + shift).astype("<i8").tobytes()
        return replace(self.take, sql=head + same + condition, begin=self.take.begin + shift, ends=ends)

    def put(self, held: HeldValues) -> Statement:
        """Its INSERT with the other columns: those that it had when it was taken away and that the table still has."""
        literals = {name.lower(): literal for name, literal in held.literals.items()}
        written = [other.name for other in self.others if other.name.lower() in literals]
        names = (*self.columns, *written)
        head = f"INSERT INTO {self.table} ({','.join(map(quote_name, names))}) VALUES ".encode()
        row = b",".join((self.text[:-1], *(literals[name.lower()].encode() for name in written))) + b")"
        ends = np.array([len(head) + len(row)], dtype="<i8").tobytes()
        origin = replace(self.fresh.origin, columns=names)
        return replace(self.fresh, sql=head + row, begin=len(head), ends=ends, origin=origin)

    def lost(self, held: HeldValues) -> str:
        """What ``put`` cannot give the row back, in words; empty if nothing."""
        had, has = {name.lower() for name in held.literals}, {other.name.lower() for other in self.others}
        gone = [name for name in held.literals if name.lower() not in has]
        new = [other.name for other in self.others if other.name.lower() not in had]
        words = [f"these were dropped with their values: {', '.join(gone)}"] if gone else []
        words += [f"these are new and have their defaults: {', '.join(new)}"] if new else []
        return f"the columns that only the target has were changed while the row was moved: {'; '.join(words)}" if words else ""


def row_hash(table_id: int, key: bytes) -> bytes:
    """16 bytes that identify a row among those of all tables; ``key``: its identity in its table. Persisted: it must never change."""
    return hashlib.blake2b(table_id.to_bytes(8, "big", signed=True) + key, digest_size=16).digest()


def one_row(shape: Statement, condition: bytes, commit_ts: int) -> Statement:
    """The statement of one row that ``condition`` finds, modelled on ``shape``, whose ``sql`` is everything before it."""
    begin, sql = len(shape.sql), shape.sql + condition
    ends, ts = (np.array([n], dtype="<i8").tobytes() for n in (len(sql), commit_ts))
    phase = Phase.DELETE if shape.effect is Effect.REMOVES else Phase.WRITE
    return replace(shape, sql=sql + b" LIMIT 1", rows=1, phase=phase, commit_ts=ts, begin=begin, ends=ends)


def literals_of(others: Sequence[OtherColumn]) -> str:
    """The expression for the text of all literals; NULL only if it is longer than the server's max_allowed_packet."""
    parts = ", ',', ".join(map(_literal, others))
    return f"CONCAT({parts})"


def _literal(other: OtherColumn) -> str:
    name, quote = quote_name(other.name), "''''"
    if other.kind in _NUMBERS:
        value = f"CAST({name} AS CHAR)"
    elif other.kind == "float":
        # Its own text has fewer digits than the number.
        value = f"CAST(CAST({name} AS DOUBLE) AS CHAR)"
    elif other.kind in ("bit", "enum"):
        # By number: an ENUM may hold 0, which no text means.
        value = f"CAST({name} + 0 AS CHAR)"
    elif other.kind in _BYTES:
        value = f"CONCAT('X', {quote}, HEX({name}), {quote})"
    elif other.kind in _TIMES:
        value = f"CONCAT({quote}, {name}, {quote})"
    else:
        value = f"CONCAT('_utf8mb4 X', {quote}, HEX(CONVERT({name} USING utf8mb4)), {quote})"
    return f"IF({name} IS NULL, 'NULL', {value})"
