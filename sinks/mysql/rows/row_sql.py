"""The SQL of single row operations, whole columns at a time; several operations may become one statement. Pure.

    plain      INSERT INTO t VALUES (...)      UPDATE t SET every column WHERE key of the old row      DELETE FROM t WHERE key
    safe mode  REPLACE INTO t VALUES (...)     DELETE WHERE key of the old row, REPLACE                DELETE FROM t WHERE key

A row is found as by ``sinks.mysql.matching``: by its first unique key without NULL, otherwise by the columns that its image contains, one of several
equal rows. In safe mode the DELETE of an update is left out where REPLACE deletes that row itself.

Promises: in the order given, every operation is one row of one statement (in safe mode, an update of two). Operations become one statement, an
INSERT or REPLACE of several rows or a DELETE of several keys, only if they are in one transaction, on the same table, of the same kind,
and share no key with an operation between them. So no state between two transactions, and no row, shows that they were joined. (A trigger that
reads other tables can see their order.) Updates are never joined.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.fold import Indexes
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, TableOps
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, delete_head, table_name, write_head
from pyspark_tidb_binlog.sinks.mysql.literals import join_cells
from pyspark_tidb_binlog.sinks.mysql.matching import ByColumns, ByKey, OldRows, matches
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, TableBuilder
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Statement

_WHERE = b" WHERE "


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What the statements of some operations have in common: everything but the rows' texts."""

    head: bytes
    tail: bytes
    effect: Effect | None
    """The expected effect on each row; None: there is none, as in safe mode."""
    shape: Statement
    joins: int
    """How many rows one statement may have."""
    updates: bool = False
    """Whether it is an UPDATE, which says itself how many rows it found."""

    def sql(self, texts: Sequence[bytes]) -> bytes:
        """The statement of these rows."""
        return b"".join((self.head, self.shape.between.join(texts), self.tail))

    def single(self, one: "OpText", commit_ts: int, zero_enums: tuple[tuple[str, bytes], ...]) -> Statement:
        """The statement of one row, as findings name it."""
        begin, end = len(self.head) + one.key_at, len(self.head) + len(one.text)
        ends, ts = (np.array([n], dtype="<i8").tobytes() for n in (end, commit_ts))
        return replace(self.shape, sql=self.sql([one.text]), rows=1, commit_ts=ts, begin=begin, ends=ends, zero_enums=zero_enums)


@dataclass(frozen=True, slots=True)
class OpText:
    """One row of a statement."""

    form: Form
    text: bytes
    key_at: int = 0
    """Where in the text that begins which identifies the row."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinedOps:
    """A statement, and the number of its rows."""

    form: Form
    texts: tuple[bytes, ...]

    @property
    def sql(self) -> bytes:
        """The whole statement."""
        return self.form.sql(self.texts)


class OpStatements:
    """The SQL of every operation of a batch."""

    def __init__(self, batch: RowBatch, limits: PlanLimits, flavour: Flavour, *, safe: bool) -> None:
        """All texts are made here. ``safe``: in safe mode."""
        self._batch = batch
        self._limits = limits
        self._builders = {id(piece): _OpBuilder(piece, limits, flavour) for piece in batch.pieces}
        nothing: tuple[OpText, ...] = ()
        self._texts = [nothing] * len(batch)
        for piece in batch.pieces:
            for place, texts in zip(piece.places.tolist(), self._builders[id(piece)].texts(safe=safe), strict=True):
                self._texts[place] = texts
        self.noted: dict[int, list[tuple[FindingKind, str, bytes]]] = {}
        """By the place of its operation: the findings about a new row that are known before it is written (``Statement.noted``)."""
        for piece in batch.pieces:
            for kind, words, rows in self._builders[id(piece)].noted(piece.new) if piece.new is not None else ():
                for place in piece.places[rows].tolist():
                    self.noted.setdefault(place, []).append((kind, words, bytes(8)))

    def texts(self, place: int) -> tuple[OpText, ...]:
        """The rows of the statements that one operation is, in order."""
        return self._texts[place]

    def joined(self, places: Iterable[int], keys: Sequence[Sequence[int]]) -> list[JoinedOps]:
        """The statements of these operations of one transaction; ``keys``: of every operation, by its place."""
        joining = _Joining(self._limits.max_bytes)
        for place in places:
            joining.add(self._texts[place], keys[place])
        return joining.statements()

    def at(self, place: int) -> tuple[TableOps, int]:
        """The table and kind of an operation, and its index there."""
        for piece in self._batch.pieces:
            index = int(np.searchsorted(piece.places, place))
            if index < len(piece) and piece.places[index] == place:
                return piece, index
        raise IndexError(place)

    def single(self, place: int, text: OpText) -> Statement:
        """One row as a statement of its own."""
        piece, index = self.at(place)
        one = text.form.single(text, int(self._batch.commit_ts[place]), _zeros_in(piece, index))
        return replace(one, noted=tuple(self.noted.get(place, ())))

    def mended(self, place: int) -> tuple[bytes, ...]:
        """What makes the target's row that of an INSERT or UPDATE, whatever is there: DELETE and REPLACE."""
        piece, index = self.at(place)
        return tuple(text.form.sql([text.text]) for text in self._builders[id(piece)].safe_text(index))


