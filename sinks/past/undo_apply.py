"""Executes an undo at a MySQL-protocol server, the upstream or another one, in one transaction. [db]

    1. SELECT … FOR UPDATE of every row that is to be changed, or whose key is to be used
    2. rows that are not exactly the expected ones are listed, and left as they are
    3. DELETE, UPDATE, INSERT of the others (``undo_plan``)
    4. what was written is read again: a row that the server has made another one is undone without it from the beginning
    5. COMMIT

Promises: all or nothing, but for the rows that are listed. A row is compared in each column that the lake has, as decoded: text by its bytes, numbers by their
digits, NULL only with NULL. An undo that is executed again changes nothing. Where a table has no unique key, a row that went is not inserted if an equal
one is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.row_images import with_equal_documents
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import arrow_of, expression
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.matching import NO_KEY
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect, session_for
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.past.past_changes import Ints, Mask
from pyspark_tidb_binlog.sinks.past.undo_plan import TableUndo, UndoPlan, places_of

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
    """The result of an undo."""

    rows: int
    """That are as they were before."""
    left: tuple[LeftRow, ...]
    """All others of the plan."""


Left = dict[int, str]
"""Rows of a table, by their numbers, and why they are left as they are."""


def undone(plan: UndoPlan, target: TargetConfig) -> Undone:
    """Execute ``plan`` at ``target``. ``ApplyError``: the server refuses it; nothing is changed. After a lost connection it is tried again."""
    known: list[Left] = [{} for _ in plan.nets]
    while True:
        for attempt in retrying(FEW):
            with attempt, session_for(partial(connect, target, ApplyConfig()), attempt, _begin) as session:
                tables = zip(plan.tables(session.flavour), map(dict, known), strict=True)
                done = _attempt(session, [_TableAttempt(session, *one) for one in tables])
        if isinstance(done, Undone):
            return done
        known = [left | more for left, more in zip(known, done, strict=True)]


def _begin(session: Session) -> None:
    # ``connect`` asks TiDB for optimistic transactions, in which nothing is locked.
    session.execute("BEGIN PESSIMISTIC" if session.flavour is Flavour.TIDB else "BEGIN")


def _attempt(session: Session, tables: Sequence["_TableAttempt"]) -> Undone | list[Left]:
    """Try one transaction. Returns its result; or, for each table, the rows without which it is to be tried again."""
    _require_tables(session, [table.undo for table in tables])
    # What was deleted takes no key any more.
    for step in (_TableAttempt.expect, _TableAttempt.delete, _TableAttempt.require_free, _TableAttempt.update, _TableAttempt.insert):
        for table in tables:
            step(table)
    if not any(table.clashes for table in tables):
        for table in tables:
            table.verify()
    if any(table.clashes for table in tables):
        session.rollback()
        return [table.clashes for table in tables]
    session.commit()
    return Undone(sum(int(table.ok.sum()) for table in tables), tuple(row for table in tables for row in table.left_rows()))


def _require_tables(session: Session, tables: Sequence[TableUndo]) -> None:
    """Rows can only be compared and brought back in tables that have the lake's columns, and a transaction."""
    known = read_tables(session, {(t.net.table.schema, t.net.table.name) for t in tables})
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
        if json and session.flavour is Flavour.MARIADB and table.finds_by_all:
            raise ApplyError(
                f"{table.name} has rows without a unique key, and MariaDB compares its JSON column {json[0]} as text, so another row could be taken for "
                "one of them; nothing is changed. Undo this table on its own by the printed SQL, and the others by naming them"
            )
        if not there.transactional:
            raise ApplyError(f"{table.name} has no transactions at the server ({there.engine}); nothing is changed")


