"""Ranges of a table's handle, and the statements that read them in order. Pure.

Promises: the ranges of a table are disjoint and cover the table, whatever their boundaries are. Within a range, each read begins after the last key of
the read before, so every row is read once. Keys are literals as text. A handle has one column, or several that are compared in order, as
TiDB compares a clustered key.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.mysql.literals import LiteralForm

Key = tuple[bytes, ...]
"""A literal for each column of the handle; empty: none."""


@dataclass(frozen=True, slots=True)
class Handle:
    """The columns by which a table is read in order."""

    names: tuple[str, ...]
    """Quoted."""
    expressions: tuple[str, ...]
    """What is asked for to know their values."""
    forms: tuple[LiteralForm, ...]
    integer: bool
    """Whether it is one column of integers."""

    @property
    def collated(self) -> bool:
        """Whether a server may take two different keys for equal in a column that is not the last."""
        return LiteralForm.TEXT in self.forms[:-1]


MOST_RANGES = 256
"""Ranges of one table or partition, at most."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows from ``begin``, inclusive, to ``end``, exclusive; an empty key is no bound."""

    partition: str = ""
    """The partition that is read; empty = the table has none."""
    begin: Key = ()
    end: Key = ()

    def to_json(self) -> str:
        """The text that is stored."""
        return json.dumps([self.partition, _shown(self.begin), _shown(self.end)], ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of ``to_json``."""
        partition, begin, end = json.loads(text)
        return cls(partition, _read(begin), _read(end))


def key_to_json(key: Key) -> str:
    """The text that is stored."""
    return json.dumps(_shown(key))


def key_from_json(text: str | None) -> Key:
    """Inverse of ``key_to_json``; None: the empty key."""
    return _read(json.loads(text)) if text else ()


def _shown(key: Key) -> list[str]:
    return [literal.decode("latin-1") for literal in key]


def _read(literals: Sequence[str]) -> Key:
    return tuple(literal.encode("latin-1") for literal in literals)


def ranges_between(boundaries: Sequence[Key], partition: str = "") -> tuple[KeyRange, ...]:
    """The ranges that ascending ``boundaries`` make, at most ``MOST_RANGES``; the first and the last are open."""
    distinct = list(dict.fromkeys(boundaries))
    each = -(-(len(distinct) + 1) // MOST_RANGES)
    chosen = distinct[each - 1 :: each]
    return tuple(KeyRange(partition, begin, end) for begin, end in zip(((), *chosen), (*chosen, ()), strict=True))


def even_boundaries(lowest: int, highest: int, count: int) -> list[Key]:
    """At most ``count`` - 1 integers that divide lowest..highest evenly."""
    span = highest - lowest + 1
    found = sorted({lowest + span * i // count for i in range(1, count)} - {lowest})
    return [(str(number).encode(),) for number in found]


def chunk_sql(table: str, expressions: Sequence[str], handle: Handle, within: KeyRange, after: Key, limit: int) -> bytes:
    """The next rows of a range in the order of its handle: their values, then the handle's.

    Args:
        table: quoted, with its database.
        expressions: what is read of each column.
        handle: by which the table is read.
        within: the range.
        after: the last key that was read; empty = none.
        limit: rows, at most.
    """
    part = f" PARTITION ({quote_name(within.partition)})" if within.partition else ""
    head = f"SELECT {', '.join([*expressions, *handle.expressions])} FROM {table}{part}".encode()
    return head + where_sql(handle, within, after) + f" ORDER BY {', '.join(handle.names)} LIMIT {limit}".encode()


def where_sql(handle: Handle, within: KeyRange, after: Key = ()) -> bytes:
    """The condition that the rows of a range satisfy, behind ``after`` if it is not empty."""
    arms = _arms(handle, after or within.begin, b">" if after else b">=", within.end)
    return b" WHERE " + b" OR ".join(arms) if arms else b""


def _arms(handle: Handle, low: Key, sign: bytes, high: Key) -> list[bytes]:
    """Conditions; each key from ``low`` to ``high`` satisfies one of them. Each condition is a range of the index: some columns are equal, the next column is
    between bounds. In a conjunction of disjunctions TiDB finds no such ranges, and would read the first column's values from their beginning.
    """
    names = [name.encode() for name in handle.names]
    if not low or not high:
        return [_all(arm) for arm in (_beyond(names, low, sign) if low else _beyond(names, high, b"<") if high else [])]
    same = 0
    while same < len(names) - 1 and low[same] == high[same]:
        same += 1
    equal = [names[i] + b" = " + low[i] for i in range(same)]
    if same == len(names) - 1:
        return [_all([*equal, names[same] + b" " + sign + b" " + low[same], names[same] + b" < " + high[same]])]
    above, below = _beyond(names[same:], low[same:], sign), _beyond(names[same:], high[same:], b"<")
    # Texts that differ may be equal to the server: then each bound holds for the rows at the other one, too.
    under = [b"(" + b" OR ".join(map(_all, below)) + b")"] if handle.collated else []
    over = [b"(" + b" OR ".join(map(_all, above)) + b")"] if handle.collated else []
    between = [[*equal, *above[0], *below[0]]]
    between += [[*equal, *arm, *under] for arm in above[1:]] + [[*equal, *arm, *over] for arm in below[1:]]
    return list(map(_all, between))


def _beyond(names: Sequence[bytes], key: Key, sign: bytes) -> list[list[bytes]]:
    """(a, b) >= (x, y) as a > x, or a = x and b >= y: the conditions of each arm."""
    last = len(names) - 1
    return [
        [*(names[j] + b" = " + key[j] for j in range(i)), names[i] + b" " + (sign if i == last else sign[:1]) + b" " + key[i]]
        for i in range(len(names))
    ]


def _all(conditions: Sequence[bytes]) -> bytes:
    return conditions[0] if len(conditions) == 1 else b"(" + b" AND ".join(conditions) + b")"
