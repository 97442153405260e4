"""Executes an undo at a MySQL-protocol server, the upstream or another one, in one transaction. [db]

    1. SELECT … FOR UPDATE of every row that is to be changed, or whose key is to be used
    2. rows that are not exactly the expected ones are listed, and left as they are
    3. DELETE, UPDATE, INSERT of the others (``undo_sql``)
    4. what was written is read again: a row that the server has made another one is undone without it from the beginning
    5. COMMIT

Promises: all or nothing, but for the rows that are listed. A row is compared in each column that the lake has, as decoded: text by its bytes, numbers by their
digits, NULL only with NULL. An undo that is executed again changes nothing. Where a table has no unique key, a row that went is not inserted if an equal
one is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.row_images import with_equal_documents
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import arrow_of, expression
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect, run_retried
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.past.net_rows import Ints, Mask
from pyspark_tidb_binlog.sinks.past.undo_plan import UndoPlan
from pyspark_tidb_binlog.sinks.past.undo_sql import NO_KEY, TableUndo

_ROWS, _BYTES = 200, 256 << 10
"""Rows, and about bytes, of one statement."""
_DUPLICATE = 1062
CHANGED, BEFORE, TAKEN = "is not what the span left", "is already as it was before", "its key is another row's"
ALTERED = "the server would make another row of it (a trigger, or a column that does not hold its value)"


@dataclass(frozen=True, slots=True)
class LeftRow:
    """A row that was not touched."""

    table: str
    row: str
    """What finds it."""
    why: str

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.why}"


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo has done."""

    rows: int
    """That are as they were before."""
    left: tuple[LeftRow, ...]
    """All others of the plan."""


def undone(plan: UndoPlan, target: TargetConfig) -> Undone:
    """Execute ``plan`` at ``target``.

    Raises:
        ApplyError: the server refuses it; nothing is changed. After a lost connection it is tried again.
    """
    clashes: dict[tuple[int, int], str] = {}

    def attempt(session: Session) -> Undone | dict[tuple[int, int], str]:
        return _Attempt(session, plan, dict(clashes)).run()

    while not isinstance(done := run_retried(lambda: connect(target, ApplyConfig()), attempt, FEW, _begin), Undone):
        clashes |= done
    return done


def _begin(session: Session) -> None:
    # ``connect`` asks TiDB for optimistic transactions, in which nothing is locked.
    session.execute("BEGIN PESSIMISTIC" if session.flavour is Flavour.TIDB else "BEGIN")


