"""Ranges of a table's handle, and the statements that read them in order. Pure.

Promises: the ranges of a table are disjoint and leave nothing out, whatever their boundaries are; within one, a read that goes on behind the last
key of the one before returns every row once. Keys are literals as text; a handle has one column or several (compared one after the other, as
TiDB does for a clustered key).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name

Key = tuple[bytes, ...]
"""A literal for each column of the handle; empty: none."""

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
        """As it is stored."""
        return json.dumps([self.partition, _shown(self.begin), _shown(self.end)], ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of ``to_json``."""
        partition, begin, end = json.loads(text)
        return cls(partition, _read(begin), _read(end))


def key_to_json(key: Key) -> str:
    """As it is stored."""
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


def chunk_sql(table: str, expressions: Sequence[str], handle: Sequence[str], within: KeyRange, after: Key, limit: int) -> bytes:
    """The next rows of a range in the order of its handle: their values, then the handle's.

    Args:
        table: quoted, with its database.
        expressions: what is read of each column.
        handle: quoted names of the handle's columns.
        within: the range.
        after: the last key that was read; empty = none.
        limit: rows, at most.
    """
    part = f" PARTITION ({quote_name(within.partition)})" if within.partition else ""
    head = f"SELECT {', '.join(expressions)} FROM {table}{part}".encode()
    names = [name.encode() for name in handle]
    conditions = [_beyond(names, after, b">")] if after else [_beyond(names, within.begin, b">=")] if within.begin else []
    if within.end:
        conditions.append(_beyond(names, within.end, b"<"))
    where = b" WHERE " + b" AND ".join(conditions) if conditions else b""
    return head + where + f" ORDER BY {', '.join(handle)} LIMIT {limit}".encode()


def _beyond(names: Sequence[bytes], key: Key, sign: bytes) -> bytes:
    """(a, b) > (x, y) as a > x OR (a = x AND b > y), which every server evaluates by the index, and with AND the first column's bound alone."""
    if len(names) == 1:
        return names[0] + b" " + sign + b" " + key[0]
    strict = sign[:1]
    arms = []
    for i in range(len(names)):
        same = [names[j] + b" = " + key[j] for j in range(i)]
        last = sign if i == len(names) - 1 else strict
        arms.append(b"(" + b" AND ".join([*same, names[i] + b" " + last + b" " + key[i]]) + b")")
    return names[0] + b" " + strict + b"= " + key[0] + b" AND (" + b" OR ".join(arms) + b")"
