"""Planned statements run on a real MariaDB: recorded cases of a real TiDB, exact matching of rows without a key, and random histories."""

import dataclasses
import gzip
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.events import BinlogType, Op
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.causality import keys_of
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.attempts import run_checked
from tests.support.golden_case import GOLDEN
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, plan_rows, table, text
from tests.support.private_mysql import NO_PAD_BIN

pytestmark = pytest.mark.mysql


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        yield session


@pytest.fixture
def d(session: Session) -> Iterator[Session]:
    """A session with an empty database ``d``, whose collation is as loose as they come."""
    session.execute("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    session.execute("USE d")
    yield session
    session.execute("DROP DATABASE d")


def write(session: Session, at: TableAt, events: Events) -> None:
    run(session, plan_rows(events.table(), {TABLE_ID: at}, PlanLimits(), flavour=session.flavour))


def run(session: Session, *plans: Plan) -> None:
    """All deletes of all parts, then all writes; any finding ends it."""
    statements = [*(s for p in plans for s in p.deletes), *(s for p in plans for s in p.writes)]
    session.begin()
    run_checked(session, ApplyConfig(on_finding="stop", log_row_data=True), statements)
    session.commit()


# Recorded cases.


def deliveries(case: Path) -> list[bytes]:
    """Complete Commit binlogs of both Pumps by commit_ts."""
    found = []
    for path in sorted(case.glob("pump-*.binlogs.gz")):
        data, at = gzip.decompress(path.read_bytes()), 0
        while at < len(data):
            size = shift = 0
            while True:
                byte = data[at]
                at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
                if byte < 128:
                    break
            found.append(pb.Binlog.FromString(data[at : at + size]))
            at += size
    return [b.SerializeToString() for b in sorted(found, key=lambda b: b.commit_ts) if b.tp == BinlogType.COMMIT]


def row_events(payloads: list[bytes]) -> pa.Table:
    rows = [{"start_ts": 0, "commit_ts": pb.Binlog.FromString(p).commit_ts, "payload": p} for p in payloads]
    return pa.Table.from_batches([explode(pa.RecordBatch.from_pylist(rows, schema=TRANSACTION)).rows])


def in_parts(flavour: Flavour, events: pa.Table, tables: dict[int, TableAt], parts: int) -> list[Plan]:
    keys = row_identities(events, tables)
    ids = events["table_id"].to_numpy()
    keyless = [i for i, t in tables.items() if not (t.info.pk_is_handle or t.info.is_common_handle)]
    numbers = part_numbers(ids, keys, np.isin(ids, keyless), parts)
    masks = [pa.array(numbers == n) for n in range(parts)]
    return [plan_rows(events.filter(m), tables, PlanLimits(max_bytes=5000, max_rows=7), keys.filter(m), flavour=flavour) for m in masks]


class Replay:
    """A recorded case applied to a server: each DDL as its text stands, the rows between two of them in spans of a given size."""

    def __init__(self, case: Path, session: Session) -> None:
        self._history = SchemaHistory.of(_jobs(case))
        self._session = session
        self._payloads = deliveries(case)
        self._version = 0

    def run(self, rng: random.Random, longest: int, parts: int) -> None:
        waiting: list[bytes] = []
        for payload in self._payloads:
            binlog = pb.Binlog.FromString(payload)
            if binlog.ddl_job_id or len(waiting) >= rng.randint(1, longest):
                self._apply(waiting, parts)
                waiting = []
            if binlog.ddl_job_id:
                self._ddl(binlog)
            else:
                waiting.append(payload)
        self._apply(waiting, parts)

    def _apply(self, payloads: list[bytes], parts: int) -> None:
        if payloads:
            events = row_events(payloads)
            ids = set(events["table_id"].to_pylist())
            tables = {i: at for i in ids if (at := self._history.table_at(i, self._version))}
            run(self._session, *in_parts(self._session.flavour, events, tables, parts))

    def _ddl(self, binlog: pb.Binlog) -> None:
        job = self._history.job(binlog.ddl_job_id)
        assert job is not None
        self._version = job.version
        query = binlog.ddl_query.decode()
        if query.startswith("CREATE DATABASE"):
            query = query.rstrip(";") + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
            self._session.execute(query)
            self._session.execute(f"USE `{job.schema_name}`")
        else:
            self._session.execute(query)


def _jobs(case: Path) -> list[Any]:
    with gzip.open(case / "ddl_history.json.gz") as file:
        return JobReader().read(json.load(file))


def compare(case: Path, server: PrivateMariaDB) -> str:
    to = server.target()
    command = [sys.executable, str(GOLDEN / "compare.py"), str(case), to.host, str(to.port), to.user]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"MYSQL_PWD": to.password}).stdout


