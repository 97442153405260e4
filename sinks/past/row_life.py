"""The life of a row: its changes under one key after the other. Pure.

    insert 42, update 42, (delete 42, insert 43), update 43, delete 43       of which the pair is an update of the key (``net_rows.key_moves``)

Promises: the life of a key are all rows that were ever under it, each with what it was before under other keys, and what it became.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

Place = tuple[int, int]
"""commit_ts and seq: where a change is in the stream."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a row; ``key``: its handle."""

    place: Place
    key: bytes
    op: str


Move = tuple[RowChange, RowChange]
"""The delete and the insert by which a row got another key."""


def life(
    keys: Collection[bytes],
    changes_of: Callable[[Collection[bytes]], Iterable[RowChange]],
    moves_of: Callable[[Collection[int]], Iterable[Move]],
) -> set[Place]:
    """Where the changes of the rows under ``keys`` are.

    Args:
        keys: the handles.
        changes_of: all changes under some handles, in order.
        moves_of: the moves in some transactions, by commit_ts.
    """
    found, known = set[Place](), _rows_by_key(changes_of(keys))
    fresh = [row for rows in known.values() for row in rows]
    while fresh:
        found |= {change.place for row in fresh for change in row}
        times = {change.place[0] for row in fresh for change in (row[0], row[-1]) if change.op != "update"}
        pairs = [pair for before, after in (moves_of(times) if times else ()) for pair in ((before, after), (after, before))]
        wanted = [other for one, other in pairs if one.place in found and other.place not in found]
        missing = {change.key for change in wanted} - known.keys()
        known |= _rows_by_key(changes_of(missing)) if missing else {}
        fresh = [row for change in wanted for row in known[change.key] if change in row]
    return found


def _rows_by_key(changes: Iterable[RowChange]) -> dict[bytes, list[list[RowChange]]]:
    """The changes of each key, in their order, row by row: a row begins with an insert, or with the ledger, and ends with a delete, or not yet."""
    found: dict[bytes, list[list[RowChange]]] = {}
    for change in changes:
        rows = found.setdefault(change.key, [])
        if not rows or change.op == "insert" or rows[-1][-1].op == "delete":
            rows.append([])
        rows[-1].append(change)
    return found
