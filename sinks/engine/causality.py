"""Decides which row operations may run at the same time: their conflict keys, and the lane and round of each. Pure.

The operations of one lane run in order, on one connection. The lanes of a round run at the same time, after everything of the round before is
committed (a flush). Rules as drainer.md 5.4, except: two groups of one lane need no flush; a unique key with a NULL conflicts with nothing; a new group
goes to the lane that is being filled, so that one connection writes neighbours.

Promises: two operations that do not commute on the target share a key, so they are in one lane in order, or in different rounds. Keys are coarser than
the target's comparison, never finer:

* Text is compared without case, trailing spaces and control characters, and letters that some collation equates count as one. A key column
  with a collation that is not binary is left out of the keys of the whole batch if a value has a character other than ASCII,
  CJK ideographs and Hangul syllables: collations equate only other characters.
* A prefix index is compared by the prefixes. A generated column is left out of a key, because row images do not have it.
* All rows without a unique key that is free of NULL share one key: a search for one of them locks the others.
* A frozen table, or a table whose images lack a column (while a DDL runs), is one key as a whole.
"""

import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN, ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.engine.fold import Indexes, Mask
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, TableOps


class Conflict(enum.StrEnum):
    """What happens to an operation that shares a key with one that is not committed yet."""

    GROUPS = "groups"
    """It joins that one's lane; everything is committed first only if it shares keys with operations of several lanes."""
    OFF = "off"
    """Nothing is detected: the lane follows from the operation's first key. Operations that share another key may be applied in any order."""


