"""A row that differs, and the SQL that would make the target's row right. Pure; nothing executes it."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, delete_head, write_head
from pyspark_tidb_binlog.sinks.verify.canonical import equals, literal_of
from pyspark_tidb_binlog.sinks.verify.table_pair import TablePair, TableSide

Row = tuple[bytes | None, ...]
Image = Mapping[str, str]
"""A row for people: a literal by the name of its column."""


class Kind(enum.StrEnum):
    """How a row differs."""

    EXTRA = "only at the target"
    CHANGED = "changed"
    MISSING = "missing at the target"


class RowDifference(Protocol):
    """A row that differs, on whichever target."""

    @property
    def kind(self) -> Kind:
        """How it differs."""

    @property
    def key(self) -> Mapping[str, str]:
        """The row's key, as literals by column; without a key the row."""

    @property
    def changed(self) -> Sequence[str]:
        """The names of the columns that differ."""

    @property
    def images(self) -> tuple[Image | None, Image | None]:
        """The row upstream and at the target, as literals by column; None: there is none."""

    @property
    def times(self) -> int:
        """How many such rows."""

    def sql(self, flavour: Flavour) -> list[str]:
        """The statements that make the row at the target right; none: there is no such statement."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs at a server."""

    pair: TablePair
    wanted: Row | None
    """Upstream; None: there is none."""
    found: Row | None
    """At the target."""
    columns: tuple[int, ...]
    """Places of the columns that differ."""
    times: int = 1
    """How many such rows, in a table without a key."""

    @property
    def kind(self) -> Kind:
        """How it differs."""
        return Kind.EXTRA if self.wanted is None else Kind.MISSING if self.found is None else Kind.CHANGED

    @property
    def key(self) -> dict[str, str]:
        """The row's key, as literals by column; without a key the row."""
        row = self.wanted or self.found or ()
        places = self.pair.key or range(len(row))
        return {self.pair.columns[i].upstream.name: literal_of(self.pair.columns[i].form, row[i]) for i in places}

    @property
    def changed(self) -> Sequence[str]:
        """The names of the columns that differ."""
        return [self.pair.columns[i].upstream.name for i in self.columns]

    @property
    def images(self) -> tuple[Image | None, Image | None]:
        """The row upstream and at the target, as literals by column; None: there is none."""
        return self._image(self.wanted), self._image(self.found)

    def sql(self, flavour: Flavour) -> list[str]:
        """The statements that make the row at the target right."""
        schema, name = self.pair.target_name
        if self.wanted is None:
            assert self.found is not None
            limit = "" if self.pair.key else " LIMIT 1"
            return [delete_head(schema, name).decode() + self._condition(self.found, flavour) + limit] * self.times
        columns = self.pair.columns
        if self.found is None:
            head = write_head(schema, name, [c.target.name for c in columns]).decode()
            values = ", ".join(literal_of(c.form, value) for c, value in zip(columns, self.wanted, strict=True))
            return [f"{head}({values})"] * self.times
        changes = (f"{quote_name(columns[i].target.name)} = {literal_of(columns[i].form, self.wanted[i])}" for i in self.columns)
        return [f"UPDATE {self.pair.target.label} SET {', '.join(changes)} WHERE {self._condition(self.found, flavour)}"]

    def _image(self, row: Row | None) -> Image | None:
        if row is None:
            return None
        return {c.upstream.name: literal_of(c.form, value) for c, value in zip(self.pair.columns, row, strict=True)}

    def _condition(self, row: Row, flavour: Flavour) -> str:
        places = self.pair.key or range(len(row))
        return " AND ".join(_is(self.pair, i, row[i], flavour, keyed=bool(self.pair.key)) for i in places)


def lookup_sql(pair: TablePair, side: TableSide, rows: Sequence[Row]) -> bytes:
    """Read the rows that have the keys of ``rows``."""
    assert side.handle is not None
    forms = [pair.columns[place].form for place in pair.key]
    keys = ([literal_of(form, row[place]) for form, place in zip(forms, pair.key, strict=True)] for row in rows)
    each = (" AND ".join(f"{name} = {value}" for name, value in zip(side.handle.names, key, strict=True)) for key in keys)
    return f"SELECT {', '.join(side.reads)} FROM {side.label} WHERE {' OR '.join(f'({one})' for one in each)}".encode()


def _is(pair: TablePair, place: int, value: bytes | None, flavour: Flavour, *, keyed: bool) -> str:
    column = pair.columns[place]
    literal = literal_of(column.form, value)
    return f"{quote_name(column.target.name)} = {literal}" if keyed else equals(column.target, column.form, literal, flavour)