@pytest.mark.parametrize("name", ["keys", "txn", "types"])
@pytest.mark.parametrize(("longest", "parts"), [(1, 1), (4, 2), (1000, 1), (1000, 3)])
def test_recorded_case(session: Session, mariadb: PrivateMariaDB, name: str, longest: int, parts: int) -> None:
    case = GOLDEN / name
    databases = json.loads((case / "case.json").read_text())["databases"]
    try:
        Replay(case, session).run(random.Random(f"{name} {longest} {parts}"), longest, parts)
        assert compare(case, mariadb).endswith(" tables equal, 0 differ\n")
    finally:
        session.rollback()
        for database in databases:
            session.execute(f"DROP DATABASE IF EXISTS `{database}`")


# Rows without a key.

LONG_SET = dataclasses.replace(column("a", ColumnType.SET), elems=tuple(f"e{i}" for i in range(64)))
LONG_SET_SQL = f"set({','.join(map(repr, LONG_SET.elems))})"

EVERY_TYPE: list[tuple[str, Any, list[Any]]] = [
    ("bigint unsigned", column("c", flag=1 << 5), [0, 1, 2**64 - 1, None]),
    ("varchar(20)", text("c"), ["a", "A", "a ", " a", "", "ä", "日本", "it's \\ \"", "\0", None]),
    ("varchar(20) character set latin1", text("c"), ["é", "e", "É", None]),
    ("char(20)", column("c", ColumnType.STRING, 0, 20, 0, "utf8mb4"), ["a", "A", "", None]),
    ("text", column("c", ColumnType.BLOB, 0, -1, 0, "utf8mb4"), ["a", "A", "a ", "x" * 3000, None]),
    ("varbinary(20)", text("c", charset="binary"), [b"a", b"A", b"a ", b"a\0", b"\xff'\\", b"", None]),
    ("binary(4)", column("c", ColumnType.STRING, 0, 4, 0), [b"a\0\0\0", b"a \0\0", b"abcd", None]),
    ("blob", column("c", ColumnType.BLOB, 0, -1), [bytes(range(256)), b"", None]),
    ("float", column("c", ColumnType.FLOAT, 0, 12, -1), [0.1, 1 / 3, 3.4028234663852886e38, 1.401298464324817e-45, -2.5, 16777216.0, None]),
    (
        "double",
        column("c", ColumnType.DOUBLE, 0, 22, -1),
        [0.1, 1 / 3, 1.7976931348623157e308, 2.2250738585072014e-308, 123456789012345678.0, None],
    ),
    ("decimal(40,10)", column("c", ColumnType.DECIMAL, 0, 40, 10), ["0.1", "-123456789012345678901234567890.0123456789", "0", None]),
    ("date", column("c", ColumnType.DATE, 0, 10), ["2026-02-03", "0000-00-00", "2026-00-00", "2026-02-00", "2026-02-31", None]),
    (
        "datetime(3)",
        column("c", ColumnType.DATETIME, 0, 23, 3),
        ["2026-02-03 04:05:06.789", "0000-00-00 00:00:00", "2026-02-31 01:02:03", None],
    ),
    (
        "timestamp(6) null",
        column("c", ColumnType.TIMESTAMP, 0, 26, 6),
        ["2026-03-29 01:30:00.000001", "0000-00-00 00:00:00", "1970-01-01 00:00:01", None],
    ),
    ("time(2)", column("c", ColumnType.TIME, 0, 13, 2), ["-838:59:59.00", "838:59:59.00", "00:00:00.01", "00:00:00", None]),
    ("year", column("c", ColumnType.YEAR, 0, 4), [0, 1901, 2000, 2155, None]),
    ("bit(9)", column("c", ColumnType.BIT, 1 << 5, 9), [0, 1, 257, 511, None]),
    ("bit(64)", column("c", ColumnType.BIT, 1 << 5, 64), [0, 2**64 - 1, 2**63, None]),
    ("enum('a','A ','0','日')", column("c", ColumnType.ENUM, 0, -1, 0, "utf8mb4"), [0, 1, 3, 4, None]),
    ("set('a','b','c')", column("c", ColumnType.SET, 0, -1, 0, "utf8mb4"), [0, 1, 6, 7, None]),
    (LONG_SET_SQL, dataclasses.replace(LONG_SET, name="c"), [0, 2**53, 2**53 + 1, 2**62, 2**62 + 1, 2**63, 2**63 + 1, 2**64 - 1, None]),
    ("json", column("c", ColumnType.JSON), [{"a": 1}, {"a": 1.5, "b": ["x", "it's \\"]}, [], "A", "a", 0, None]),
]


