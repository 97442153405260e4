"""The SQL that undoes net changes of a table: DELETE what came, UPDATE back, INSERT what went. Pure.

    DELETE FROM `shop`.`item` WHERE `id`=7 AND … every other column <=> its present value LIMIT 1
    UPDATE `shop`.`item` SET `price`=10 WHERE `id`=8 AND … LIMIT 1
    INSERT INTO `shop`.`item` (`id`,`price`) VALUES (9,11)

Each row is touched once. An update that changes a column of a unique key is a DELETE and an INSERT, so that no order of updates is needed: if all
DELETEs come first and all INSERTs last, no two rows ever have one key, whatever they exchange.

Promises: texts are made a whole column at a time. They are for a session in UTC without foreign key checks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf.sql_mode import ALWAYS, ANY_DATE
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import whole as whole_literals
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, delete_head, key_condition, match_condition, table_name, write_head
from pyspark_tidb_binlog.sinks.mysql.literals import Cells, form_of, join_cells, join_conditions, literals
from pyspark_tidb_binlog.sinks.past.net_rows import Ints, Mask, NetRows, differs

SETTINGS = (
    "SET NAMES utf8mb4",
    f"SET time_zone = '+00:00', foreign_key_checks = 0, sql_mode = '{ALWAYS},{ANY_DATE}'",
)
"""What the statements need of a session that a person opens."""
NO_KEY = -1


@dataclass(frozen=True)
class TableUndo:
    """The inverse of a table's net changes."""

    net: NetRows
    flavour: Flavour = Flavour.TIDB
    """Whose SQL is written."""

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """Those that are compared and written."""
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

    @property
    def removes(self) -> Mask:
        """The rows that are deleted."""
        return self.net.inserted | self.moved

    @property
    def sets(self) -> Mask:
        """The rows that are updated."""
        return self.net.updated & ~self.moved

    @property
    def writes(self) -> Mask:
        """The rows that are inserted."""
        return self.net.deleted | self.moved

    def rows_of(self, op: str) -> Mask:
        """``removes`` ('delete'), ``sets`` ('update') or ``writes`` ('insert')."""
        return {"delete": self.removes, "update": self.sets, "insert": self.writes}[op]

    def statements(self, op: str) -> pa.BinaryArray:
        """The statements of ``rows_of(op)``, in the order of the rows, each with all that its row is to be."""
        found = self.net.only(self.rows_of(op))
        match op:
            case "delete":
                return self.deletes(found.now, whole=True)
            case "update":
                return self.updates(found, whole=True)
            case _:
                return pc.binary_join_element_wise(_bytes(self.insert_head), self.rows(found.was), _bytes(b""))

    @property
    def insert_head(self) -> bytes:
        """What comes before the rows of an INSERT."""
        return write_head(self.net.table.schema, self.net.table.name, [c.name for c in self.columns])

    def rows(self, images: pa.RecordBatch) -> pa.BinaryArray:
        """Each row as one text, which is another one for every other row."""
        return row_texts(self.columns, images)

    def key_numbers(self, images: pa.RecordBatch) -> Ints:
        """For each row which of the unique keys finds it: the first one without NULL; ``NO_KEY``: none does."""
        found = np.full(len(images), NO_KEY, np.int64)
        for number, key in enumerate(self.net.table.info.unique_keys()):
            whole = np.ones(len(images), np.bool_)
            for column in key:
                whole &= images.column(column.name).is_valid().to_numpy(zero_copy_only=False)
            found[(found == NO_KEY) & whole] = number
        return found

    @property
    def finds_by_all(self) -> bool:
        """Whether there are rows that no unique key finds."""
        return any(bool((self.key_numbers(images) == NO_KEY).any()) for images in (self.net.was, self.net.now))

    def conditions(self, images: pa.RecordBatch, *, whole: bool = False) -> pa.BinaryArray:
        """What finds each row: its key, or all its columns. ``whole``: all its columns in any case, the key first."""
        numbers = self.key_numbers(images)
        pieces, places = list[pa.Array](), list[Ints]()
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            some = images.take(pa.array(at))
            key = self.net.table.info.unique_keys()[number] if number != NO_KEY else ()
            terms = [(c, key_condition(c, self.flavour)) for c in key]
            if whole or not key:
                matches = [(c, match_condition(c, self.flavour, False)) for c in self.columns]
                terms += [(c, texts) for c, texts in matches if c not in key or not texts[0].endswith(b"` <=> ")]
            found = ((b" AND " if n else b"", texts, _cells(c, some)) for n, (c, texts) in enumerate(terms))
            pieces.append(join_conditions(b"", found, b""))
            places.append(at)
        return _placed(pieces, places)

    def deletes(self, images: pa.RecordBatch, *, whole: bool = False) -> pa.BinaryArray:
        """A DELETE of each row."""
        head = delete_head(self.net.table.schema, self.net.table.name)
        return pc.binary_join_element_wise(_bytes(head), self.conditions(images, whole=whole), _bytes(b" LIMIT 1"), _bytes(b""))

    def updates(self, rows: NetRows, *, whole: bool = False) -> pa.BinaryArray:
        """An UPDATE of each row, of the columns that change, and of those that the server would change by itself (ON UPDATE CURRENT_TIMESTAMP)."""
        changes = np.array(
            [differs(rows.was.column(c.name), rows.now.column(c.name)) | (c.flag & ColumnFlag.ON_UPDATE_NOW != 0) for c in self.columns]
        )
        conditions = self.conditions(rows.now, whole=whole)
        pieces, places = list[pa.Array](), list[Ints]()
        for at, names in _patterns(changes):
            some, columns = rows.was.take(pa.array(at)), [self.columns[n] for n in names]
            heads = [f"{quote_name(c.name)}=".encode() for c in columns]
            between = [b"," + head for head in heads[1:]] + [b""]
            opening = f"UPDATE {self.name} SET ".encode() + heads[0]
            sets = join_cells(opening, [_cells(c, some) for c in columns], between, b" WHERE ")
            pieces.append(pc.binary_join_element_wise(sets, conditions.take(pa.array(at)), _bytes(b" LIMIT 1"), _bytes(b"")))
            places.append(at)
        return _placed(pieces, places)


