"""One statement of a plan: its text, its expected effect, and the origin of its rows. Pure.

Promises: comparable and picklable. A statement of many rows can be split into statements of one row each (``cut``), to identify a row
that the target rejects or on which the statement has another effect than expected.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.schemas.history import FoldedKeys
from pyspark_tidb_binlog.sinks.engine.fold import Mask
from pyspark_tidb_binlog.sinks.mysql.literals import text_of

WHERE = b" WHERE "
Ints = np.ndarray[Any, np.dtype[np.int64]]
Noted = tuple[FindingKind, str, Mask]
"""A finding that is known before its rows are written: its kind, its words, and its rows."""


class Phase(enum.StrEnum):
    """When a statement runs: all statements of phase DELETE of a span before its first one of phase WRITE."""

    DELETE = "delete"
    WRITE = "write"


class Effect(enum.StrEnum):
    """The expected effect of a statement on each of its rows."""

    REMOVES = "removes"
    """The row exists and is deleted."""
    ADDS = "adds"
    """Neither the row nor another row with one of its unique keys exists; the row is inserted."""
    RESTORES = "restores"
    """The row was deleted earlier in this span and is inserted as it was. If another row has its key, that row stays and this row is left out."""
    CHANGES = "changes"
    """The row exists with the same unique keys; whatever its other columns hold, it is set to the new image."""
    UPDATES = "updates"
    """The row exists as it was; an UPDATE of its own sets it to the new image, also its unique keys."""
    CLEARS = "clears"
    """Safe mode: a row like this may exist, and is deleted."""
    SETTLES = "settles"
    """Safe mode: whatever has a key of the row, the row is written."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The table and columns that the rows of a statement belong to."""

    table: str
    """`` `db`.`table` `` on the target."""
    schema_version: int
    columns: tuple[str, ...]
    """The columns of the values in a row's text, in order; empty = the text is a condition."""
    key: tuple[str, ...]
    """The columns that identify a row; empty = the table has no unique key."""
    own_keys: tuple[str, ...] = ()
    """See ``TableAt.own_keys``."""
    folded: FoldedKeys | None = None
    """See ``TableAt.folded``."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. ``rows`` is the number of its row images."""

    sql: bytes
    rows: int
    phase: Phase
    effect: Effect
    origin: Origin
    commit_ts: bytes = b""
    """The commit_ts of each row's event: int64, little-endian. A single value = the newest of all rows."""
    begin: int = 0
    """Offset in ``sql`` where the first row's text begins; of an UPDATE the condition."""
    ends: bytes = b""
    """Offsets in ``sql`` where each row's text ends, without ``between``: int64. A single value for several rows = it cannot be split."""
    zero_enums: tuple[tuple[str, bytes], ...] = ()
    """ENUM columns with 0 in some rows, and the numbers of those rows: int64. Servers warn about each."""
    noted: tuple[tuple[FindingKind, str, bytes], ...] = ()
    """Findings that are known before it is sent (``Noted``), and the numbers of their rows: int64."""
    between: bytes = b","
    """What separates the texts of two rows."""
    deprecated: int = 0
    """How often the server warns of its syntax, before it warns of a row."""
    superseded: bool = False
    """Whether the target may have a later structure of the table already, so that values of these rows may not fit (``sinks.mysql.safe_plan``)."""

    @property
    def newest_ts(self) -> int:
        """The commit_ts of the newest transaction among its rows; 0 = unknown."""
        return int(_ints(self.commit_ts).max(initial=0))

    @property
    def single(self) -> bool:
        """Whether it cannot be split any further."""
        return self.rows == 1 or len(self.ends) != 8 * self.rows

    def row_text(self, number: int = 0) -> bytes:
        """The text of one row: its values, or the condition that finds it."""
        begin = int(_ints(self.ends)[number - 1]) + len(self.between) if number else self.begin
        return self.sql[begin : int(_ints(self.ends)[number])]

    def cut(self) -> Iterator["Statement"]:
        """One statement per row, in order; only itself when it cannot be split."""
        if self.single:
            yield self
            return
        head, tail = self.sql[: self.begin], self.sql[int(_ints(self.ends)[-1]) :]
        for number in range(self.rows):
            text = self.row_text(number)
            yield replace(
                self,
                sql=b"".join((head, text, tail)),
                rows=1,
                commit_ts=self.commit_ts[number * 8 : number * 8 + 8],
                ends=np.array([self.begin + len(text)], dtype="<i8").tobytes(),
                zero_enums=tuple((name, bytes(8)) for name, rows in self.zero_enums if number in _ints(rows)),
                noted=tuple((kind, words, bytes(8)) for kind, words, rows in self.noted if number in _ints(rows)),
            )

    def as_replace(self) -> bytes:
        """The same rows as a REPLACE, which deletes conflicting rows; for an INSERT or UPDATE only."""
        if self.effect is Effect.UPDATES:
            return b"REPLACE INTO" + self.sql[len(b"UPDATE") : self.begin - len(WHERE)]
        return self._rows_alone(b"REPLACE")

    def as_delete(self) -> bytes:
        """The statement that deletes the row as it was; for an UPDATE only."""
        return b"DELETE FROM " + self.origin.table.encode() + WHERE + self.sql[self.begin :]

    def as_ignore(self) -> bytes:
        """The same rows as an INSERT IGNORE, which skips rows that conflict with existing ones; for an INSERT only."""
        return self._rows_alone(b"INSERT IGNORE")

    def _rows_alone(self, verb: bytes) -> bytes:
        return verb + self.sql[len(b"INSERT") : int(_ints(self.ends)[-1])]

    def zeros_in(self, column: str) -> int:
        """How many rows have 0 in this ENUM column."""
        return sum(len(rows) // 8 for name, rows in self.zero_enums if name == column)


class Ahead:
    """Statements one after the other, the next of which may be prepared earlier: while the server executes the one before it."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._statements = iter(statements)
        self._next: Statement | None = None
        self._failure: Exception | None = None

    def prepare(self) -> None:
        """Plan the next statement if that is still to be done. An error is raised when the statement is asked for."""
        if self._next is None and self._failure is None:
            try:
                self._next = next(self._statements, None)
            except Exception as error:
                self._failure = error

    def __iter__(self) -> Iterator[Statement]:
        while True:
            self.prepare()
            if self._failure is not None:
                raise self._failure
            if self._next is None:
                return
            statement, self._next = self._next, None
            yield statement


@dataclass(frozen=True, slots=True, eq=False)
class RowTexts:
    """Rows of one table and effect as texts, of which statements are made."""

    shape: Statement
    """What the statements have in common; its ``sql`` is everything before the first row."""
    tail: bytes
    """The text after the last row."""
    rows: pa.BinaryArray
    """A text per row that ends in the shape's ``between``, which is removed from a statement's last row."""
    commit_ts: Ints
    """Of each row."""
    max_rows: int
    """Of a statement."""
    zeros: Sequence[tuple[str, Mask]] = ()
    """ENUM columns and the rows in which they are 0."""
    noted: Sequence[Noted] = ()
    """Findings that are known already."""
    begins: Ints | None = None
    """Where in each text that begins which identifies the row; None: it is the whole text."""

    def split(self, max_bytes: int) -> list[Statement]:
        """Statements of consecutive rows with at most ``max_bytes`` bytes, but at least one row."""
        ends, text = np.cumsum(pc.binary_length(self.rows).to_numpy(), dtype=np.int64), text_of(self.rows)
        head = self.shape.sql
        room, gap = max_bytes - len(head) - len(self.tail), len(self.shape.between)
        found = []
        first = 0
        while first < len(self.rows):
            begin = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, begin + room, side="right"))
            end = min(max(end, first + 1), first + self.max_rows)
            here = slice(first, end)
            found.append(
                replace(
                    self.shape,
                    sql=b"".join((head, text[begin : int(ends[end - 1]) - gap], self.tail)),
                    rows=end - first,
                    commit_ts=self.commit_ts[here].astype("<i8").tobytes(),
                    begin=len(head),
                    ends=(ends[here] - begin - gap + len(head)).astype("<i8").tobytes(),
                    zero_enums=tuple((name, _numbers(mask[here])) for name, mask in self.zeros if mask[here].any()),
                    noted=tuple((kind, words, _numbers(mask[here])) for kind, words, mask in self.noted if mask[here].any()),
                )
            )
            first = end
        return found


def _numbers(mask: Mask) -> bytes:
    return np.flatnonzero(mask).astype("<i8").tobytes()


def _ints(packed: bytes) -> Ints:
    return np.frombuffer(packed, dtype="<i8")


def values_of(row: bytes) -> tuple[bytes, ...]:
    """The literals in one row's text as written by ``sinks.mysql.literals``: ``(1,'it''s',NULL)`` or a single one without parentheses."""
    inner = row[1:-1] if row.startswith(b"(") else row
    found, begin, at, quoted = [], 0, 0, False
    while at < len(inner):
        byte = inner[at]
        if quoted and byte == 0x5C:
            at += 1
        elif byte == 0x27:
            quoted = not quoted
        elif byte == 0x2C and not quoted:
            found.append(inner[begin:at])
            begin = at + 1
        at += 1
    return (*found, inner[begin:])
