"""The images of the row changes of many tables, decoded together: one walk over all rows, then all columns of one type at a time. Pure.

A batch of a live stream has a few rows of each of many tables, so that a decoder's time would be that of its calls, table by table and column by
column. Here the calls are as many as there are types of columns. Cells of all columns lie one column behind the other, those of one type together:

    rows -> (row, column id, datum) -> places of all cells -> cells of all columns of a type -> a slice of them per column

Promises: what ``schemas.decoder`` gives for each table. A table with a row that is damaged, or of an update that lacks a column, is left to that.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, Value, digits_of, kind_of, missing_value
from pyspark_tidb_binlog.schemas.changes.row_choice import Ints, RowsOfTable
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells, dates_of, days_of, is_date, type_of, typed
from pyspark_tidb_binlog.schemas.changes.variant_values import VariantColumn, encoded
from pyspark_tidb_binlog.schemas.codec import vectors
from pyspark_tidb_binlog.schemas.codec.datum import Flag
from pyspark_tidb_binlog.schemas.codec.lockstep import MAX_STEPS, MISSING, ColumnSearch, DatumPlaces, Rows, Walk
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.row_layout import CellType, Half, KeyLayout, KeyPart, key_layout
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

_NOWHERE = -1
_MOST_BYTES = 2 << 20
"""Of rows that are decoded together: each byte that may begin a pair, at worst all of them, needs 80 bytes of memory."""


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


_Type = tuple[Hashable, Hashable]
"""Fields whose first part is the same are decoded together. Those of which both are the same become cells of one type."""


@dataclass(slots=True)
class _CellRun:
    """A column of images, or a part of keys, of one table, and where its cells begin among all."""

    table: int
    source: ColumnInfo | KeyPart
    count: int
    begin: int = 0

    @property
    def column(self) -> ColumnInfo:
        """The column of images."""
        assert isinstance(self.source, ColumnInfo)
        return self.source


@lru_cache(1_024)
def _fields_of(info: TableInfo) -> tuple[Sequence[tuple[ColumnInfo, _Type]], Sequence[tuple[KeyPart, _Type]], KeyLayout]:
    """The columns of images, each with its type, and the parts of keys: to make them takes longer than to decode some rows."""
    key = key_layout(info)
    # Dates are decoded together, whatever their precision is.
    columns = [
        (c, (CellKind.DATETIME if is_date(c) else CellType.of(c), (type_of(c), is_date(c) and digits_of(c), c.elems, c.elems and c.tp)))
        for c in info.target_columns()
    ]
    return columns, [(p, ((p.cell, p.length, p.binary), None)) for p in key.parts], key


@dataclass(slots=True)
class _Layout:
    """Where the cells of all fields are; fields of one type are neighbours."""

    types: dict[Hashable, dict[Hashable, list[_CellRun]]] = field(default_factory=dict)
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
            columns, parts, key = _fields_of(group.table.info)
            made.columns.append([made._add(kind, _CellRun(number, c, int(images[number]))) for c, kind in columns])
            made.parts.append([made._add(kind, _CellRun(number, p, int(rows[number]))) for p, kind in parts])
            made.keys.append(key)
        for kinds in made.types.values():
            for one in chain.from_iterable(kinds.values()):
                one.begin, made.total = made.total, made.total + one.count
        return made

    def _add(self, kind: _Type, one: _CellRun) -> _CellRun:
        self.types.setdefault(kind[0], {}).setdefault(kind[1], []).append(one)
        return one


class _EveryPair(Walk):
    """One pair, at each of some places."""

    def __init__(self, rows: Rows, begins: Ints) -> None:
        self.begins, none = begins, np.zeros(len(begins), np.bool_)
        super().__init__(Rows(rows.data, begins, np.full(len(begins), rows.ends[-1])), ColumnSearch((), {}), none, none)

    def _read_handle(self) -> None:
        """There is none."""

    def _read_pairs(self) -> None:
        self.ids = self._read_ids(None, self._rows.data)
        self.datums = self._read_datums(None)
        self.ends = np.where(self.odd, self._rows.ends + 1, self._pos)
        """Where the next pair begins; behind all rows, if this is none."""


class _Pairs(Walk):
    """All datums of rows of several tables.

    Whatever may be a pair, as its first byte may, is read at once; then each row goes from one to the next. So a step costs little, and long rows have many.
    """

    def __init__(self, rows: Rows, parts: Ints) -> None:
        """``parts``: how many datums of a handle each row begins with."""
        self._parts = parts
        self._handles: list[tuple[Ints, DatumPlaces]] = []
        nothing = np.zeros(len(rows), np.bool_)
        super().__init__(rows, ColumnSearch((), {}), nothing, nothing)

    def pairs(self) -> tuple[Ints, Ints, DatumPlaces]:
        """Row, column id and place of each pair of the rows that are not odd; those of a row in order."""
        rows, pairs = (np.concatenate(parts) for parts in zip(*self._steps, strict=True))
        good = np.flatnonzero(~self.odd[rows])
        return rows[good], self._every.ids[pairs[good]], self._every.datums.only(pairs[good])

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

    def _read_pairs(self) -> None:
        none = np.zeros(0, np.int64)
        self._steps: list[tuple[Ints, Ints]] = [(none, none)]
        # the end of all rows, where no pair begins, is behind each place
        self._every = every = _EveryPair(self._rows, np.append(np.flatnonzero(self._rows.data == Flag.VARINT), self._rows.ends[-1]))
        rows = np.flatnonzero((self._pos < self._rows.ends) & ~self.odd)
        at, ends = self._pos[rows], self._rows.ends[rows]
        for _ in range(MAX_STEPS):
            if not len(rows):
                return
            pairs = np.searchsorted(every.begins, at)
            to = every.ends[pairs]
            good = (every.begins[pairs] == at) & (to <= ends)
            self.odd[rows[~good]] = True
            self._steps.append((rows[good], pairs[good]))
            left = good & (to < ends)
            rows, at, ends = rows[left], to[left], ends[left]
        self.odd[rows] = True


def joint_images(groups: Sequence[RowsOfTable]) -> list[TableImages | None]:
    """The images of each of ``groups``; None: they are to be decoded alone."""
    if (
        len(groups) < 2
        or sum(len(group.places) for group in groups) > decoder.CHUNK
        or sum(group.rows.nbytes for group in groups) > _MOST_BYTES
    ):
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
        self._defaults: dict[int, list[tuple[Ints, Value]]] = {}
        """By the id of a run: cells that rows lack, and what these are."""

    def images(self) -> list[TableImages | None]:
        """Those of each table."""
        places = self._places()
        self._find_defaults(places)
        columns: list[tuple[list[_CellRun], TypedCells]] = []
        parts: dict[int, pa.BinaryArray] = {}
        for kinds in self._layout.types.values():
            fields = [one for alike in kinds.values() for one in alike]
            begin, end = fields[0].begin, fields[-1].begin + fields[-1].count
            of_type = DatumPlaces(places.flags[begin:end], places.bodies[begin:end], places.sizes[begin:end])
            if isinstance(fields[0].source, KeyPart):
                cells, odd = decoder.key_cells(self._rows, of_type, fields[0].source)
                self._mark(fields, odd | vectors.nulls_of(of_type))
                parts |= {id(one): cells.slice(one.begin - begin, one.count) for one in fields}
            elif is_date(fields[0].source):
                columns += self._dates(kinds.values(), of_type)
            else:
                cells = self._cells(fields, of_type)
                for alike in kinds.values():
                    columns += self._typed(alike, cells.slice(alike[0].begin - begin, sum(one.count for one in alike)))
        made = _variant_columns(columns)
        return [None if number in self._alone else self._table_images(number, made, parts) for number in range(len(self._groups))]

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

    def _cells(self, fields: Sequence[_CellRun], places: DatumPlaces) -> pa.Array:
        """The cells of columns whose datums, at ``places``, are of one type."""
        column, begin = fields[0].column, fields[0].begin
        cells, odd = decoder.cells_at(self._rows, places, CellType.of(column))
        self._mark(fields, odd)
        if defaults := list(chain.from_iterable(self._defaults.get(id(one), ()) for one in fields)):
            chosen = np.zeros(len(cells), np.int64)
            for number, (lacking, _) in enumerate(defaults, 1):
                chosen[lacking - begin] = number
            values = pa.array([None, *(value for _, value in defaults)], cells.type)
            cells = pc.if_else(pa.array(chosen > 0), values.take(pa.array(chosen)), cells)
        return cells

    def _dates(self, kinds: Iterable[list[_CellRun]], places: DatumPlaces) -> list[tuple[list[_CellRun], TypedCells]]:
        """Columns of dates. Where all are dates they become numbers at once; a text that is no date, or a default, goes the way of other cells."""
        fields, odd = vectors.time_fields(self._rows, places)
        year, month, day, hour, minute, second, micro = (part.astype(np.int64) for part in fields)
        days, good = days_of(year, month, day)
        micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
        nulls = vectors.nulls_of(places)
        good &= ~odd
        made, begin = [], 0
        for alike in kinds:
            of = slice(begin, begin := begin + sum(one.count for one in alike))
            if (good[of] | nulls[of]).all() and not any(id(one) in self._defaults for one in alike):
                made.append((alike, dates_of(alike[0].column, days[of], micros[of], nulls[of])))
            else:
                own = DatumPlaces(places.flags[of], places.bodies[of], places.sizes[of])
                made += self._typed(alike, self._cells(alike, own))
        return made

    def _typed(self, fields: list[_CellRun], cells: pa.Array) -> list[tuple[list[_CellRun], TypedCells]]:
        """The columns of one type, whose cells are ``cells``; none if one of them is no value of that type."""
        column = fields[0].column
        try:
            return [(fields, typed(column, cells))]
        except pa.ArrowInvalid:
            self._alone |= {one.table for one in fields}
            return []

    def _find_defaults(self, places: DatumPlaces) -> None:
        """What the cells are that rows lack, where that is not NULL: ``decoder.completed``, but for rows of updates."""
        fields = sorted(chain.from_iterable(self._layout.columns), key=lambda one: one.begin)
        begins, counts, tables = np.array([(one.begin, one.count, one.table) for one in fields], np.int64).reshape(-1, 3).T
        lacking = np.flatnonzero(places.absent)
        run = np.searchsorted(begins, lacking, side="right") - 1
        of_column = (run >= 0) & (lacking - begins[run] < counts[run]) if len(fields) else np.zeros(len(lacking), np.bool_)
        lacking, run = lacking[of_column], run[of_column]
        events = self._events[self._first_image[tables[run]] + lacking - begins[run]]
        self._alone |= set(tables[run[self._ops[events] == Op.UPDATE]].tolist())
        versions, version = np.unique(self._versions[events], return_inverse=True)
        kinds, kind = np.unique(run * len(versions) + version, return_inverse=True)
        for number, (at, of) in enumerate(divmod(code, len(versions)) for code in kinds.tolist()):
            one = fields[at]
            try:
                value = missing_value(one.column, self._groups[one.table].table.default_info(int(versions[of])))
            except Corruption:
                self._alone.add(one.table)
                continue
            if value is not None:
                self._defaults.setdefault(id(one), []).append((lacking[kind == number], value))


def _variant_columns(columns: Sequence[tuple[list[_CellRun], TypedCells]]) -> dict[int, VariantColumn]:
    """Columns by the id of their run."""
    made: dict[int, VariantColumn] = {}
    json = [kind_of(fields[0].column) is CellKind.JSON for fields, _ in columns]
    values = iter(encoded([cells for (_, cells), is_json in zip(columns, json, strict=True) if not is_json]))
    for (fields, cells), is_json in zip(columns, json, strict=True):
        whole = cells.values if is_json else next(values)
        for one in fields:
            own = whole.slice(one.begin - fields[0].begin, one.count)
            made[id(one)] = VariantColumn(one.column.name, TypedCells(own) if is_json else None, is_json, None if is_json else own)
    return made
