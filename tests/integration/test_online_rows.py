"""Rows of every schema version that a running DDL knows, written by the embedded upstream, planned over every cut, applied to a real MariaDB.

Each story is one table and one ALTER TABLE. In each of its states sessions of that schema version and of the one before it insert, update and
delete, alike rows among them; the target must hold the upstream's rows at the end, as many as it after each batch, and every DELETE must find what
it is meant for.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.online import Change
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, TRANSACTION
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.batch import merge, rows_between, summarise
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.plan import Phase, PlanLimits
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.fakes.written import Written
from tests.support.plan_samples import plan_rows

pytestmark = pytest.mark.mysql

A, B, C = Column("a", "int"), Column("b", "varchar(10)"), Column("c", "int")
TABLES = {
    "keyless": Table("t", (A, B, C)),
    "nullable": Table("t", (A, B, C), unique=(("a",),)),
    "two columns": Table("t", (A, B, C), unique=(("a", "b"),)),
    "prefix": Table("t", (A, B, C), unique=(("b(3)",),)),
    "case": Table("t", (A, Column("b", "varchar(10)", collate="utf8mb4_general_ci"), C), unique=(("b",),)),
    "key and nullable": Table("t", (A, B, C), ("a",), unique=(("b",),)),
    "loose key": Table("t", (A, B, C), ("a",), clustered=False, unique=(("c",),)),
}
D = Column("d", "int", default=7)
CHANGES: dict[str, Callable[[], tuple[Change, ...]]] = {
    "add": lambda: (online.add_column(D),),
    "add first": lambda: (online.add_column(Column("d", "varchar(5)", not_null=True, default="x"), ""),),
    "add null after": lambda: (online.add_column(Column("d", "int"), "a"),),
    "drop": lambda: (online.drop_column("c"),),
    "drop b": lambda: (online.drop_column("b"),),
    "modify": lambda: (online.modify_column(Column("c", "varchar(12)"), _text),),
    "modify b": lambda: (online.modify_column(Column("b", "varchar(30)")),),
    "rename": lambda: (online.rename_column("c", "z"),),
    "change": lambda: (online.modify_column(Column("z", "bigint"), old_name="c"),),
    "add unique": lambda: (online.add_index("ux", "a", "b", unique=True),),
    "add index": lambda: (online.add_index("ix", "b"),),
    "drop index": lambda: (online.drop_index("u1"),),
    "drop and add": lambda: (online.drop_column("c"), online.add_column(D)),
    "add and drop": lambda: (online.add_column(D, "a"), online.drop_column("c"), online.add_index("ix", "a")),
    "modify and drop": lambda: (online.modify_column(Column("b", "varbinary(20)"), _bytes), online.drop_column("c")),
}
COLUMNS = ("add first", "drop", "drop b", "modify", "drop index", "drop and add", "modify and drop")
STORIES = [
    *(("keyless", change) for change in CHANGES if change != "drop index"),
    *(("nullable", change) for change in CHANGES),
    *((table, change) for table in ("two columns", "prefix", "case", "key and nullable", "loose key") for change in COLUMNS),
]
STORIES.remove(("two columns", "drop b"))  # TiDB drops no column of a wider index
QUICK = [story for place, story in enumerate(STORIES) if story[0] in ("keyless", "nullable") or place % 2]
"""In ``make test``: each change without a key and with one that may be NULL, and half of the changes of each other table."""


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


@dataclass
class Story:
    """What happened, and what there is to see of it."""

    written: Written = field(default_factory=Written)
    sizes: dict[int, int] = field(default_factory=dict)
    """Rows of the table by the commit_ts that left it so."""

    def __post_init__(self) -> None:
        self.upstream = Upstream(self.written)
        self._last = 0

    def change(self, version: int, work: Callable[[Any], object]) -> None:
        txn = self.upstream.begin(version)
        work(txn)
        commit_ts = txn.commit()
        self.sizes[commit_ts] = len(self.upstream.store.table("d.t").rows)

    @property
    def rows(self) -> Counter[tuple[Any, ...]]:
        """The table's content now."""
        return Counter(tuple(r.values()) for r in self.upstream.rows("d.t").values())


class Writers:
    """Sessions that write rows, valid under every unique key of the story's table."""

    def __init__(self, story: Story, seed: str) -> None:
        self._story = story
        self._random = random.Random(seed)
        self._drawn = 0
        self.fresh: list[Any] = []

    def some(self, version: int) -> None:
        """Insert two rows that are alike, if the keys allow it, and one that is like no other; update one row, delete two."""
        self._story.change(version, self._insert)
        self._story.change(version, self._update)
        self._story.change(version, self._delete)

    def _insert(self, txn: Any) -> None:
        info = self._info(txn)
        row = self._row(info, alike=True)
        for _ in range(2):
            self.fresh.append(txn.insert("d.t", row))
            if info.unique_keys() and any(c.not_null for c in info.unique_keys()[0]):
                row = self._row(info, alike=True)
        self.fresh.append(txn.insert("d.t", self._row(info, alike=False)))

    def _update(self, txn: Any) -> None:
        handle = self._random.choice(self.fresh)
        row = self._row(self._info(txn), alike=False)
        self.fresh.remove(handle)
        self.fresh.append(txn.update("d.t", handle, row))

    def _delete(self, txn: Any) -> None:
        for _ in range(2):
            txn.delete("d.t", self.fresh.pop(self._random.randrange(len(self.fresh))))

    def _info(self, txn: Any) -> Any:
        return self._story.upstream.store.table("d.t").at(txn.schema_version)

    def _row(self, info: Any, *, alike: bool) -> dict[str, Any]:
        """NULL in every key that may have it for rows that are alike."""
        self._drawn += 1
        n = self._drawn
        keyed = {c.name for key in info.unique_keys() for c in key} | {"a", "b"}
        row: dict[str, Any] = {}
        for column in info.target_columns():
            if alike and column.name == "d":
                # rows that differ in nothing but a column that some sessions do not know yet: no binlog says which of them goes
                continue
            number = 1 if alike and not column.not_null else n
            if alike and column.name in keyed and not column.not_null:
                row[column.name] = None
            elif column.tp in (ColumnType.INT, ColumnType.BIGINT):
                row[column.name] = number
            else:
                text = str(number) if column.name == "c" else f"{number:03d}x"
                row[column.name] = text.encode() if column.charset == "binary" else text
        return row


