"""The statements of single row operations, from the texts of the one plan (``TableBuilder``): chosen for each transaction when it begins. Pure.

    plain      INSERT INTO t VALUES (...)      UPDATE t SET every column WHERE key of the old row      DELETE FROM t WHERE key
    safe mode  REPLACE INTO t VALUES (...)     DELETE WHERE key of the old row, REPLACE                DELETE FROM t WHERE key

A row is found as by ``sinks.mysql.matching``. In safe mode the DELETE of an update is left out where REPLACE deletes that row itself.

Promises: in the order given, every operation is one row of one statement (in safe mode, an update of two). Operations become one statement, an
INSERT or REPLACE of several rows or a DELETE of several keys, only if they are in one transaction, on the same table, of the same kind,
and share no key with an operation between them. So no state between two transactions, and no row, shows that they were joined. (A trigger that
reads other tables can see their order.) Updates are never joined, and no operations on a table with unique keys that only the target has.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import numpy as np

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.causality import OpKeys
from pyspark_tidb_binlog.sinks.engine.fold import Indexes, Mask
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, TableOps
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.matching import ByKey, OldRows, differ, matches
from pyspark_tidb_binlog.sinks.mysql.plan import Images, OldRowSource, PlanLimits, TableBuilder
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, RowTexts, Statement


class OpPlan:
    """The rows of all operations of a batch, as texts."""

    def __init__(self, batch: RowBatch, keys: OpKeys, limits: PlanLimits, flavour: Flavour, *, safe: bool) -> None:
        """``keys``: of each operation; ``safe``: in safe mode."""
        self._keys = keys.lists()
        self._max_bytes = limits.max_bytes
        self._rows: list[list[_Row]] = [[] for _ in range(len(batch))]
        for piece in batch.pieces:
            builder = TableBuilder(piece.table, limits, flavour, safe=safe)
            for texts, events in _texts(piece, _PieceRows(piece, batch.commit_ts), builder, safe=safe):
                form = _Form(texts)
                for number, place in enumerate(piece.places[events].tolist()):
                    self._rows[place].append((form, number))

    def statements(self, places: Iterable[int]) -> list[Statement]:
        """The statements of these operations of one transaction."""
        found: list[tuple[_Form, list[int]]] = []
        sizes: list[int] = []
        newest: dict[_Form, int] = {}
        """The newest statement of each form."""
        last: dict[int, int] = {}
        """The newest statement that touches each key."""
        for place in places:
            keys, earliest = self._keys[place], -1
            for key in keys:
                if key in last:
                    earliest = max(earliest, last[key])
            for form, number in self._rows[place]:
                at, size = newest.get(form, -1), len(form.texts[number])
                if at >= 0 and at >= earliest and len(found[at][1]) < form.joins and sizes[at] + size <= self._max_bytes:
                    found[at][1].append(number)
                    sizes[at] += size
                else:
                    at = newest[form] = len(found)
                    found.append((form, [number]))
                    sizes.append(form.bytes_around + size)
                earliest = at
            for key in keys:
                last[key] = earliest
        return [form.statement(numbers) for form, numbers in found]


class _Form:
    """Rows of one table and effect, of any of which a statement is made."""

    def __init__(self, texts: RowTexts) -> None:
        shape = texts.shape
        self._rows = texts
        self._head, self._gap = len(shape.sql), len(shape.between)
        self._begins = texts.begins.tolist() if texts.begins is not None else [0] * len(texts.rows)
        self._commit_ts = texts.commit_ts.astype("<i8").tobytes()
        self.texts = cast("list[bytes]", texts.rows.to_pylist())
        self.joins = 1 if shape.origin.own_keys else texts.max_rows
        """How many rows a statement may have."""
        self.bytes_around = len(shape.sql) + len(texts.tail)

    def statement(self, numbers: Sequence[int]) -> Statement:
        """The statement of these rows."""
        rows, shape, gap = self._rows, self._rows.shape, self._gap
        first = numbers[0]
        if len(numbers) == 1:
            text = self.texts[first]
            ends = (self._head + len(text) - gap).to_bytes(8, "little")
            commit_ts = self._commit_ts[first * 8 : first * 8 + 8]
        else:
            text = b"".join([self.texts[number] for number in numbers])
            lengths = itertools.accumulate([len(self.texts[number]) for number in numbers], initial=self._head - gap)
            ends = b"".join([end.to_bytes(8, "little") for end in lengths][1:])
            commit_ts = b"".join([self._commit_ts[number * 8 : number * 8 + 8] for number in numbers])
        return Statement(
            b"".join((shape.sql, text[:-gap] if gap else text, rows.tail)),
            len(numbers),
            shape.phase,
            shape.effect,
            shape.origin,
            commit_ts,
            self._head + self._begins[first],
            ends,
            tuple((name, chosen) for name, mask in rows.zeros if (chosen := _chosen(mask, numbers))) if rows.zeros else (),
            tuple((kind, words, chosen) for kind, words, mask in rows.noted if (chosen := _chosen(mask, numbers))) if rows.noted else (),
            shape.between,
        )


_Row = tuple[_Form, int]


def _chosen(mask: Mask, numbers: Sequence[int]) -> bytes:
    """Which of ``numbers`` the mask has."""
    return b"".join([place.to_bytes(8, "little") for place, number in enumerate(numbers) if mask[number]])


class _PieceRows:
    """One table's operations of one kind (``OldRowSource``)."""

    def __init__(self, piece: TableOps, commit_ts: Indexes) -> None:
        self._piece = piece
        self.versions = piece.versions
        self.commit_ts = commit_ts[piece.places]

    def old_rows(self, table: TableAt, indexes: Indexes) -> OldRows:
        """The rows before the events."""
        return OldRows(self._piece.old_under(table, indexes), indexes)


def _texts(piece: TableOps, source: OldRowSource, builder: TableBuilder, *, safe: bool) -> Iterator[tuple[RowTexts, Indexes]]:
    """The texts of all operations, and which they are; of an operation with two rows, the one that comes first is given first."""
    every = np.arange(len(piece), dtype=np.int64)
    new = Images(piece.new, source.commit_ts) if piece.new is not None else None
    if piece.old is not None:
        old = OldRows(piece.old, every)
        if safe and new is not None:
            old = old.only(~_stays(piece.table, old, new, source))
        for match in matches(piece.table, old, source.versions):
            if new is None or safe:
                yield builder.removed(match, source), match.rows.events
            else:
                chosen = match.rows.events
                images = Images(new.rows.take(chosen), new.commit_ts[chosen])
                yield builder.updated(match, images, source), chosen
    if new is not None and (safe or piece.op is Op.INSERT):
        yield builder.written(new, Effect.ADDS), every


def _stays(table: TableAt, old: OldRows, new: Images, source: OldRowSource) -> Mask:
    """Mask of the rows that keep the key by which they are found, so that REPLACE deletes them itself."""
    stays: Mask = np.zeros(len(old), dtype=bool)
    for match in matches(table, old, source.versions):
        if isinstance(match, ByKey):
            events = match.rows.events
            stays[events] = ~differ(match.rows.images, new.rows.take(events), [column.name for column in match.key])
    return stays
