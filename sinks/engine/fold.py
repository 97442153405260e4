"""Reduces the row events of one span to the net change of each row, and assigns rows to parts.

Promises: pure; the order of the input events does not matter; no Python loop over rows.
Rules: a row is (table_id, key). Its events are ordered by (commit_ts, seq). It existed before the span unless its first event
is an INSERT, and exists after it unless its last event is a DELETE. The first event then holds the old image, the last one
the new image; events between them are dropped.

A condition may hide a row before its event, after it, both or neither (``HiddenRows``). A hidden row counts as a row that does not exist, so an UPDATE
that crosses the condition becomes an INSERT or a DELETE at the target.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.events import Op

Indexes = np.ndarray[Any, np.dtype[np.int64]]
"""Row numbers in the folded events table."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""Which of some rows are chosen."""
BEFORE, AFTER = "hidden_before", "hidden_after"
"""Columns beside those of ``ROW_EVENT``, both or none: whether the row is hidden then."""

HIDDEN = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("half", pa.int32(), nullable=False),
    ]
)
"""A hidden image of the event (commit_ts, seq). ``half``: ``row_layout.Half``, 0 = before it, 1 = after it."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The net changes of one table, as row numbers of the folded events; each array in (commit_ts, seq) order of its rows' first events."""

    table_id: int
    removed: Indexes
    """Events with the old image of rows that existed before the span and do not exist after it."""
    before: Indexes
    """Events with the old image of rows that existed before and exist after; paired with ``after``."""
    after: Indexes
    """Events with the new image of those rows."""
    added: Indexes
    """Events with the new image of rows that did not exist before."""


def fold(events: pa.Table, reborn: Collection[int] = ()) -> list[TableChanges]:
    """Return the net changes of ``events`` by table, ascending by table id.

    ``events``: ``ROW_EVENT`` columns and ``key`` (binary), INSERT, UPDATE and DELETE only.

    A row that is deleted and inserted again is kept. In the tables ``reborn`` (ids) the row is removed, and another row with its key is added.
    Only ``commit_ts``, ``seq``, ``op``, ``table_id`` and ``key`` are used, and where conditions hide rows ``BEFORE`` and ``AFTER``.
    """
    if events.num_rows == 0:
        return []
    order, tables, table_codes, codes = _in_order(events)
    ops = events["op"].to_numpy()[order]
    first, last = _ends(codes)
    existed, exists = ops[first] != Op.INSERT, ops[last] != Op.DELETE
    if BEFORE in events.column_names:
        existed &= ~events[BEFORE].to_numpy()[order][first]
        exists &= ~events[AFTER].to_numpy()[order][last]
    table_of = table_codes[first]
    again = _reborn(ops, codes, first) if reborn else None
    changes = []
    for code, table_id in enumerate(tables.tolist()):
        here = table_of == code
        gone, kept, new = here & existed & ~exists, here & existed & exists, here & ~existed & exists
        if again is not None and table_id in reborn:
            gone, kept, new = gone | kept & again, kept & ~again, new | kept & again
        changes.append(TableChanges(table_id, order[first[gone]], order[first[kept]], order[last[kept]], order[last[new]]))
    return changes


def ends_of(events: pa.Table) -> Mask:
    """Mask of the ``events`` (as for ``fold``) that are a row's first or last one: their net changes equal those of all events."""
    mask = np.zeros(events.num_rows, dtype=bool)
    if events.num_rows:
        order, _, _, codes = _in_order(events)
        for places in _ends(codes):
            mask[order[places]] = True
    return mask


def first_events(events: pa.Table) -> Indexes:
    """Return for each of ``events`` (as for ``fold``) the number of the first event of its row."""
    numbers = np.zeros(events.num_rows, dtype=np.int64)
    if events.num_rows:
        order, _, _, codes = _in_order(events)
        _, first, row_of = np.unique(codes, return_index=True, return_inverse=True)
        numbers[order] = order[first[row_of]]
    return numbers


def _reborn(ops: Indexes, codes: Indexes, first: Indexes) -> Mask:
    """Return which of the rows whose first events are at ``first`` a later event inserts."""
    inserted = ops == Op.INSERT
    inserted[first] = False
    mask: Mask = np.isin(codes[first], codes[inserted])
    return mask