@pytest.mark.shows("drainer gotcha 7", "known wrong: FLOAT")
@pytest.mark.parametrize(("sql_type", "kind", "values"), EVERY_TYPE, ids=[t[0][:30] for t in EVERY_TYPE])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_keyless_row_is_found_exactly(d: Session, sql_type: str, kind: Any, values: list[Any], indexed: bool) -> None:
    if indexed and sql_type in ("text", "blob", "json"):
        pytest.skip("no index without a prefix length")
    d.execute(f"CREATE TABLE t (n bigint, c {sql_type}{', KEY (c)' if indexed else ''})")
    at = table([column("n"), kind], [index("c", ("c", -1), unique=False)] if indexed else [])
    insert = Events(at)
    for i, value in enumerate(values):
        insert.insert(1, value, rowid=i).insert(1, value, rowid=100 + i)
    write(d, at, insert)
    image = "SELECT hex(cast(c AS binary)), count(*) FROM t GROUP BY 1"
    whole = dict(d.query(image))
    assert sum(whole.values()) == 2 * len(values)
    for i, value in enumerate(values):
        before = dict(d.query(image))
        write(d, at, Events(at).delete(1, value, rowid=i))
        after = dict(d.query(image))
        changed = {k: before[k] - after.get(k, 0) for k in before if before[k] != after.get(k, 0)}
        assert list(changed.values()) == [1], f"{value!r}: exactly one row goes"
    assert set(dict(d.query(image)).values()) <= {v // 2 for v in whole.values()}


def test_one_row_is_found_by_a_key_of_two_columns(d: Session) -> None:
    """Not by reading the table."""
    d.execute("CREATE TABLE t (a bigint NOT NULL, b bigint NOT NULL, PRIMARY KEY (a, b))")
    at = table([column("a", flag=NOT_NULL), column("b", flag=NOT_NULL)], [index("primary", ("a", -1), ("b", -1))])
    insert = Events(at)
    for i in range(500):
        insert.insert(i, i, rowid=i)
    write(d, at, insert)
    d.execute("FLUSH STATUS")
    write(d, at, Events(at).delete(7, 7, rowid=7))
    assert int(d.query("SHOW SESSION STATUS LIKE 'Handler_read_rnd_next'")[0][1]) < 100 and d.query("SELECT COUNT(*) FROM t") == [(499,)]


def test_a_server_that_keeps_one_warning_only(d: Session) -> None:
    d.execute("CREATE TABLE t (n bigint primary key, a bigint, b bigint)")
    at = table([column("n", flag=INT_PK), column("a"), column("b")], handle="int")
    insert, update = Events(at), Events(at)
    for n in range(5):
        insert.insert(n, 1, 1)
        update.update((n, 1, 1), (n, 2, 2))
    d.execute("SET SESSION max_error_count = 1")
    for events in (insert, update):
        write(d, at, events)
    assert d.query("SELECT DISTINCT a, b FROM t") == [(2, 2)]


@pytest.mark.shows("drainer gotcha 7", "known wrong: FLOAT")
def test_no_keyless_row_is_taken_for_another(d: Session) -> None:
    d.execute("CREATE TABLE t (n bigint, c varchar(20), f float)")
    at = table([column("n"), text("c"), column("f", ColumnType.FLOAT, 0, 12, -1)])
    near = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    events = Events(at).insert(1, "a", near, rowid=1).insert(1, "A", near, rowid=2)
    write(d, at, events.insert(1, "a ", near, rowid=3).insert(None, None, None, rowid=4))
    write(d, at, Events(at).delete(1, "A", near, rowid=2).delete(None, None, None, rowid=4))
    assert sorted(d.query("SELECT n, c FROM t")) == [(1, "a"), (1, "a ")]


def common(a: Any, b: Any, key: str = "ab") -> TableAt:
    """Clustered by both columns."""
    return table([a, b], [index("PRIMARY", *((name, -1) for name in key), primary=True)], handle="common")


def unique(a: Any) -> TableAt:
    return table([a, column("b")], [index("a", ("a", -1))])


ENUM_KEY = dataclasses.replace(column("b", ColumnType.ENUM, INT_PK), elems=("x", "y", "z"))
SET_KEY = dataclasses.replace(column("b", ColumnType.SET, INT_PK), elems=("x", "y"))


B_KEY = column("b", flag=INT_PK)
KEYS_OF_DELETES = {
    "int": ("a bigint, b bigint, primary key (a)", table([column("a", flag=INT_PK), column("b")], handle="int"), lambda i: (i, i)),
    "composite": ("a varchar(20), b bigint, primary key (a, b)", common(text("a", INT_PK), B_KEY), lambda i: (f"k{i % 7}", i)),
    "datetime": (
        "a datetime(3) not null, b bigint, unique (a)",
        unique(column("a", ColumnType.DATETIME, NOT_NULL, 23, 3)),
        lambda i: (f"2026-01-01 00:00:{i // 1000:02d}.{i % 1000:03d}", i),
    ),
    "binary": ("a varbinary(20) not null, b bigint, unique (a)", unique(text("a", NOT_NULL, "binary")), lambda i: (b"\xff%d'" % i, i)),
    "with enum": ("a bigint, b enum('x','y','z'), primary key (a, b)", common(column("a", flag=INT_PK), ENUM_KEY), lambda i: (i, i % 4)),
    "with set": ("a bigint, b set('x','y'), primary key (b, a)", common(column("a", flag=INT_PK), SET_KEY, "ba"), lambda i: (i, i % 4)),
    "long set": (
        f"a {LONG_SET_SQL} not null, b bigint, unique (a)",
        unique(dataclasses.replace(LONG_SET, flag=NOT_NULL)),
        lambda i: ((i % 3 << 62) + (i << 40) + i % 2, i),
    ),
    "latin1": (
        "a varchar(20) charset latin1, b bigint, primary key (a, b)",
        common(text("a", INT_PK, "latin1"), B_KEY),
        lambda i: (f"é{i % 7}", i),
    ),
}


@pytest.mark.parametrize(("definition", "at", "row"), KEYS_OF_DELETES.values(), ids=KEYS_OF_DELETES)
def test_deletes_by_key_use_the_index(d: Session, definition: str, at: TableAt, row: Callable[[int], tuple[Any, Any]]) -> None:
    rows = list(map(row, range(3000)))
    d.execute(f"CREATE TABLE t ({definition})")
    insert, delete = Events(at), Events(at)
    for i, (a, b) in enumerate(rows):
        insert.insert(a, b, rowid=i)
        if i % 2 == 0:
            delete.delete(a, b, rowid=i)
    write(d, at, insert)
    d.query("ANALYZE TABLE t")
    planned = plan_rows(delete.table(), {TABLE_ID: at}, PlanLimits(max_keys=30), flavour=d.flavour)
    for statement in planned.deletes:
        shown = (
            d.query("EXPLAIN FORMAT=TRADITIONAL " + statement.sql.decode("utf-8", "surrogateescape"))[-1]
            if b"\xff" not in statement.sql
            else None
        )
        assert shown is None or "range" in shown, shown
        assert d.execute(statement.sql) == statement.rows
    d.commit()
    assert d.query("SELECT count(*) FROM t") == [(1500,)]

    # The rows that are left, row by row.
    events = Events(at)
    for i, (a, b) in enumerate(rows):
        if i % 2 and i < 20 and len(at.info.unique_keys()[0]) == 1:
            events.update((a, b), (a, b + 5000), rowid=i)
            events.delete(a, b + 5000, rowid=i)
        elif i % 2:
            events.delete(a, b, rowid=i)
    batch = operations_of(events.table(), {TABLE_ID: at})
    joined = OpPlan(batch, keys_of(batch), PlanLimits(), d.flavour, safe=False).statements(range(len(batch)))
    assert len(joined) < 30
    assert run_checked(d, ApplyConfig(on_finding="stop"), joined) == ()
    d.commit()
    assert d.query("SELECT count(*) FROM t") == [(0,)]


# Random histories.

IDS, UNIQUES = st.integers(1, 5), st.one_of(st.none(), st.sampled_from(["a", "A", "b", "c "]))


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[Op, tuple[int, Any, int] | None, tuple[int, Any, int] | None]]]:
    """Transactions over rows (id, u unique, n), each valid on the state before it under a case-sensitive unique key."""
    state: dict[int, tuple[int, Any, int]] = {}
    transactions = []
    n = 0
    for _ in range(draw(st.integers(1, 12))):
        operations: list[Any] = []
        for _ in range(draw(st.integers(1, 5))):
            n += 1
            key, unique = draw(IDS), draw(UNIQUES)
            old = state.get(key)
            if unique is not None and any(r[1] == unique for i, r in state.items() if i != key):
                unique = None
            kind = draw(st.sampled_from(list(Op)[:3]))
            new = None if kind is Op.DELETE else (key, unique, n)
            if old is None and new is not None:
                operations.append((Op.INSERT, None, new))
            elif old is not None:
                operations.append((Op.UPDATE if new else Op.DELETE, old, new))
            if new is None:
                state.pop(key, None)
            else:
                state[key] = new
        transactions.append(operations)
    return transactions


