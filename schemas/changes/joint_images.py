"""The images of the row changes of many tables, decoded together: one walk over all rows, then all columns of one type at a time. Pure.

A batch of a live stream has a few rows of each of many tables, so that a decoder's time would be that of its calls, table by table and column by
column. Here the calls are as many as there are types of columns. Cells of all columns lie one column behind the other, those of one type together:

    rows -> (row, column id, datum) -> places of all cells -> cells of all columns of a type -> a slice of them per column

Promises: what ``schemas.decoder`` gives for each table. A table with a row that is damaged, or of an update that lacks a column, is left to that.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.row_choice import Ints, RowsOfTable
from pyspark_tidb_binlog.schemas.changes.typed_cells import type_of, typed
from pyspark_tidb_binlog.schemas.changes.variant_values import VariantColumn, encoded
from pyspark_tidb_binlog.schemas.codec import vectors
from pyspark_tidb_binlog.schemas.codec.lockstep import MISSING, ColumnSearch, DatumPlaces, Rows, Walk
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.row_layout import CellType, Half, ImageLayout, KeyLayout, KeyPart
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class TableImages:
    """The images of one table's row changes; of an UPDATE the row before it, then the row after it."""

    fields: tuple[VariantColumn, ...]
    """The target columns."""
    keys: pa.BinaryArray
    """Of each event: ``decoder.row_keys``."""
    events: Ints
    """The event of each image."""
    halves: npt.NDArray[np.int8]
    """The ``Half`` of each image."""


@dataclass(slots=True)
class _CellRun:
    """A column of images, or a part of keys, of one table, and where its cells begin among all."""

    table: int
    source: ColumnInfo | KeyPart
    count: int
    begin: int = 0


@dataclass(slots=True)
class _Layout:
    """Where the cells of all fields are; fields of one type are neighbours."""

    types: dict[Hashable, list[_CellRun]] = field(default_factory=dict)
    columns: list[list[_CellRun]] = field(default_factory=list)
    """Of each table."""
    parts: list[list[_CellRun]] = field(default_factory=list)
    """Of each table."""
    keys: list[KeyLayout] = field(default_factory=list)
    """Of each table."""
    total: int = 0

    @classmethod
    def of(cls, groups: Sequence[RowsOfTable], rows: Ints, images: Ints) -> "_Layout":
        """``rows``, ``images``: how many each table has."""
        made = cls()
        for number, group in enumerate(groups):
            info = group.table.info
            made.columns.append([made._add(_type(c), _CellRun(number, c, int(images[number]))) for c in ImageLayout.of(info).columns])
            made.keys.append(KeyLayout.of(info))
            made.parts.append([made._add(_type(p), _CellRun(number, p, int(rows[number]))) for p in made.keys[-1].parts])
        for fields in made.types.values():
            for one in fields:
                one.begin, made.total = made.total, made.total + one.count
        return made

    def _add(self, kind: Hashable, one: _CellRun) -> _CellRun:
        self.types.setdefault(kind, []).append(one)
        return one


def _type(source: ColumnInfo | KeyPart) -> Hashable:
    """Fields of one type are decoded alike."""
    if isinstance(source, KeyPart):
        return source.cell, source.length, source.binary
    return CellType.of(source), type_of(source), source.tp, source.elems, source.is_binary


class _Pairs(Walk):
    """All datums of rows of several tables."""

    def __init__(self, rows: Rows, parts: Ints) -> None:
        """``parts``: how many datums of a handle each row begins with."""
        self._parts = parts
        self._handles: list[tuple[Ints, DatumPlaces]] = []
        none = np.zeros(0, np.int64)
        self._steps: list[tuple[Ints, Ints, DatumPlaces]] = [(none, none, DatumPlaces.unknown(0))]
        nothing = np.zeros(len(rows), np.bool_)
        super().__init__(rows, ColumnSearch((), {}), nothing, nothing)

    def pairs(self) -> tuple[Ints, Ints, DatumPlaces]:
        """Row, column id and place of each pair of the rows that are not odd; those of a row in order."""
        places = [one for _, _, one in self._steps]
        rows = np.concatenate([row for row, _, _ in self._steps])
        good = np.flatnonzero(~self.odd[rows])
        return (
            rows[good],
            np.concatenate([ids for _, ids, _ in self._steps])[good],
            DatumPlaces(*(np.concatenate([getattr(one, name) for one in places])[good] for name in ("flags", "bodies", "sizes"))),
        )

    def handles(self) -> Iterator[tuple[Ints, DatumPlaces]]:
        """For each part of a handle: the rows that are not odd, and where it is."""
        for index, places in self._handles:
            good = np.flatnonzero(~self.odd[index])
            yield index[good], places.only(good)

    def _read_handle(self) -> None:
        for part in range(int(self._parts.max())):
            index = np.flatnonzero(self._parts > part)
            self._handles.append((index, self._read_datums(index)))
        super()._read_handle()

    def _keep(self, ids: Ints, index: Ints | None, places: DatumPlaces) -> None:
        self._steps.append((np.arange(len(self._rows)) if index is None else index, ids, places))