def part_numbers(
    table_ids: Indexes,
    keys: pa.BinaryArray,
    keyless: Mask,
    parts: int,
    neighbours: Mask | None = None,
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The part, 0 to ``parts - 1``, that each row belongs to; all rows of a keyless table are in one part.

    ``neighbours``: the rows whose handle is an integer; their keys are the handle as 8 bytes, big-endian. A block of them is in one part: two
    connections that insert alternating keys into the same pages of a target's index take a third longer.

    The hash must never change, since a restart must find the rows of an unfinished part again. All arithmetic is modulo 2**64:
    ``h = mix(table_id)``; for each 8 key bytes as a little-endian word, the last one padded with zeros, ``h = mix(h ^ word)``;
    ``h = mix(h ^ length)``; part = ``h % parts``. A keyless row stops after the table id. Of ``neighbours`` the low 10 bits of the
    handle count as zeros: a block has 1,024 of them.
    ``mix(x)``: ``x += G; x ^= x >> 30; x *= A; x ^= x >> 27; x *= B; x ^= x >> 31`` (splitmix64).
    """
    hashes = _mix(np.ascontiguousarray(table_ids, dtype=np.int64).view(np.uint64))
    rows = np.flatnonzero(~keyless)
    starts, lengths, data = _binary_parts(keys)
    if len(rows):
        first = np.full(len(rows), _WHOLE) if neighbours is None else np.where(neighbours[rows], _BLOCK, _WHOLE)
        hashes[rows] = _hash_bytes(hashes[rows], starts[rows], lengths[rows], data, first)
    return np.asarray(hashes % np.uint64(parts), dtype=np.int32)


def subset_numbers(table_ids: Indexes, keys: pa.BinaryArray, sizes: Indexes, count: int) -> Indexes:
    """The subset, 0 to ``count``, that each row belongs to: equal for equal (table, key), and each with about as many of the bytes ``sizes``.

    Rows that are neighbours in the order of tables and keys are in one subset, as in a table's index. If a subset took rows from
    everywhere, the target would split the pages that the subset before it filled. Rows whose keys begin with the same 8 bytes count as one
    place in that order. If such a place is bigger than a subset, its rows are spread by their hash.
    """
    starts, lengths, data = _binary_parts(keys)
    heads = (_words(data)[starts] & _ONLY[np.minimum(lengths, 8)]).byteswap()
    order = np.lexsort((heads, table_ids))
    begins = np.diff(table_ids[order], prepend=-1) != 0
    begins |= np.diff(heads[order], prepend=np.uint64(0)) != 0
    begins[:1] = True
    ends = np.cumsum(sizes[order])
    total = int(ends[-1]) if len(ends) else 0
    before = (ends - sizes[order])[begins]
    pieces = -(-np.diff(before, append=total) * count // max(total, 1))
    place = np.cumsum(begins) - 1
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = (before * count // max(total, 1))[place]
    if bool((pieces > 1).any()):
        # A part is a remainder of the same hash, so use its higher bits, which are independent of that.
        spread = part_numbers(table_ids, keys, np.zeros(len(keys), np.bool_), 1 << 30) >> 12
        numbers[order] += spread[order] % np.maximum(pieces, 1)[place]
    return numbers


def mixed_in(hashes: Any, values: pa.BinaryArray) -> Any:
    """``hashes``, a uint64 for each row, with the bytes of each row's value mixed in: another value, or another order of values, is another hash.

    It shares the arithmetic of ``part_numbers``. These hashes are not kept, so that they alone would not need it to stay as it is.
    """
    starts, lengths, data = _binary_parts(values)
    return _hash_bytes(hashes.copy(), starts, lengths, data, np.full(len(values), _WHOLE))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_WHOLE = np.uint64(0xFFFFFFFFFFFFFFFF)
_BLOCK = np.uint64(0x00FCFFFFFFFFFFFF)
"""Which bits of an integer handle's key, a little-endian word of big-endian bytes, count."""

_ONLY = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)
"""Masks of the first 0 to 8 bytes of a little-endian word."""


def _mix(x: Any) -> Any:
    x = x + _GOLDEN
    x ^= x >> np.uint64(30)
    x *= _MIX_A
    x ^= x >> np.uint64(27)
    x *= _MIX_B
    x ^= x >> np.uint64(31)
    return x


def _hash_bytes(hashes: Any, starts: Any, lengths: Any, data: Any, first: Any) -> Any:
    """Mix the bytes of each row into its hash, one 8-byte word at a time for all rows; ``first``: which bits of the first word count."""
    all_words = _words(data)
    active = np.flatnonzero(lengths)
    word = 0
    while len(active):
        left = np.minimum(lengths[active] - word, 8)
        words = all_words[starts[active] + word] & _ONLY[left]
        if word == 0:
            words &= first[active]
        hashes[active] = _mix(hashes[active] ^ words)
        word += 8
        active = active[lengths[active] > word]
    return _mix(hashes ^ lengths.astype(np.uint64))


def _words(data: Any) -> Any:
    """For each byte position the little-endian word that begins there, zero-padded at the end; an unaligned view."""
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    return np.lib.stride_tricks.as_strided(padded[:8].view("<u8"), shape=(len(data) + 1,), strides=(1,), writeable=False)