@dataclass
class _TableAttempt:
    """One table in one transaction."""

    session: Session
    undo: TableUndo
    left: Left
    clashes: Left = field(default_factory=dict)
    """Rows without which the transaction is to be tried."""
    ok: Mask = field(init=False)
    """The rows that are brought back."""

    def expect(self) -> None:
        """Find the rows that are as the span left them, and lock them."""
        undo, net = self.undo, self.undo.net
        self.ok = ok = np.ones(len(net), np.bool_)
        there = np.flatnonzero(net.now_there)
        if len(there):
            present = net.now.take(pa.array(there))
            found = self._present(present)
            good = _among(undo.rows(present), undo.rows(found))
            keys, found_keys = undo.conditions(present), undo.conditions(found)
            # Where the server has no such unique key, a statement may find another row.
            good &= ~((undo.key_numbers(present) != NO_KEY) & _is_in(keys, _repeated(found_keys)))
            was = net.was.take(pa.array(there))
            # Of a row that has another key: where it was before.
            elsewhere = self._present(was.filter(pa.array(undo.moved[there]))) if undo.moved[there].any() else found
            back = _among(undo.rows(was), undo.rows(found)) | _among(undo.rows(was), undo.rows(elsewhere))
            # A collation, or another key, finds what is not written alike: then a row that seems to be gone may be there.
            gone = ~_is_in(keys, found_keys) & bool(_is_in(found_keys, keys).all())
            before = np.where(net.was_there[there], back, gone)
            self._leave(there[~good & before], BEFORE)
            self._leave(there[~good & ~before], CHANGED)
            ok[there] = good
        ok[list(self.left)] = False

    def delete(self) -> None:
        """DELETE what goes."""
        images = self.undo.net.only(self.ok & self.undo.rows_of("delete")).now
        by_key = self.undo.key_numbers(images) != NO_KEY
        for conditions in _chunks(self.undo.conditions(images.filter(pa.array(by_key)))):
            sql = f"DELETE FROM {self.undo.name} WHERE ".encode() + b"(" + b") OR (".join(conditions) + b")"
            self._execute(sql, len(conditions))
        for sql in self.undo.deletes(images.filter(pa.array(~by_key))).to_pylist():
            self._execute(sql, 1)

    def require_free(self) -> None:
        """Leave out rows that went, and whose keys another row has, or that are there again."""
        undo, came = self.undo, np.flatnonzero(self.undo.net.deleted & self.ok)
        if len(came):
            wanted = undo.net.was.take(pa.array(came))
            found = self._present(wanted)
            same, taken = _is_in(undo.rows(wanted), undo.rows(found)), _is_in(undo.conditions(wanted), undo.conditions(found))
            self._leave(came[same], BEFORE)
            self._leave(came[taken & ~same], TAKEN)
            self.ok[came] = ~same & ~taken

    def update(self) -> None:
        """UPDATE what is there under its key."""
        for sql in self.undo.updates(self.undo.net.only(self.ok & self.undo.rows_of("update"))).to_pylist():
            self._execute(sql, 1)

    def insert(self) -> None:
        """INSERT what comes back."""
        at = np.flatnonzero(self.ok & self.undo.rows_of("insert")).tolist()
        for chunk in _chunks(self.undo.rows(self.undo.net.was.take(pa.array(at, pa.int64())))):
            mine, at = at[: len(chunk)], at[len(chunk) :]
            if not self._inserted(chunk):
                # Some of them cannot be there: which, is found one by one.
                refused = [row for row, text in zip(mine, chunk, strict=True) if not self._inserted([text])]
                self._clash(np.array(refused, np.int64), TAKEN)

    def verify(self) -> None:
        """Find the rows that are not what was written."""
        rows = np.flatnonzero(self.ok & self.undo.net.was_there)
        if len(rows):
            wanted = self.undo.net.was.take(pa.array(rows))
            self._clash(rows[~_among(self.undo.rows(wanted), self.undo.rows(self._present(wanted)))], ALTERED)

    def left_rows(self) -> Iterator[LeftRow]:
        """The rows that were left."""
        rows = sorted(self.left)
        net = self.undo.net.only(np.array(rows, np.int64))
        now, was = self.undo.conditions(net.now), self.undo.conditions(net.was)
        for place, row in enumerate(rows):
            text = (now if net.now_there[place] else was)[place].as_py()
            yield LeftRow(self.undo.name, text.decode("utf-8", "backslashreplace"), self.left[row])

    def _clash(self, rows: Ints, why: str) -> None:
        """Have the transaction tried without these rows, which then stay under the keys that they have."""
        self.clashes |= dict.fromkeys(rows.tolist(), why)

    def _leave(self, rows: Ints, why: str) -> None:
        self.left = dict.fromkeys(rows.tolist(), why) | self.left

    def _present(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have the keys of ``images``, which are locked; without a key the equal ones."""
        columns, schema = self.undo.columns, images.schema
        head = f"SELECT {', '.join(map(expression, columns))} FROM {self.undo.name} WHERE ".encode()
        pieces = [schema.empty_table()]
        for conditions in _chunks(pc.unique(self.undo.conditions(images))):
            with self.session.stream(head + b"(" + b") OR (".join(conditions) + b") FOR UPDATE") as blocks:
                for block in blocks:
                    found = arrow_of(columns, block)
                    cells = [with_equal_documents(c, cells.combine_chunks()) for c, cells in zip(columns, found.columns, strict=True)]
                    pieces.append(pa.Table.from_arrays(cells, schema=schema))
        whole = pa.concat_tables(pieces).combine_chunks()
        return whole.to_batches()[0] if whole.num_rows else images.slice(0, 0)

    def _inserted(self, rows: Sequence[bytes]) -> bool:
        try:
            self.session.execute(self.undo.insert_head + b",".join(rows))
        except ApplyError as error:
            if error.errno != _DUPLICATE:
                raise
            return False
        return True

    def _execute(self, sql: bytes, wanted: int) -> None:
        """Have so many rows changed."""
        affected = self.session.execute(sql)
        if affected != wanted:
            raise ApplyError(
                f"{self.undo.name}: {affected} rows in place of {wanted} were changed, which were locked and compared before; nothing is changed. Look for "
                "triggers on the table"
            )


def _is_in(texts: pa.BinaryArray, known: pa.BinaryArray) -> Mask:
    return pc.is_in(texts, value_set=known).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _among(texts: pa.BinaryArray, known: pa.BinaryArray) -> Mask:
    """A mask of the known texts, each known one once."""
    return places_of(known, texts) >= 0


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
