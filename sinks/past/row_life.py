"""The life of a row: its changes under one key after the other. Pure.

    insert 42, update 42, (delete 42, insert 43), update 43, delete 43       of which the pair is an update of the key

TiDB writes an UPDATE of the key as a delete and an insert. A delete that is directly followed by an insert into the same table, of another key, is taken for such
a pair if at least half of the columns that are in no key are the same, or if there are none.

Promises: the life of a key are all rows that were ever under it, each with what it was before under other keys, and what it became.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Place = tuple[int, int]
"""commit_ts and seq: where a change is in the stream."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a row."""

    place: Place
    key: bytes
    """The row's handle."""
    op: str
    table_id: int = 0


@dataclass(frozen=True, slots=True)
class KeyMove:
    """A row got another key."""

    before: RowChange
    """The delete."""
    after: RowChange
    """The insert."""


def is_move(before: Mapping[str, Any], after: Mapping[str, Any], key: Collection[str]) -> bool:
    """Whether a deleted row and the one inserted next are the same; ``key``: the columns of unique keys."""
    others = [name for name in before if name not in key and name in after]
    alike = sum(1 for name in others if before[name] == after[name])
    return 2 * alike >= len(others)


def moves_among(changes: Sequence[RowChange], same_row: Callable[[RowChange, RowChange], bool]) -> list[KeyMove]:
    """The moves among the changes of whole transactions, in their order."""
    pairs = [
        KeyMove(one, two)
        for one, two in pairwise(changes)
        if (one.op, two.op) == ("delete", "insert")
        and one.place[0] == two.place[0]
        and one.place[1] + 1 == two.place[1]
        and one.table_id == two.table_id
        and one.key != two.key
    ]
    return [pair for pair in pairs if same_row(pair.before, pair.after)]


def segments(changes: Sequence[RowChange]) -> Iterator[list[RowChange]]:
    """The changes of one key, in their order, row by row: each begins with an insert, or with the ledger, and ends with a delete, or not yet."""
    held: list[RowChange] = []
    for change in changes:
        if change.op == "insert" and held:
            yield held
            held = []
        held.append(change)
        if change.op == "delete":
            yield held
            held = []
    if held:
        yield held


def life(
    keys: Collection[bytes],
    changes_of: Callable[[Collection[bytes]], Sequence[RowChange]],
    moves_of: Callable[[Collection[int]], Sequence[KeyMove]],
) -> list[Place]:
    """Where the changes of the rows under ``keys`` are.

    Args:
        keys: the handles.
        changes_of: all changes under some handles, in order.
        moves_of: the moves in some transactions.
    """
    found: set[Place] = set()
    known: dict[bytes, list[list[RowChange]]] = {}
    fresh = [segment for rows in _by_key(changes_of(keys)).values() for segment in segments(rows)]
    while fresh:
        found |= {change.place for segment in fresh for change in segment}
        firsts, lasts = {s[0].place for s in fresh if s[0].op == "insert"}, {s[-1].place for s in fresh if s[-1].op == "delete"}
        moves = moves_of({place[0] for place in firsts | lasts}) if firsts | lasts else []
        wanted = [move.after for move in moves if move.before.place in lasts and move.after.place not in found]
        wanted += [move.before for move in moves if move.after.place in firsts and move.before.place not in found]
        missing = {change.key for change in wanted} - known.keys()
        known |= {key: list(segments(rows)) for key, rows in _by_key(changes_of(missing)).items()} if missing else {}
        fresh = [s for change in wanted for s in known[change.key] if any(one.place == change.place for one in s)]
    return sorted(found)


def _by_key(changes: Sequence[RowChange]) -> dict[bytes, list[RowChange]]:
    found: dict[bytes, list[RowChange]] = {}
    for change in changes:
        found.setdefault(change.key, []).append(change)
    return found