def _binary_parts(keys: pa.BinaryArray) -> tuple[Any, Any, Any]:
    """Start offset and length of each value, and the bytes they point into."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    return offsets[:-1], np.diff(offsets), data


def _in_order(events: pa.Table) -> tuple[Indexes, Indexes, Indexes, Indexes]:
    """Row numbers in execution order, the ids of the tables, and in that order the place of each event's table among them and its row's number."""
    order = _event_order(events["commit_ts"].to_numpy(), events["seq"].to_numpy())
    tables, table_codes = np.unique(events["table_id"].to_numpy()[order], return_inverse=True)
    codes = _key_codes(events["key"].combine_chunks())[order] * len(tables) + table_codes
    if int(codes.max()) > _SPARSE * len(codes):
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return order, tables, table_codes, codes


def _event_order(commit_ts: Indexes, seq: Indexes) -> Indexes:
    """Row numbers in execution order; events are usually ordered already, which one comparison detects."""
    steps = np.diff(commit_ts)
    if bool(np.all((steps > 0) | ((steps == 0) & (np.diff(seq) > 0)))):
        return np.arange(len(commit_ts), dtype=np.int64)
    return np.lexsort((seq, commit_ts)).astype(np.int64)


def _key_codes(keys: pa.BinaryArray) -> Indexes:
    """A number for each key, equal for equal keys."""
    starts, lengths, data = _binary_parts(keys)
    if bool((lengths == 8).all()):
        # The usual key is one integer; this is four times as fast as hashing bytes.
        words = data[starts[0] : starts[0] + 8 * len(keys)].view(np.uint64)
        return np.unique(words, return_inverse=True)[1].astype(np.int64)
    codes: Indexes = pc.dictionary_encode(keys).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


_SPARSE = 8
"""If the largest code exceeds this multiple of the number of events, codes are renumbered (by sorting) to keep ``_ends``'s arrays small."""


def _ends(codes: Indexes) -> tuple[Indexes, Indexes]:
    """Position of the first and the last event of each row, rows in the order of their first events."""
    size = int(codes.max()) + 1
    positions = np.arange(len(codes), dtype=np.int64)
    first = np.full(size, -1, dtype=np.int64)
    last = np.full(size, -1, dtype=np.int64)
    # With repeated indexes numpy keeps the value assigned last, so assigning in reverse order leaves the first position.
    first[codes[::-1]] = positions[::-1]
    last[codes] = positions
    seen = np.flatnonzero(first >= 0)
    seen = seen[np.argsort(first[seen], kind="stable")]
    return first[seen], last[seen]


@dataclass(frozen=True, slots=True, eq=False)
class HiddenRows:
    """The hidden images of a step; 8 bytes each. Picklable: every part has all of them, so a lookup must not cost as much as they are many."""

    times: Indexes
    """The commit_ts with hidden images, ascending."""
    before: Indexes
    """Events whose row before them is hidden: place among ``times`` and ``seq`` in one number, ascending."""
    after: Indexes
    """Events whose row after them is hidden, likewise."""

    @classmethod
    def of(cls, images: pa.Table) -> Self:
        """Index ``images`` (``HIDDEN``, in any order)."""
        times = np.unique(images.column("commit_ts").to_numpy())
        codes, half = _codes(images, times), images.column("half").to_numpy()
        return cls(times, np.sort(codes[half == 0]), np.sort(codes[half == 1]))


def marked(rows: pa.Table, hidden: HiddenRows) -> pa.Table:
    """Return ``rows`` (with the columns of ``ROW_EVENT``) with ``BEFORE`` and ``AFTER``."""
    codes = _codes(rows, hidden.times)
    return rows.append_column(BEFORE, pa.array(_among(codes, hidden.before))).append_column(AFTER, pa.array(_among(codes, hidden.after)))


def _among(codes: Indexes, hidden: Indexes) -> Any:
    if not len(hidden):
        return np.zeros(len(codes), dtype=np.bool_)
    return hidden[np.minimum(np.searchsorted(hidden, codes), len(hidden) - 1)] == codes


def _codes(rows: pa.Table, times: Indexes) -> Indexes:
    """A number for each event, -1 where its commit_ts is none of ``times``."""
    commit_ts, seq = rows.column("commit_ts").to_numpy(), rows.column("seq").to_numpy().astype(np.int64)
    if not len(times):
        return np.full(len(commit_ts), -1, np.int64)
    place = np.minimum(np.searchsorted(times, commit_ts), len(times) - 1)
    return np.where(times[place] == commit_ts, (place.astype(np.int64) << 32) + seq, -1)