def tell(table: str, change: str, seed: int = 1) -> Story:
    story = Story()
    upstream = story.upstream
    upstream.ddl.create_database("d")
    upstream.ddl.create_table("d", TABLES[table])
    writers = Writers(story, f"{table} {change} {seed}")
    before = upstream.schema_version
    for _ in range(2):
        writers.some(before)
    ddl = upstream.ddl.start("d.t", *CHANGES[change]())
    while not ddl.done:
        now = ddl.advance(emit=False)
        writers.some(now)
        ddl.emit()
        writers.some(before)
        before = now
    return story


class Target:
    """What a drainer does with the story, batch by batch."""

    def __init__(self, story: Story, session: Session) -> None:
        self._session = session
        self._history = SchemaHistory.of(JobReader().read(story.upstream.jobs()))
        self._story = story
        self._binlogs = story.written.commits()
        rows = [{"start_ts": b.start_ts, "commit_ts": b.commit_ts, "payload": b.SerializeToString()} for b in self._binlogs]
        self._events = pa.Table.from_batches([explode(pa.RecordBatch.from_pylist(rows, schema=TRANSACTION)).rows])
        self.points = [b.commit_ts for b in self._binlogs]

    def replicate(self, cuts: Sequence[int]) -> None:
        self._session.execute("DROP DATABASE IF EXISTS d")
        applied, at = AppliedJobs(0), 0
        for upto in (*sorted(cuts), self.points[-1]):
            if upto > at:
                applied = self._batch(at, upto, applied)
                at = upto
        assert self._rows() == self._story.rows

    def _batch(self, after: int, upto: int, applied: AppliedJobs) -> AppliedJobs:
        ddls = [_ddl_event(b) for b in self._binlogs if b.ddl_job_id and after < b.commit_ts <= upto]
        rows = rows_between(self._events, after, upto)
        tables = merge(summarise(rows, [d.commit_ts for d in ddls])).tables if rows.num_rows else ()
        steps = plan_steps((after, upto), ddls, tables, self._history, applied)
        for step in steps:
            if isinstance(step, DdlStep):
                self._ddl(step)
            else:
                self._write(step)
        if upto in self._story.sizes:
            assert self._session.query("SELECT count(*) FROM d.t") == [(self._story.sizes[upto],)], f"at {upto}"
        return steps[-1].applied

    def _ddl(self, step: DdlStep) -> None:
        if step.job.type != 1:
            self._session.execute("USE d")
        more = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if step.job.type == 1 else ""
        self._session.execute(step.query.rstrip(";") + more)

    def _write(self, step: RowsStep) -> None:
        rows = rows_between(self._events, step.after_ts, step.upto_ts)
        plan = plan_rows(rows.select(ROW_EVENT.names), step.tables, PlanLimits())
        self._session.begin()
        for statement in (*plan.deletes, *plan.writes):
            touched = self._session.execute(statement.sql)
            assert statement.phase is Phase.WRITE or touched == statement.rows, statement.sql
        self._session.commit()

    def _rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(self._session.query("SELECT * FROM d.t"))


def _ddl_event(binlog: binlog_pb2.Binlog) -> DdlEvent:
    return DdlEvent(binlog.commit_ts, binlog.ddl_job_id, binlog.ddl_query.decode(), binlog.ddl_schema_state)


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    """A session whose tables cost no disk: every cut makes its own, and none needs to be rolled back."""
    with connect(mariadb.target(), ApplyConfig()) as session:
        session.execute("SET SESSION default_storage_engine = 'MyISAM'")
        yield session
        session.rollback()
        session.execute("DROP DATABASE IF EXISTS d")


@pytest.mark.shows("ddl drop column", "known wrong: own replay")
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("table", "change"), [pytest.param(*story, marks=() if story in QUICK else pytest.mark.slow) for story in STORIES])
def test_every_cut(session: Session, table: str, change: str, every: int) -> None:
    """All in one batch, each transaction alone, and two batches for the places between them: the stories share these."""
    target = Target(tell(table, change), session)
    target.replicate([])
    target.replicate(target.points)
    for cut in target.points[STORIES.index((table, change)) % every :: every]:
        target.replicate([cut])
