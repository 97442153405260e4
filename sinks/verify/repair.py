"""Rows that differ, and the SQL that makes the target's rows right. Pure; ``repairing`` executes it."""

import datetime
import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, delete_head, write_head
from pyspark_tidb_binlog.sinks.verify.canonical import canonical, equals, is_large, literal_of
from pyspark_tidb_binlog.sinks.verify.table_pair import TablePair, TableSide

Row = tuple[bytes | None, ...]
Image = Mapping[str, str]
"""A row for people: a literal by the name of its column."""
Values = Mapping[str, Any]
"""A row before or after a change: values of Python by column."""
_MOMENTS = frozenset({"timestamp", "datetime"})
"""Kinds of columns that may be ``ON UPDATE CURRENT_TIMESTAMP``."""


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
        """The names of the columns that differ, of a row that both sides have."""

    @property
    def images(self) -> tuple[Image | None, Image | None]:
        """The row upstream and at the target, as literals by column; None: there is none."""

    @property
    def times(self) -> int:
        """How many such rows."""

    def sql(self, flavour: Flavour) -> list[str]:
        """The statements that make the row at the target right; none: there is no such statement."""


D = TypeVar("D", bound=RowDifference)


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
    def row(self) -> Row:
        """Upstream's row; the target's where upstream has none."""
        row = self.wanted if self.wanted is not None else self.found
        assert row is not None
        return row

    @property
    def identity(self) -> Row:
        """What the same row has on both sides."""
        return identity_of(self.pair, self.row)

    @property
    def changed(self) -> list[str]:
        """The names of the columns that differ, of a row that both sides have."""
        return [self.pair.columns[place].upstream.name for place in self.columns] if self.kind is Kind.CHANGED else []

    @property
    def key(self) -> dict[str, str]:
        """The row's key, as literals by column; without a key the row."""
        row = self.row
        places = self.pair.key or range(len(row))
        return {self.pair.columns[i].upstream.name: literal_of(self.pair.columns[i].form, row[i]) for i in places}

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
        # A moment that the statement does not name may become the present one.
        moments = [i for i, column in enumerate(columns) if column.target.kind in _MOMENTS and i not in self.columns]
        changes = (
            f"{quote_name(columns[i].target.name)} = {literal_of(columns[i].form, self.wanted[i])}" for i in (*self.columns, *moments)
        )
        return [f"UPDATE {self.pair.target.label} SET {', '.join(changes)} WHERE {self._condition(self.found, flavour)}"]

    def _image(self, row: Row | None) -> Image | None:
        if row is None:
            return None
        return {c.upstream.name: literal_of(c.form, value) for c, value in zip(self.pair.columns, row, strict=True)}

    def _condition(self, row: Row, flavour: Flavour) -> str:
        places = self.pair.key or range(len(row))
        return " AND ".join(_is(self.pair, i, row[i], flavour, keyed=bool(self.pair.key)) for i in places)


def identity_of(pair: TablePair, row: Row) -> Row:
    """The row's key; without a key its canonical form."""
    return tuple(row[place] for place in pair.key) if pair.key else canonical_row(pair, row)


def keys_of(pair: TablePair, images: Iterable[Values]) -> set[Row]:
    """The keys that rows had before and after changes, as ``canonical.read_as`` has their values. A row from before the key's columns were there has none."""
    names = [pair.columns[place].upstream.name.lower() for place in pair.key]
    lowered = ({name.lower(): value for name, value in image.items()} for image in images)
    return {tuple(_text(image[name]) for name in names) for image in lowered if all(image.get(name) is not None for name in names)}


def _text(value: object) -> bytes:
    match value:
        case bytes() | bytearray():
            return bytes(value)
        case datetime.datetime():
            return value.replace(tzinfo=None).isoformat(" ").encode()  # it is in UTC, as the sessions are
        case _:
            return str(value).encode()


def canonical_row(pair: TablePair, row: Row) -> Row:
    """The canonical texts of the row's values."""
    return tuple(canonical(column.form, value) for column, value in zip(pair.columns, row, strict=True))