class _Joining:
    """Collects the statements of one transaction."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._found: list[tuple[Form, list[bytes]]] = []
        self._sizes: list[int] = []
        self._open: dict[int, int] = {}
        """The newest statement of each form."""
        self._last: dict[int, int] = {}
        """The newest statement that touches each key."""

    def add(self, texts: Sequence[OpText], keys: Sequence[int]) -> None:
        last = self._last
        earliest = max((last.get(key, -1) for key in keys), default=-1)
        for one in texts:
            form = one.form
            number = self._open.get(id(form), -1)
            size = len(one.text) + len(form.shape.between)
            fits = number >= 0 and len(self._found[number][1]) < form.joins and self._sizes[number] + size <= self._max_bytes
            if fits and number >= earliest:
                self._found[number][1].append(one.text)
                self._sizes[number] += size
            else:
                number = self._open[id(form)] = len(self._found)
                self._found.append((form, [one.text]))
                self._sizes.append(len(form.head) + len(form.tail) + size)
            earliest = number
        for key in keys:
            last[key] = earliest

    def statements(self) -> list[JoinedOps]:
        return [JoinedOps(form, tuple(texts)) for form, texts in self._found]


class _OpBuilder(TableBuilder):
    """The texts of one table's operations of one kind."""

    def __init__(self, piece: TableOps, limits: PlanLimits, flavour: Flavour) -> None:
        super().__init__(piece.table, limits, flavour)
        self._piece = piece
        self._names = [c.name for c in self.columns]

    def _assigned(self, images: pa.RecordBatch) -> pa.BinaryArray:
        """The settings of an UPDATE for each image."""
        cells = self._cells(images, self.changed)
        leads = [f"{quote_name(c.name)}=".encode() for c in self.changed]
        return join_cells(leads[0], cells, [b"," + lead for lead in leads[1:]] + [b""], b"")

    def texts(self, *, safe: bool) -> list[tuple[OpText, ...]]:
        """The texts of every operation."""
        piece = self._piece
        if piece.op is Op.INSERT:
            form = self._written(safe=safe)
            return [(OpText(form, text),) for text in self._rows(piece.new)]
        if piece.op is Op.DELETE:
            return [(text,) for text in self._removals(self._old(), safe=safe)]
        return self._safe_updates(self._old(), piece.new) if safe else [(text,) for text in self._updates()]

    def safe_text(self, index: int) -> tuple[OpText, ...]:
        """The texts of one INSERT or UPDATE in safe mode."""
        piece = self._piece
        new = piece.new.slice(index, 1) if piece.new is not None else None
        if piece.op is Op.INSERT:
            return (OpText(self._written(safe=True), self._rows(new)[0]),)
        return self._safe_updates(self._old().slice(index, 1), new)[0]

    def _old(self) -> OldRows:
        assert self._piece.old is not None
        return OldRows(self._piece.old, np.arange(len(self._piece), dtype=np.int64))

    def _written(self, *, safe: bool) -> Form:
        head = write_head(self.table.schema, self.table.name, self._names)
        shape = self._shape(head, Effect.ADDS, self.columns)
        head = b"REPLACE" + head.removeprefix(b"INSERT") if safe else head
        return Form(head, b"", None if safe else Effect.ADDS, shape, self.limits.max_rows)

    def _rows(self, images: pa.RecordBatch | None) -> list[bytes]:
        assert images is not None
        cells = self._cells(images, self.columns)
        return cast("list[bytes]", join_cells(b"(", cells, [b","] * len(cells), b")").to_pylist())

    def _removals(self, old: OldRows, *, safe: bool) -> list[OpText]:
        found: dict[int, OpText] = {}
        effect = None if safe else Effect.REMOVES
        for match in matches(self.table, old, self._piece.versions):
            if isinstance(match, ByKey):
                texts = self.keys(match.key, match.rows.images, b"")
                shape, tail = self.removal(match.key)
                form = Form(shape.sql, tail, effect, shape, self.limits.max_keys)
            else:
                texts = self._sought_by_columns(match)
                head = delete_head(self.table.schema, self.table.name)
                form = Form(head, b" LIMIT 1", effect, self._shape(head, Effect.REMOVES, ()), 1)
            found |= zip(match.rows.events.tolist(), map(partial(OpText, form), texts.to_pylist()), strict=True)
        return [found[event] for event in old.events.tolist()]

    def _updates(self) -> list[OpText]:
        new, found = self._piece.new, dict[int, OpText]()
        assert new is not None
        head = f"UPDATE {table_name(self.table.schema, self.table.name)} SET ".encode()
        for match in matches(self.table, self._old(), self._piece.versions):
            if isinstance(match, ByKey):
                conditions, tail, key = self._by_conditions(match.key, match.rows.images, b"", b""), b"", match.key
            else:
                conditions, tail, key = self._sought_by_columns(match), b" LIMIT 1", ()
            form = Form(head, tail, Effect.CHANGES, self._shape(head, Effect.CHANGES, (), key), 1, updates=True)
            settings = self._assigned(new.take(pa.array(match.rows.events)))
            texts = pc.binary_join_element_wise(settings, conditions, pa.scalar(_WHERE, pa.binary())).to_pylist()
            begins = (pc.binary_length(settings).to_numpy() + len(_WHERE)).tolist()
            found |= zip(match.rows.events.tolist(), map(partial(OpText, form), texts, begins), strict=True)
        return [found[event] for event in range(len(self._piece))]

    def _sought_by_columns(self, match: ByColumns) -> pa.BinaryArray:
        return self._conditions(match, match.rows, cast("Any", _Former(self._piece)))

    def _safe_updates(self, old: OldRows, new: pa.RecordBatch | None) -> list[tuple[OpText, ...]]:
        removals, form = self._removals(old, safe=True), self._written(safe=True)
        assert new is not None
        written = [OpText(form, text) for text in self._rows(new)]
        gone = [self._stays(match, new, old.events) for match in matches(self.table, old, self._piece.versions)]
        stays = {event for events in gone for event in events}
        return [(w,) if event in stays else (r, w) for event, r, w in zip(old.events.tolist(), removals, written, strict=True)]

    def _stays(self, match: ByKey | ByColumns, new: pa.RecordBatch, events: Indexes) -> list[int]:
        """The rows that keep the key by which they are found, so that REPLACE deletes them itself."""
        if isinstance(match, ByColumns):
            return []
        after = new.take(pa.array(match.rows.events - events[0]))
        same = np.ones(len(match.rows), dtype=bool)
        for column in match.key:
            equal = pc.equal(match.rows.images.column(column.name), after.column(column.name))
            same &= pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
        return cast("list[int]", match.rows.events[same].tolist())


class _Former:
    """What ``TableBuilder`` asks of the events that old images come from."""

    def __init__(self, piece: TableOps) -> None:
        self._piece = piece
        self.versions = piece.versions

    def old_rows(self, writer: TableAt, events: Indexes) -> OldRows:
        return OldRows(self._piece.old_under(writer, events), events)


def _zeros_in(piece: TableOps, index: int) -> tuple[tuple[str, bytes], ...]:
    """The ENUM columns that are 0 in one operation's new row."""
    if piece.new is None:
        return ()
    return tuple((c.name, bytes(8)) for c in _enums(piece.table) if piece.new.column(c.name)[index].as_py() == 0)


def _enums(table: TableAt) -> list[ColumnInfo]:
    return [c for c in table.info.target_columns() if c.tp == ColumnType.ENUM]