def events_of(at: TableAt, transactions: list[Any], first_ts: int) -> pa.Table:
    events = Events(at, first_ts)
    for operations in transactions:
        for i, (op, old, new) in enumerate(operations):
            same = i > 0
            if op is Op.INSERT:
                events.insert(*new, rowid=new[0], same=same)
            elif op is Op.UPDATE:
                events.update(old, new, rowid=new[0], same=same)
            else:
                events.delete(*old, rowid=old[0], same=same)
    return events.table()


HISTORY_TABLES = {
    "clustered": (
        f"id bigint primary key, u varchar(10) collate {NO_PAD_BIN}, n bigint, unique (u)",
        table([column("id", flag=INT_PK), text("u"), column("n")], [index("u", ("u", -1))], handle="int"),
    ),
    "nonclustered": (
        f"id bigint primary key, u varchar(10) collate {NO_PAD_BIN}, n bigint, unique (u)",
        table([column("id", flag=INT_PK), text("u"), column("n")], [index("PRIMARY", ("id", -1), primary=True), index("u", ("u", -1))]),
    ),
    "nullable unique key only": (
        f"id bigint, u varchar(10) collate {NO_PAD_BIN}, n bigint, unique (u)",
        table([column("id"), text("u"), column("n")], [index("u", ("u", -1))]),
    ),
    "no key": ("id bigint, u varchar(10), n bigint", table([column("id"), text("u"), column("n")])),
}


@pytest.mark.parametrize("kind", HISTORY_TABLES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transactions=histories(), cuts=st.randoms(use_true_random=False), parts=st.integers(1, 3))
def test_random_history_over_any_cuts(d: Session, kind: str, transactions: list[Any], cuts: random.Random, parts: int) -> None:
    definition, at = HISTORY_TABLES[kind]
    d.execute("DROP TABLE IF EXISTS t")
    d.execute(f"CREATE TABLE t ({definition})")
    state: dict[int, tuple[int, Any, int]] = {}
    at_ts, first = 1000, 0
    while first < len(transactions):
        end = min(len(transactions), first + cuts.randint(1, 5))
        span = transactions[first:end]
        events = events_of(at, span, at_ts)
        if events.num_rows:
            run(d, *in_parts(d.flavour, events, {TABLE_ID: at}, parts))
        for _, old, new in (o for t in span for o in t):
            if old:
                del state[old[0]]
            if new:
                state[new[0]] = new
        assert sorted(d.query("SELECT id, u, n FROM t")) == sorted(state.values()), f"after transactions {first} to {end - 1}"
        at_ts, first = at_ts + 1000, end