def differences(pair: TablePair, wanted: Iterable[Row], found: Iterable[Row]) -> list[Difference]:
    """All differences between the rows of the upstream and of the target, those first whose rows are in the way of others."""
    if not pair.key:
        return by_kind(counted(pair, Counter(wanted), Counter(found)))
    there, here = ({identity_of(pair, row): row for row in rows} for rows in (wanted, found))
    each = (compared(pair, there.get(key), here.get(key)) for key in {**there, **here})
    return by_kind(difference for difference in each if difference is not None)


def by_kind(some: Iterable[D]) -> list[D]:
    """Those first whose rows are in the way of others."""
    return sorted(some, key=lambda difference: list(Kind).index(difference.kind))


def compared(pair: TablePair, wanted: Row | None, found: Row | None) -> Difference | None:
    """How the rows of one key differ; None: not at all."""
    if wanted is None or found is None:
        return Difference(pair, wanted, found, tuple(range(len(pair.columns)))) if wanted != found else None
    both = zip(canonical_row(pair, wanted), canonical_row(pair, found), strict=True)
    places = tuple(place for place, (one, other) in enumerate(both) if one != other)
    return Difference(pair, wanted, found, places) if places else None


def counted(pair: TablePair, wanted: Counter[Row], found: Counter[Row]) -> Iterator[Difference]:
    """How the rows of a table without a key differ: each side, and how often it has each row."""
    sides = _by_form(pair, wanted), _by_form(pair, found)
    for form in sorted({*sides[0], *sides[1]}, key=repr):
        there, here = (side.get(form, Counter[Row]()) for side in sides)
        more = there.total() - here.total()
        for row, times in _some(there if more > 0 else here, abs(more)):
            one, other = (row, None) if more > 0 else (None, row)
            yield Difference(pair, one, other, tuple(range(len(pair.columns))), times)


def _by_form(pair: TablePair, rows: Counter[Row]) -> dict[Row, Counter[Row]]:
    """By canonical form: several texts of a document may be one."""
    found = dict[Row, Counter[Row]]()
    for row, times in rows.items():
        found.setdefault(canonical_row(pair, row), Counter())[row] = times
    return found


def _some(rows: Counter[Row], count: int) -> Iterator[tuple[Row, int]]:
    for row, times in rows.items():
        if count <= 0:
            return
        yield row, min(times, count)
        count -= times


def lookup_sql(pair: TablePair, side: TableSide, keys: Collection[Row]) -> bytes:
    """Read the rows that have these keys."""
    assert side.handle is not None
    forms = [pair.columns[place].form for place in pair.key]
    literals = ([literal_of(form, value) for form, value in zip(forms, key, strict=True)] for key in keys)
    each = (" AND ".join(f"{name} = {value}" for name, value in zip(side.handle.names, key, strict=True)) for key in literals)
    return f"SELECT {', '.join(side.reads)} FROM {side.label} WHERE {' OR '.join(f'({one})' for one in each)}".encode()


def alike_sql(pair: TablePair, side: TableSide, rows: Collection[Row], flavour: Flavour) -> bytes:
    """Read the rows that may be equal to ``rows``, and others: what a server cannot compare, or what is large, is left out of the conditions."""
    columns = [(place, p.upstream if side is pair.upstream else p.target) for place, p in enumerate(pair.columns)]
    asked = [(i, c) for i, c in columns if pair.columns[i].form.in_sql and not is_large(c)]
    terms = ([equals(c, pair.columns[i].form, literal_of(pair.columns[i].form, row[i]), flavour) for i, c in asked] for row in rows)
    condition = " OR ".join({f"({' AND '.join(each)})": None for each in terms}) if asked else "TRUE"
    return f"SELECT {', '.join(side.reads)} FROM {side.label} WHERE {condition}".encode()


def _is(pair: TablePair, place: int, value: bytes | None, flavour: Flavour, *, keyed: bool) -> str:
    column = pair.columns[place]
    literal = literal_of(column.form, value)
    return f"{quote_name(column.target.name)} = {literal}" if keyed else equals(column.target, column.form, literal, flavour)
