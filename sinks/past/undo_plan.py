"""What a span has changed, and its inverse: as rows, as SQL, and in numbers. Pure.

    DELETE FROM `shop`.`item` WHERE `id`=7 AND … every other column <=> its present value LIMIT 1
    UPDATE `shop`.`item` SET `price`=10 WHERE `id`=8 AND … LIMIT 1
    INSERT INTO `shop`.`item` (`id`,`price`) VALUES (9,11)

DELETE what came, UPDATE back, INSERT what went. An update that changes a column of a unique key is a DELETE and an INSERT. All DELETEs come first and all
INSERTs last, so no two rows ever have one key, whatever they exchange.

Promises: each row is touched once, whatever the span did to it. The rows of a plan are under the columns that the tables have now. Texts are made a whole
column at a time. They are for a session in UTC without foreign key checks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf.sql_mode import ALWAYS, ANY_DATE
from pyspark_tidb_binlog.schemas.changes.change_rows import image_variants
from pyspark_tidb_binlog.schemas.changes.typed_cells import typed
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, no_rows, spread
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import whole as whole_literals
from pyspark_tidb_binlog.sinks.mysql.dialect import (
    Flavour,
    delete_head,
    key_condition,
    match_condition,
    table_name,
    taken_for_double,
    write_head,
)
from pyspark_tidb_binlog.sinks.mysql.literals import Cells, LiteralForm, form_of, join_cells, join_conditions, literals
from pyspark_tidb_binlog.sinks.mysql.matching import NO_KEY, OldRows, differ, key_numbers
from pyspark_tidb_binlog.sinks.past.net_rows import NetRows
from pyspark_tidb_binlog.sinks.past.past_changes import WITHOUT_DDL, Ints, Mask

_TEXT = pa.string()
UNDO = pa.schema(
    {"place": pa.int64(), "database": _TEXT, "table": _TEXT, "op": _TEXT, "expected": VARIANT, "restored": VARIANT, "sql": _TEXT}
)
"""The rows of a plan: ``expected`` is the present row that is deleted or updated, ``restored`` what is there afterwards."""
DIFFERENCE = pa.schema({"op": _TEXT, "columns": pa.list_(_TEXT), "before": VARIANT, "after": VARIANT})
"""Net changes as rows; ``columns``: those that changed."""
_AT_ONCE = 50_000
"""Statements that are held together."""
SETTINGS = ("SET NAMES utf8mb4", f"SET time_zone = '+00:00', foreign_key_checks = 0, sql_mode = '{ALWAYS},{ANY_DATE}'")
"""What the statements need of a session that a person opens."""


@dataclass(frozen=True)
class TableUndo:
    """The inverse of a table's net changes."""

    net: NetRows
    flavour: Flavour = Flavour.TIDB
    """Whose SQL is written."""

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that are compared and written."""
        return self.net.table.info.target_columns()

    @property
    def name(self) -> str:
        """Quoted."""
        return table_name(self.net.table.schema, self.net.table.name)

    @cached_property
    def moved(self) -> Mask:
        """The updates that are a DELETE and an INSERT."""
        info = self.net.table.info
        return self.net.updated if info.has_computed_key else self.net.changed(sorted({c.name for key in info.unique_keys() for c in key}))

    def rows_of(self, op: str) -> Mask:
        """The rows of which there is a statement: a 'delete', an 'update' or an 'insert'."""
        net, moved = self.net, self.moved
        return {"delete": net.inserted | moved, "update": net.updated & ~moved, "insert": net.deleted | moved}[op]

    def statements(self, op: str) -> pa.BinaryArray:
        """The statements of ``rows_of(op)`` for a person, in the order of the rows, each with all that its row is to be."""
        found = self.net.only(self.rows_of(op))
        if op == "delete":
            return self.deletes(found.now, whole=True)
        if op == "update":
            return self.updates(found, whole=True)
        return pc.binary_join_element_wise(self.insert_head, row_texts(self.columns, found.was, named=True), b"")

    @property
    def insert_head(self) -> bytes:
        """The beginning of an INSERT, up to its rows."""
        return write_head(self.net.table.schema, self.net.table.name, [c.name for c in self.columns])

    def rows(self, images: pa.RecordBatch) -> pa.BinaryArray:
        """Each row as one text, which is another one for every other row."""
        return row_texts(self.columns, images)

    def key_numbers(self, images: pa.RecordBatch) -> Ints:
        """The number of the unique key that finds each row: the first one without NULL; ``NO_KEY``: none does."""
        return key_numbers(self.net.table, OldRows.complete(images, np.arange(len(images))))

    @property
    def finds_by_all(self) -> bool:
        """Whether there are rows that no unique key finds."""
        sides = (self.net.was, self.net.was_there), (self.net.now, self.net.now_there)
        return any(bool((self.key_numbers(images)[there] == NO_KEY).any()) for images, there in sides)

    def conditions(self, images: pa.RecordBatch, *, whole: bool = False) -> pa.BinaryArray:
        """The condition that finds each row: its key, or all its columns. ``whole``: for a person, all its columns in any case, the key first."""

        def of_key(number: int, at: Ints) -> pa.BinaryArray:
            some = images.take(pa.array(at))
            key = self.net.table.info.unique_keys()[number] if number != NO_KEY else ()
            terms = [(c, key_condition(c, self.flavour)) for c in key]
            if whole or not key:
                matches = [(c, match_condition(c, self.flavour, False)) for c in self.columns]
                terms += [(c, texts) for c, texts in matches if c not in key or not texts[0].endswith(b"` <=> ")]
            named = [whole and not taken_for_double(c, self.flavour) for c, _ in terms]
            found = ((b" AND " if n else b"", texts, _cells(c, some, named=named[n])) for n, (c, texts) in enumerate(terms))
            return join_conditions(b"", found, b"")

        return _by_kind(self.key_numbers(images), of_key)

    def deletes(self, images: pa.RecordBatch, *, whole: bool = False) -> pa.BinaryArray:
        """A DELETE of each row."""
        head = delete_head(self.net.table.schema, self.net.table.name)
        return pc.binary_join_element_wise(head, self.conditions(images, whole=whole), b" LIMIT 1", b"")

    def updates(self, rows: NetRows, *, whole: bool = False) -> pa.BinaryArray:
        """An UPDATE of each row, of the columns that change, and of those that the server would change by itself (ON UPDATE CURRENT_TIMESTAMP)."""
        changes = np.array([differ(rows.was, rows.now, [c.name]) | (c.flag & ColumnFlag.ON_UPDATE_NOW != 0) for c in self.columns])
        conditions = self.conditions(rows.now, whole=whole)
        kinds, numbers = np.unique(changes, axis=1, return_inverse=True) if len(rows) else (changes, np.zeros(0, np.int64))

        def of_columns(number: int, at: Ints) -> pa.BinaryArray:
            some, columns = rows.was.take(pa.array(at)), [c for c, change in zip(self.columns, kinds[:, number], strict=True) if change]
            heads = [f"{quote_name(c.name)}=".encode() for c in columns]
            between = [b"," + head for head in heads[1:]] + [b""]
            opening = f"UPDATE {self.name} SET ".encode() + heads[0]
            sets = join_cells(opening, [_cells(c, some, named=whole) for c in columns], between, b" WHERE ")
            return pc.binary_join_element_wise(sets, conditions.take(pa.array(at)), b" LIMIT 1", b"")

        return _by_kind(numbers.reshape(-1), of_columns)


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """The inverse of the changes of ``(after_ts, upto_ts]``."""

    after_ts: int
    upto_ts: int
    nets: Sequence[NetRows]

    def tables(self, flavour: Flavour = Flavour.TIDB) -> list[TableUndo]:
        """Each table, for a server of a kind."""
        return [TableUndo(net, flavour) for net in self.nets]

    def summary(self) -> str:
        """The plan in words."""
        lines = [f"undo of ({self.after_ts}, {self.upto_ts}], from {as_time(self.after_ts)} to {as_time(self.upto_ts)} UTC"]
        for table in self.tables():
            inserted, deleted, updated = table.net.counts
            lines.append(f"{table.name}: {inserted} deletes, {updated} updates, {deleted} inserts")
        return "\n".join(lines if self.nets else [*lines, "nothing to undo"])

    def sql(self, flavour: Flavour = Flavour.TIDB) -> Iterator[str]:
        """The statements, each on its own: they are for a session of a person. Each change names the whole present row that it expects."""
        yield from (f"-- {line}" for line in self.summary().splitlines())
        if self.nets:
            unchecked = ("SET check_constraint_checks = 0",) if flavour is Flavour.MARIADB else ()
            yield from (*(f"{setting};" for setting in (*SETTINGS, *unchecked)), "BEGIN;")
            for _, _, statements in self._steps(flavour):
                # Clients that read a file take \r\n for \n.
                yield from (f"{sql.decode()};".replace("\r", "\\r") for sql in statements.to_pylist())
            yield "COMMIT;"

    def rows(self, flavour: Flavour = Flavour.TIDB) -> pa.Table:
        """The changes as rows (``UNDO``), in their order."""
        pieces, place = list[pa.Table](), 0
        for op, rows, statements in self._steps(flavour):
            count = len(rows)
            there = np.ones(count, np.bool_)
            cells = {
                "place": np.arange(place, place + count),
                "database": [rows.table.schema] * count,
                "table": [rows.table.name] * count,
                "op": [op] * count,
                "expected": _variants(rows, rows.now, there & (op != "insert")),
                "restored": _variants(rows, rows.was, there & (op != "delete")),
                "sql": statements.cast(pa.string()),
            }
            pieces.append(pa.table(cells, UNDO))
            place += count
        return pa.concat_tables([UNDO.empty_table(), *pieces])

    def _steps(self, flavour: Flavour) -> Iterator[tuple[str, NetRows, pa.BinaryArray]]:
        for op in ("delete", "update", "insert"):
            for table in self.tables(flavour):
                at = np.flatnonzero(table.rows_of(op))
                for begin in range(0, len(at), _AT_ONCE):
                    some = table.net.only(at[begin : begin + _AT_ONCE])
                    yield op, some, TableUndo(some, flavour).statements(op)


def differences(nets: Iterable[NetRows]) -> pa.Table:
    """Net changes as rows (``DIFFERENCE``)."""
    pieces = [DIFFERENCE.empty_table()]
    for net in nets:
        names = np.array([c.name for c in net.table.info.target_columns()])
        changes = np.array([net.changed([name]) for name in names])
        cells = {
            "op": np.where(net.inserted, "insert", np.where(net.deleted, "delete", "update")),
            "columns": [names[changes[:, row]].tolist() for row in range(len(net))],
            "before": _variants(net, net.was, net.was_there),
            "after": _variants(net, net.now, net.now_there),
        }
        pieces.append(pa.table(cells, DIFFERENCE))
    return pa.concat_tables(pieces)


def compared(table: TableAt, was: pa.RecordBatch, now: pa.RecordBatch) -> NetRows:
    """The net changes that make the rows ``was`` of a table ``now``: images of mirrors, which know no handles. Rows with one key are one row.

    ``ConfigError``: a mirror shows that it does not have a value of a row that is to come back.
    """
    columns, keys = table.info.target_columns(), table.info.unique_keys()
    same = places_of(row_texts(columns, now), row_texts(columns, was))
    was, now = was.filter(pa.array(same < 0)), now.take(pa.array(np.setdiff1d(np.arange(len(now)), same)))
    _require_kept(table, was)
    known = places_of(*(row_texts(keys[0], side) for side in (now, was))) if keys else np.full(len(was), -1, np.int64)
    came = np.setdiff1d(np.arange(len(now)), known)
    before, after = np.append(np.arange(len(was)), np.full(len(came), -1)), np.append(known, came)
    was, now = (side.take(pa.array(at, mask=at < 0)) for side, at in ((was, before), (now, after)))
    return NetRows(table, was, now, before >= 0, after >= 0)


def _require_kept(table: TableAt, rows: pa.RecordBatch) -> None:
    for column in table.info.target_columns():
        cells = rows.column(column.name)
        text = pa.types.is_binary(cells.type) and not column.charset.startswith(("utf8", "binary"))
        if column.flag & ColumnFlag.NOT_NULL and cells.null_count:
            what = "NULL in place of dates that no calendar has"
        elif text and pc.any(pc.match_substring(cells, "\ufffd")).as_py():
            what = "U+FFFD in place of bytes that are no UTF-8"
        else:
            continue
        raise ConfigError(
            f"column {column.name} of {table.schema}.{table.name} has {what} in the table before the span, so its rows cannot come back as they were; "
            f"{WITHOUT_DDL}"
        )


def _variants(rows: NetRows, images: pa.RecordBatch, there: Mask) -> pa.StructArray:
    if not there.any():
        return no_rows(len(there))
    return spread(image_variants(rows.table.info, images, len(images), json_nulls=True), np.arange(len(images)), there)


def row_texts(columns: Sequence[ColumnInfo], images: pa.RecordBatch, *, named: bool = False) -> pa.BinaryArray:
    """Each row as one text, which is another one for every other row. ``named``: for a person, with the names of ENUMs and SETs."""
    return join_cells(b"(", [_cells(c, images, named=named) for c in columns], [b","] * len(columns), b")")


def places_of(texts: pa.BinaryArray, wanted: pa.BinaryArray) -> Ints:
    """The place of each wanted text, each place once; -1: there is none."""
    unique = pc.unique(texts)
    codes = [pc.fill_null(pc.index_in(side, value_set=unique), -1).to_numpy() for side in (texts, wanted)]
    orders = [np.argsort(side, kind="stable") for side in codes]
    known, asked = (side[order] for side, order in zip(codes, orders, strict=True))
    # Behind as many as are asked for before.
    at = np.searchsorted(known, asked) + np.arange(len(asked)) - np.searchsorted(asked, asked)
    there, found = at < np.searchsorted(known, asked, "right"), np.full(len(wanted), -1, np.int64)
    found[orders[1][there]] = orders[0][at[there]]
    return found


def _cells(column: ColumnInfo, images: pa.RecordBatch, *, named: bool = False) -> Cells:
    found = images.column(column.name)
    if named and column.elems:
        return _names(column, found)
    made = literals(found, form_of(column, found.type))
    return _printable(found, made) if pa.types.is_binary(found.type) else made


def _names(column: ColumnInfo, values: pa.Array) -> Cells:
    """The literals of an ENUM or a SET: names, and the number of a value that no name has, or not alone."""
    found = values.dictionary_encode()
    words = typed(column, found.dictionary).values
    quoted = whole_literals(literals(words.cast(pa.binary()), LiteralForm.TEXT))
    texts = [
        text if _is_name(column, word) and column.number_of(word) == number else b"%d" % number
        for number, word, text in zip(found.dictionary.to_pylist(), words.to_pylist(), quoted, strict=True)
    ]
    return Cells(pa.array(texts, pa.binary()).take(found.indices))


def _is_name(column: ColumnInfo, word: str) -> bool:
    """Whether a text may be a value's alone: the empty one is also that of an ENUM's 0, and of a SET's empty member."""
    return bool(word) if column.tp == ColumnType.ENUM else "" not in column.elems


def _printable(values: pa.Array, cells: Cells) -> Cells:
    """``cells``, those of them in hexadecimal that a person's terminal or file would not keep: bytes that are no UTF-8."""
    try:
        pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        pairs = zip(values.to_pylist(), whole_literals(cells), strict=True)
        texts = [
            text if value is None or value.decode(errors="ignore").encode() == value else b"X'%b'" % value.hex().encode()
            for value, text in pairs
        ]
        return Cells(pa.array(texts, pa.binary()))
    return cells


def _by_kind(kinds: Ints, texts: Callable[[int, Ints], pa.BinaryArray]) -> pa.BinaryArray:
    """Texts that are made for the rows of a kind together, in the order of the rows."""
    places = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    pieces = [texts(int(kinds[at[0]]), at) for at in places]
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places)))) if places else pa.array([], pa.binary())