@dataclass
class _Attempt:
    """One transaction."""

    session: Session
    plan: UndoPlan
    left: dict[tuple[int, int], str]
    """Why rows, by table and number, are left as they are."""
    clashes: dict[tuple[int, int], str] = field(default_factory=dict)
    """Rows that could not be inserted, so that the transaction is to be tried without them."""

    def run(self) -> Undone | dict[tuple[int, int], str]:
        """Done; or the rows without which it is to be done."""
        tables = self.plan.tables(self.session.flavour)
        self._require_tables(tables)
        oks = [self._expected(number, table) for number, table in enumerate(tables)]
        for table, ok in zip(tables, oks, strict=True):
            self._delete(table, ok & table.removes)
        # What was deleted takes no key any more.
        for number, (table, ok) in enumerate(zip(tables, oks, strict=True)):
            self._require_free(number, table, ok)
        for table, ok in zip(tables, oks, strict=True):
            for sql in table.updates(table.net.only(ok & table.sets)).to_pylist():
                self._require(self.session.execute(sql), 1, table)
        for number, (table, ok) in enumerate(zip(tables, oks, strict=True)):
            self._insert(number, table, ok & table.writes)
        if not self.clashes:
            for number, (table, ok) in enumerate(zip(tables, oks, strict=True)):
                self._verify(number, table, np.flatnonzero(ok & table.net.was_there))
        if self.clashes:
            self.session.rollback()
            return self.clashes
        self.session.commit()
        return Undone(int(sum(ok.sum() for ok in oks)), tuple(self._told(tables)))

    def _require_tables(self, tables: Sequence[TableUndo]) -> None:
        """Rows can only be compared and brought back in tables that have the lake's columns, and a transaction."""
        known = read_tables(self.session, {(t.net.table.schema, t.net.table.name) for t in tables})
        for table in tables:
            there = known.get((table.net.table.schema, table.net.table.name))
            if there is None:
                raise ApplyError(f"the server has no table {table.name}, or does not show it to this account; nothing is changed")
            columns = {c.name.lower() for c in table.columns}
            if more := [c.name for c in there.columns if not c.generated and c.name.lower() not in columns]:
                raise ApplyError(
                    f"{table.name} has a column {more[0]} at the server, which the lake does not have at its newest moment: what somebody changed in it "
                    "would not be seen; nothing is changed. If a DDL has added it, try again when the lake has that DDL"
                )
            json = [c.name for c in table.columns if kind_of(c) is CellKind.JSON]
            if json and self.session.flavour is Flavour.MARIADB and table.finds_by_all:
                raise ApplyError(
                    f"{table.name} has rows without a unique key, and MariaDB compares its JSON column {json[0]} as text, so another row could be taken for "
                    "one of them; nothing is changed. Undo this table on its own by the printed SQL, and the others by naming them"
                )
            if not there.transactional:
                raise ApplyError(f"{table.name} has no transactions at the server ({there.engine}); nothing is changed")

    def _verify(self, number: int, table: TableUndo, rows: Ints) -> None:
        """Have the transaction tried without those rows that are not what was written."""
        if len(rows):
            wanted = table.net.was.take(pa.array(rows))
            self._clash(number, table, rows[~_among(table.rows(wanted), table.rows(self._present(table, wanted)))], ALTERED)

    def _expected(self, number: int, table: TableUndo) -> Mask:
        """The rows that are as the span left them, which are locked."""
        net = table.net
        ok = np.ones(len(net), np.bool_)
        there = np.flatnonzero(net.now_there)
        if len(there):
            present = net.now.take(pa.array(there))
            found = self._present(table, present)
            good = _among(table.rows(present), table.rows(found))
            keys, found_keys = table.conditions(present), table.conditions(found)
            # Where the server has no such unique key, a statement may find another row.
            good &= ~((table.key_numbers(present) != NO_KEY) & _is_in(keys, _repeated(found_keys)))
            was = net.was.take(pa.array(there))
            # Of a row that has another key: where it was before.
            elsewhere = self._present(table, was.filter(pa.array(table.moved[there]))) if table.moved[there].any() else found
            back = _among(table.rows(was), table.rows(found)) | _among(table.rows(was), table.rows(elsewhere))
            # A collation, or another key, finds what is not written alike: then a row that seems to be gone may be there.
            gone = ~_is_in(keys, found_keys) & bool(_is_in(found_keys, keys).all())
            before = np.where(net.was_there[there], back, gone)
            self._leave(number, there[~good & before], BEFORE)
            self._leave(number, there[~good & ~before], CHANGED)
            ok[there] = good
        ok[[row for of, row in self.left if of == number]] = False
        if net.partners is not None:
            # A row that somebody has changed under its new key stays there.
            tied = np.flatnonzero((net.partners >= 0) & ok & ~ok[net.partners])
            if len(tied):
                was = net.was.take(pa.array(tied))
                there_again = _is_in(table.rows(was), table.rows(self._present(table, was)))
                for row, again in zip(tied.tolist(), there_again.tolist(), strict=True):
                    why = self.left[number, int(net.partners[row])]
                    # That nothing is under the new key is as before only if the row is under the former one.
                    self.left.setdefault((number, row), CHANGED if why == BEFORE and not again else why)
                ok[tied] = False
        return ok

    def _require_free(self, number: int, table: TableUndo, ok: Mask) -> None:
        """Leave out rows that went, and whose keys another row has, or that are there again."""
        came = np.flatnonzero(table.net.deleted & ok)
        if len(came):
            wanted = table.net.was.take(pa.array(came))
            found = self._present(table, wanted)
            same, taken = _is_in(table.rows(wanted), table.rows(found)), _is_in(table.conditions(wanted), table.conditions(found))
            self._leave(number, came[same], BEFORE)
            self._leave(number, came[taken & ~same], TAKEN)
            ok[came] = ~same & ~taken
            self._clash(number, table, came[(same | taken) & (_partner(table, came) >= 0)], TAKEN)

    def _clash(self, number: int, table: TableUndo, rows: Ints, why: str) -> None:
        """Have the transaction tried without these rows, which then stay under the keys that they have."""
        for row, partner in zip(rows.tolist(), _partner(table, rows).tolist(), strict=True):
            self.clashes |= {(number, one): why for one in (row, partner) if one >= 0}

    def _leave(self, number: int, rows: np.ndarray, why: str) -> None:
        for row in rows.tolist():
            self.left.setdefault((number, row), why)

    def _present(self, table: TableUndo, images: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have the keys of ``images``, which are locked; without a key the equal ones."""
        asked = ", ".join(map(expression, table.columns))
        head = f"SELECT {asked} FROM {table.name} WHERE ".encode()
        schema = images.schema
        pieces = list[pa.Table]()
        for conditions in _chunks(pc.unique(table.conditions(images))):
            with self.session.stream(head + b"(" + b") OR (".join(conditions) + b") FOR UPDATE") as blocks:
                for block in blocks:
                    found = arrow_of(table.columns, block)
                    cells = [with_equal_documents(c, cells.combine_chunks()) for c, cells in zip(table.columns, found.columns, strict=True)]
                    pieces.append(pa.Table.from_arrays(cells, schema=schema))
        whole = pa.concat_tables([schema.empty_table(), *pieces]).combine_chunks()
        return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)

    def _delete(self, table: TableUndo, rows: Mask) -> None:
        images = table.net.only(rows).now
        by_key = table.key_numbers(images) != NO_KEY
        for conditions in _chunks(table.conditions(images.filter(pa.array(by_key)))):
            sql = f"DELETE FROM {table.name} WHERE ".encode() + b"(" + b") OR (".join(conditions) + b")"
            self._require(self.session.execute(sql), len(conditions), table)
        for sql in table.deletes(images.filter(pa.array(~by_key))).to_pylist():
            self._require(self.session.execute(sql), 1, table)

    def _insert(self, number: int, table: TableUndo, rows: Mask) -> None:
        texts, at = table.rows(table.net.only(rows).was), np.flatnonzero(rows).tolist()
        for chunk in _chunks(texts):
            mine, at = at[: len(chunk)], at[len(chunk) :]
            if self._inserted(table, chunk):
                continue
            # Some of them cannot be there: which, is found one by one.
            refused = [row for row, text in zip(mine, chunk, strict=True) if not self._inserted(table, [text])]
            self._clash(number, table, np.array(refused, np.int64), TAKEN)

    def _inserted(self, table: TableUndo, rows: Sequence[bytes]) -> bool:
        try:
            self.session.execute(table.insert_head + b",".join(rows))
        except ApplyError as error:
            if error.errno != _DUPLICATE:
                raise
            return False
        return True

    def _require(self, affected: int, wanted: int, table: TableUndo) -> None:
        if affected != wanted:
            raise ApplyError(
                f"{table.name}: {affected} rows in place of {wanted} were changed, which were locked and compared before; nothing is changed. Look for "
                "triggers on the table"
            )

    def _told(self, tables: Sequence[TableUndo]) -> Iterator[LeftRow]:
        for number, table in enumerate(tables):
            rows = sorted(row for of, row in self.left if of == number)
            if not rows:
                continue
            net = table.net.only(np.array(rows, np.int64))
            images = [table.conditions(one) for one in (net.now, net.was)]
            for place, row in enumerate(rows):
                text = images[0 if net.now_there[place] else 1][place].as_py()
                yield LeftRow(table.name, text.decode("utf-8", "backslashreplace"), self.left[number, row])


def _partner(table: TableUndo, rows: Ints) -> Ints:
    return table.net.partners[rows] if table.net.partners is not None else np.full(len(rows), -1, np.int64)


def _is_in(texts: pa.BinaryArray, known: pa.BinaryArray) -> Mask:
    return pc.is_in(texts, value_set=known).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _among(texts: pa.BinaryArray, known: pa.BinaryArray) -> Mask:
    """Which texts are known, each known one once."""
    found = _is_in(texts, known)
    if not found.any():
        return found
    counts = {one["values"]: one["counts"] for one in pc.value_counts(known).to_pylist()} if len(pc.unique(texts)) < len(texts) else None
    if counts is not None:
        for place in np.flatnonzero(found).tolist():
            text = texts[place].as_py()
            counts[text] -= 1
            found[place] = counts[text] >= 0
    return found


def _repeated(texts: pa.BinaryArray) -> pa.BinaryArray:
    counts = pc.value_counts(texts)
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


def _chunks(texts: pa.BinaryArray) -> Iterator[list[bytes]]:
    held, size = list[bytes](), 0
    for text in texts.to_pylist():
        if held and (len(held) == _ROWS or size + len(text) > _BYTES):
            yield held
            held, size = [], 0
        held.append(text)
        size += len(text)
    if held:
        yield held