def row_texts(columns: Sequence[ColumnInfo], images: pa.RecordBatch) -> pa.BinaryArray:
    """Each row as one text, which is another one for every other row."""
    return join_cells(b"(", [_cells(c, images) for c in columns], [b","] * len(columns), b")")


def places_of(texts: pa.BinaryArray, wanted: pa.BinaryArray) -> Ints:
    """Where each wanted text is, each place once; -1: nowhere."""
    unique = pc.unique(texts)
    codes = [pc.fill_null(pc.index_in(side, value_set=unique), -1).to_numpy() for side in (texts, wanted)]
    orders = [np.argsort(side, kind="stable") for side in codes]
    known, asked = (side[order] for side, order in zip(codes, orders, strict=True))
    # Behind as many as are asked for before.
    at = np.searchsorted(known, asked) + np.arange(len(asked)) - np.searchsorted(asked, asked)
    there, found = at < np.searchsorted(known, asked, "right"), np.full(len(wanted), -1, np.int64)
    found[orders[1][there]] = orders[0][at[there]]
    return found


def _cells(column: ColumnInfo, images: pa.RecordBatch) -> Cells:
    found = images.column(column.name)
    made = literals(found, form_of(column, found.type))
    return _printable(found, made) if pa.types.is_binary(found.type) else made


def _printable(values: pa.Array, cells: Cells) -> Cells:
    """``cells``, those of them in hexadecimal that a person's terminal or file would not keep: bytes that are no UTF-8."""
    try:
        pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        pairs = zip(values.to_pylist(), whole_literals(cells), strict=True)
        texts = [text if value is None or _is_utf8(value) else b"X'%b'" % value.hex().encode() for value, text in pairs]
        return Cells(pa.array(texts, pa.binary()))
    return cells


def _is_utf8(value: bytes) -> bool:
    return value.decode(errors="ignore").encode() == value


def _patterns(changes: Mask) -> Iterator[tuple[Ints, Sequence[int]]]:
    """The rows in which the same columns change, and these columns."""
    if not changes.shape[1]:
        return
    kinds, kind = np.unique(changes, axis=1, return_inverse=True)
    for number in range(kinds.shape[1]):
        yield np.flatnonzero(kind.reshape(-1) == number), np.flatnonzero(kinds[:, number]).tolist()


def _placed(pieces: Sequence[pa.BinaryArray], places: Sequence[Ints]) -> pa.BinaryArray:
    """The texts in the order of their places."""
    if not pieces:
        return pa.array([], pa.binary())
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _bytes(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())