@dataclass(frozen=True, slots=True, eq=False)
class OpKeys:
    """The keys of each operation as numbers, equal only for equal keys."""

    begins: Indexes
    """Where the keys of each operation begin in ``numbers``; the last one is their count."""
    numbers: Indexes

    @classmethod
    def of(cls, keys: Sequence[Sequence[int]]) -> "OpKeys":
        """From a list per operation."""
        begins = np.concatenate([[0], np.cumsum([len(k) for k in keys])]).astype(np.int64)
        return cls(begins, np.array([number for k in keys for number in k], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.begins) - 1

    def lists(self) -> list[list[int]]:
        """A list per operation."""
        begins, numbers = self.begins.tolist(), self.numbers.tolist()
        return [numbers[begins[i] : begins[i + 1]] for i in range(len(self))]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Where and when each operation runs, by its place."""

    lanes: Indexes
    rounds: Indexes
    """Ascending from 0; the number of flushes before the operation."""

    @property
    def flushed_before(self) -> list[int]:
        """The places before which there is a flush."""
        return [int(i) + 1 for i in np.flatnonzero(np.diff(self.rounds))]


def schedule(keys: OpKeys, lanes: int, conflict: Conflict = Conflict.GROUPS, run: int = 20) -> Schedule:
    """Place operations on ``lanes`` connections; ``run``: how many new groups go to a lane one after the other."""
    count = len(keys)
    if lanes == 1:
        return Schedule(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    if conflict is Conflict.OFF:
        first = keys.numbers[np.minimum(keys.begins[:-1], max(len(keys.numbers) - 1, 0))] if len(keys.numbers) else np.zeros(count)
        return Schedule((first % lanes).astype(np.int64), np.zeros(count, dtype=np.int64))
    if len(np.unique(keys.numbers)) == len(keys.numbers):
        return Schedule(np.arange(count, dtype=np.int64) // run % lanes, np.zeros(count, dtype=np.int64))
    lane_of: dict[int, int] = {}
    placed: list[int] = []
    rounds: list[int] = []
    number = groups = 0
    for own in keys.lists():
        own_lanes = {lane_of[key] for key in own if key in lane_of}
        if len(own_lanes) > 1:
            number += 1
            lane_of.clear()
            own_lanes.clear()
        if own_lanes:
            (lane,) = own_lanes
        else:
            lane = groups // run % lanes
            groups += 1
        for key in own:
            lane_of[key] = lane
        placed.append(lane)
        rounds.append(number)
    return Schedule(np.array(placed, dtype=np.int64), np.array(rounds, dtype=np.int64))


# The keys of operations.


def keys_of(batch: RowBatch) -> OpKeys:
    """The keys of each operation, those of the row after it first."""
    of_table: dict[tuple[str, str], list[TableOps]] = {}
    for piece in batch.pieces:
        of_table.setdefault((piece.table.schema.lower(), piece.table.name.lower()), []).append(piece)
    keys: list[_Coded] = []
    groups = itertools.count()
    for pieces in of_table.values():
        keys += _table_keys(pieces, groups)
    return _assembled(keys, len(batch))


Part = tuple[ColumnInfo, int]
"""A column of a key, and the length of its prefix."""


@dataclass(frozen=True, slots=True, eq=False)
class _Image:
    """The rows before or after some operations."""

    places: Indexes
    rows: pa.RecordBatch
    before: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Coded:
    """One key of some operations: equal values have equal codes."""

    places: Indexes
    values: pa.BinaryArray
    before: bool
    group: int
    """Values of different groups are different keys."""


def _table_keys(pieces: Sequence[TableOps], group: Iterator[int]) -> Iterator[_Coded]:
    table = pieces[0].table
    images = [i for piece in pieces for i in _images_of(piece)]
    if table.frozen or any(piece.table.table_id != table.table_id or _lacks(piece) for piece in pieces):
        yield from _constant(images, next(group))
        return
    without = [np.ones(len(image.places), dtype=bool) for image in images]
    for key in _keys(table.info):
        parts = [cells for part in key if (cells := _comparable(part, images)) is not None]
        number = next(group)
        for place, image in enumerate(images):
            columns = [cells[place] for cells in parts]
            whole = _whole(columns, len(image.places))
            if all(not (c.generated or c.hidden) for c, _ in key):
                without[place] &= ~whole
            yield _Coded(image.places[whole], _joined(columns, whole), image.before, number)
    number = next(group)
    if table.leaving and any(mask.any() for mask in without):
        yield from _constant(images, number)
    for mask, image in zip(without, images, strict=True):
        yield _Coded(image.places[mask], _nothing(int(mask.sum())), image.before, number)


def _images_of(piece: TableOps) -> Iterator[_Image]:
    if piece.new is not None:
        yield _Image(piece.places, piece.new, False)
    if piece.old is not None:
        yield _Image(piece.places, piece.old, True)


def _lacks(piece: TableOps) -> bool:
    """Whether an old image lacks a column: the last column of such images says so."""
    if piece.old is None:
        return False
    return bool(pc.sum(pc.binary_length(piece.old.column(piece.old.num_columns - 1))).as_py())


def _keys(info: TableInfo) -> Iterator[tuple[Part, ...]]:
    if info.pk_is_handle:
        yield tuple((c, WHOLE_COLUMN) for c in info.handle_columns())
    for index in info.indexes:
        if index.unique or index.primary:
            yield tuple(zip(info.index_columns(index), (c.length for c in index.columns), strict=True))


def _constant(images: Iterable[_Image], group: int) -> Iterator[_Coded]:
    for image in images:
        yield _Coded(image.places, _nothing(len(image.places)), image.before, group)


def _nothing(count: int) -> pa.BinaryArray:
    return pa.array([b""] * count, pa.binary())


def _whole(columns: Sequence[pa.Array], count: int) -> Mask:
    """The rows in which none of the columns is NULL."""
    mask = np.ones(count, dtype=bool)
    for column in columns:
        if column.null_count:
            mask &= column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _joined(columns: Sequence[pa.Array], mask: Mask) -> pa.BinaryArray:
    if not columns:
        return _nothing(int(mask.sum()))
    chosen = columns if bool(mask.all()) else [column.filter(pa.array(mask)) for column in columns]
    return chosen[0] if len(chosen) == 1 else pc.binary_join_element_wise(*chosen, pa.scalar(b"\0", pa.binary()))


def _comparable(part: Part, images: Sequence[_Image]) -> list[pa.BinaryArray] | None:
    """The column's values in each image, converted so that values which a target treats as equal are equal; None if a value cannot be converted."""
    column, length = part
    if column.generated or column.hidden:
        return None
    comparable = []
    for image in images:
        values = _canonical(column, length, image.rows.column(column.name))
        if values is None:
            return None
        comparable.append(values)
    return comparable


def _canonical(column: ColumnInfo, length: int, values: pa.Array) -> pa.BinaryArray | None:
    kind = kind_of(column)
    if kind is not CellKind.BYTES:
        if kind in (CellKind.FLOAT, CellKind.DOUBLE):
            values = pc.add(pc.cast(values, pa.float64()), 0.0)  # -0 becomes 0
        return pc.cast(pc.cast(values, pa.string()), pa.binary())
    if column.is_binary:
        return values if length == WHOLE_COLUMN else pc.binary_slice(values, 0, length)
    try:
        text = pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return None
    binary = column.collate.endswith("_bin")
    if not binary and pc.any(pc.match_substring_regex(text, _ELSEWHERE), min_count=0).as_py():
        return None
    if length != WHOLE_COLUMN:
        text = pc.utf8_slice_codeunits(text, 0, length)
    return pc.cast(pc.ascii_rtrim(text if binary else _folded(text), " "), pa.binary())


_ELSEWHERE = r"[^\x00-\x7F\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}]"
"""Characters that some collation equates with other ones: accented letters, ligatures, kana, full-width forms, all beyond the BMP, ..."""
_CONTROL = r"[\x00-\x1F\x7F]"
_SAME_LETTERS = ("abcdefghijklmnopqrstuvwxyz", "abcdefghiiklmnopqrstvvvxiz")
"""j = i and u = v in Roman collations, w = v in Swedish ones, y = i in Lithuanian ones."""


def _letters() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    table = np.arange(256, dtype=np.uint8)
    for letter, same in zip(*_SAME_LETTERS, strict=True):
        table[[ord(letter), ord(letter.upper())]] = ord(same)
    return table


_FOLDED = _letters()


def _folded(text: pa.StringArray) -> pa.StringArray:
    """ASCII letters as one of those that a collation may equate with them; without control characters, which some collations ignore."""
    if pc.any(pc.match_substring_regex(text, _CONTROL), min_count=0).as_py():
        text = pc.replace_substring_regex(text, _CONTROL, "")
    validity, offsets, data = text.buffers()
    if data is None:
        return text
    folded = pa.py_buffer(_FOLDED[np.frombuffer(data, dtype=np.uint8)].tobytes())
    return pa.Array.from_buffers(pa.string(), len(text), [validity, offsets, folded], text.null_count, text.offset)


def _assembled(keys: Sequence[_Coded], count: int) -> OpKeys:
    """The keys of all operations, those of the rows after them first; equal ones of one operation once."""
    of_group: dict[int, list[_Coded]] = {}
    for key in keys:
        if len(key.places):
            of_group.setdefault(key.group, []).append(key)
    places, numbers, before, base = [], [], [], 0
    for alike in of_group.values():
        encoded = pc.dictionary_encode(pa.concat_arrays([key.values for key in alike]))
        places += [key.places for key in alike]
        before += [np.full(len(key.places), key.before) for key in alike]
        numbers.append(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) + base)
        base += len(encoded.dictionary)
    if not places:
        return OpKeys(np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    of_op, own = np.concatenate(places), np.concatenate(numbers)
    # The first of equal pairs is the one of the row after.
    order = np.lexsort((np.concatenate(before), of_op))
    of_op, own = of_op[order], own[order]
    _, first = np.unique(of_op * base + own, return_index=True)
    first.sort()
    begins = np.searchsorted(of_op[first], np.arange(count + 1), side="left").astype(np.int64)
    return OpKeys(begins, own[first])