def joint_images(groups: Sequence[RowsOfTable]) -> list[TableImages | None]:
    """The images of each of ``groups``; None: they are to be decoded alone."""
    if len(groups) < 2 or sum(len(group.places) for group in groups) > decoder.CHUNK:
        return [None] * len(groups)
    return _Joint(groups).images()


class _Joint:
    """Some tables' rows, one table behind the other."""

    def __init__(self, groups: Sequence[RowsOfTable]) -> None:
        self._groups = groups
        counts = np.array([len(group.places) for group in groups])
        self._table = np.repeat(np.arange(len(groups)), counts)
        self._ops, self._versions = (np.concatenate([getattr(group, name) for group in groups]) for name in ("ops", "versions"))
        self._events, self._halves = decoder.images_of(self._ops, tuple(Half))
        self._first_row, self._first_image = (
            np.searchsorted(self._table[of], np.arange(len(groups) + 1)) for of in (slice(None), self._events)
        )
        self._rows = decoder.rows_of(pa.concat_arrays([group.rows for group in groups]))
        self._layout = _Layout.of(groups, counts, np.diff(self._first_image))
        self._alone: set[int] = set()
        """The tables that have something odd."""

    def images(self) -> list[TableImages | None]:
        """Those of each table."""
        places = self._places()
        columns: dict[int, VariantColumn] = {}
        parts: dict[int, pa.BinaryArray] = {}
        for fields in self._layout.types.values():
            begin, end = fields[0].begin, fields[-1].begin + fields[-1].count
            of_type = DatumPlaces(places.flags[begin:end], places.bodies[begin:end], places.sizes[begin:end])
            if isinstance(fields[0].source, KeyPart):
                cells, odd = decoder.key_cells(self._rows, of_type, fields[0].source)
                self._mark(fields, odd | vectors.nulls_of(of_type))
                parts |= {id(one): cells.slice(one.begin - begin, one.count) for one in fields}
            else:
                columns |= self._columns(fields, of_type)
        return [None if number in self._alone else self._table_images(number, columns, parts) for number in range(len(self._groups))]

    def _table_images(self, number: int, columns: dict[int, VariantColumn], parts: dict[int, pa.BinaryArray]) -> TableImages:
        own = slice(*self._first_image[number : number + 2])
        return TableImages(
            tuple(columns[id(one)] for one in self._layout.columns[number]),
            reduce(decoder.joined, [parts[id(one)] for one in self._layout.parts[number]]),
            self._events[own] - self._first_row[number],
            self._halves[own],
        )

    def _places(self) -> DatumPlaces:
        """Of all cells."""
        sizes = np.array([len(parts) for parts in self._layout.parts])
        walk = _Pairs(self._rows, np.where(self._ops == Op.INSERT, sizes[self._table], 0))
        self._alone |= set(self._table[walk.odd].tolist())
        total = self._layout.total
        whole = DatumPlaces(np.full(total, MISSING, np.uint8), np.zeros(total, np.int64), np.zeros(total, np.int64))
        rows, slots, places = self._known(*walk.pairs())
        second = self._occurrences(rows, slots)
        to_image, to_key = self._begins
        self._put(whole, to_image[slots], self._image(rows) + second, places)
        first = np.flatnonzero(second == 0)
        self._put(whole, to_key[slots[first]], self._row(rows[first]), places.only(first))
        for part, (index, found) in enumerate(walk.handles()):
            for number in np.unique(self._table[index]).tolist():
                of_table = np.flatnonzero(self._table[index] == number)
                one, at = self._layout.parts[number][part], index[of_table]
                assert isinstance(one.source, KeyPart)
                if not one.source.whole:
                    continue
                here = found.only(of_table)
                slot = self._slots[number, one.source.id]
                self._put(whole, np.full(len(at), to_image[slot]), self._image(at), here, keep=True)
                self._put(whole, np.full(len(at), one.begin), self._row(at), here, keep=not self._layout.keys[number].by_handle)
        return whole

    def _known(self, rows: Ints, ids: Ints, places: DatumPlaces) -> tuple[Ints, Ints, DatumPlaces]:
        """The pairs of columns that are wanted, with the slot of each: the number of its table's column among those of all tables."""
        begins: dict[tuple[int, int], list[int]] = {}
        for to, fields in enumerate((self._layout.columns, self._layout.parts)):
            for one in (one for of_table in fields for one in of_table):
                begins.setdefault((one.table, one.source.id), [_NOWHERE, _NOWHERE])[to] = one.begin
        in_order = sorted(begins)
        self._slots = {of: slot for slot, of in enumerate(in_order)}
        self._begins = np.array([begins[of] for of in in_order]).T
        tables, columns = np.array(in_order).T
        known_ids, numbers = np.unique(columns, return_inverse=True)
        codes = tables * len(known_ids) + numbers
        at = np.minimum(np.searchsorted(known_ids, ids), len(known_ids) - 1)
        asked = self._table[rows] * len(known_ids) + at
        slots = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
        known = np.flatnonzero((known_ids[at] == ids) & (codes[slots] == asked))
        return rows[known], slots[known], places.only(known)

    def _occurrences(self, rows: Ints, slots: Ints) -> Ints:
        """0 for a column's first pair in its row, 1 for its second."""
        codes = rows * len(self._slots) + slots
        order = np.argsort(codes, kind="stable")
        again = np.concatenate([[False], np.diff(codes[order]) == 0])
        number = np.zeros(len(codes), np.int64)
        number[order] = again
        third = np.concatenate([[False], again[1:] & again[:-1]])
        odd = np.flatnonzero(again & (third | (self._ops[rows[order]] != Op.UPDATE)))
        self._alone |= set(self._table[rows[order[odd]]].tolist())
        number[order[odd]] = 0
        return number

    def _image(self, rows: Ints) -> Ints:
        """The first image of rows, among those of their table."""
        return np.searchsorted(self._events, rows) - self._first_image[self._table[rows]]

    def _row(self, rows: Ints) -> Ints:
        """The number of rows, among those of their table."""
        return rows - self._first_row[self._table[rows]]

    def _put(self, whole: DatumPlaces, begins: Ints, numbers: Ints, places: DatumPlaces, *, keep: bool = False) -> None:
        """``keep``: places that are known stay."""
        chosen = np.flatnonzero(begins != _NOWHERE)
        if keep:
            chosen = chosen[whole.flags[begins[chosen] + numbers[chosen]] == MISSING]
        whole.put(begins[chosen] + numbers[chosen], places.only(chosen))

    def _mark(self, fields: Sequence[_CellRun], odd: npt.NDArray[np.bool_]) -> None:
        if odd.any():
            ends = np.cumsum([one.count for one in fields])
            self._alone |= {fields[at].table for at in np.searchsorted(ends, np.flatnonzero(odd), side="right").tolist()}

    def _columns(self, fields: Sequence[_CellRun], places: DatumPlaces) -> dict[int, VariantColumn]:
        """The columns of one type, whose cells are at ``places``."""
        column, begin = fields[0].source, fields[0].begin
        assert isinstance(column, ColumnInfo)
        cells, odd = decoder.cells_at(self._rows, places, CellType.of(column))
        self._mark(fields, odd)
        if (absent := places.absent).any():
            for one in fields:
                own = slice(one.begin - begin, one.begin - begin + one.count)
                if absent[own].any():
                    cells = self._completed(cells, one, absent, own)
        is_json = kind_of(column) is CellKind.JSON
        try:
            found = typed(column, cells)
        except pa.ArrowInvalid:
            self._alone |= {one.table for one in fields}
            return {id(one): VariantColumn(one.source.name, None) for one in fields if isinstance(one.source, ColumnInfo)}
        made = None if is_json else encoded(found)
        return {
            id(one): VariantColumn(one.source.name, found if is_json else None, is_json, made).sliced(one.begin - begin, one.count)
            for one in fields
            if isinstance(one.source, ColumnInfo)
        }

    def _completed(self, cells: pa.Array, one: _CellRun, absent: npt.NDArray[np.bool_], own: slice) -> pa.Array:
        """``cells`` with those that rows of one column lack; the column's own are at ``own``."""
        table, column = self._groups[one.table].table, one.source
        assert isinstance(column, ColumnInfo)
        events = self._events[slice(*self._first_image[one.table : one.table + 2])]
        if (self._ops[events[absent[own]]] == Op.UPDATE).any():
            self._alone.add(one.table)
            return cells
        ops, versions, lacking = np.zeros(len(cells), np.int32), np.zeros(len(cells), np.int64), np.zeros(len(cells), np.bool_)
        ops[own], versions[own], lacking[own] = self._ops[events], self._versions[events], absent[own]
        cells, odd = decoder.completed(cells, table, column, ops, versions, lacking)
        if odd.any():
            self._alone.add(one.table)
        return cells
