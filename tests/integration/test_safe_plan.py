"""Safe mode over net changes, on a real MariaDB: whatever part of a span is in the target, afterwards it is as upstream."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, planned
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import SafeBounds
from tests.support import ddl_jobs
from tests.support.attempts import run_checked
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, index, table
from tests.support.real_safe_mode import PlainTable, RowChange, replay

pytestmark = pytest.mark.mysql

KEYED = table([column("id", flag=INT_PK), column("u"), column("v")], [index("u", ("u", -1))], handle="int")
KEYED_SQL = "CREATE TABLE t (id BIGINT PRIMARY KEY, u BIGINT, v BIGINT, UNIQUE KEY u (u))"
CLUSTERED = table([column("a", flag=INT_PK), column("v")], [index("PRIMARY", ("a", -1), primary=True)], handle="common")
KEYLESS = table([column("a"), column("b")])


@pytest.fixture
def d(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        session.execute("CREATE DATABASE d")
        session.execute("USE d")
        yield session
        session.execute("DROP DATABASE d")


def apply_safely(session: Session, at: TableAt, events: Events, superseded: Sequence[int] = ()) -> None:
    """Any finding ends it."""
    plan = planned(SafeSpanPlan(events.table(), {TABLE_ID: at}, PlanLimits(max_rows=3, max_keys=2), how=SafeSpan(frozenset(superseded))))
    session.begin()
    run_checked(session, ApplyConfig(on_finding="stop"), [*plan.deletes, *plan.writes])
    session.commit()


def rows(session: Session) -> list[tuple[Any, ...]]:
    found = sorted(session.query("SELECT * FROM t"), key=repr)
    session.commit()
    return found


@pytest.mark.parametrize("there", [1, 2, 3])
def test_a_row_whose_key_moved_twice_is_there_once_wherever_the_target_was(d: Session, there: int) -> None:
    d.execute("CREATE TABLE t (a BIGINT PRIMARY KEY, v BIGINT)")
    d.execute("INSERT INTO t VALUES (%s, 0), (9, 9)", [there])
    # TiDB writes the change of a clustered key as DELETE and INSERT.
    events = Events(CLUSTERED).delete(1, 0).insert(2, 0, same=True).delete(2, 0).insert(3, 0, same=True)
    apply_safely(d, CLUSTERED, events)
    assert rows(d) == [(3, 0), (9, 9)]


@pytest.mark.parametrize("there", [None, 1, 2, 3])
def test_every_value_of_another_unique_key_is_sought(d: Session, there: int | None) -> None:
    """The row is sought by each of its keys: a target that holds the new key under an old id has it only under the new one afterwards."""
    d.execute(KEYED_SQL)
    if there is not None:
        d.execute("INSERT INTO t VALUES (5, %s, 0)", [there])
    d.execute("INSERT INTO t VALUES (8, 8, 8)")
    apply_safely(d, KEYED, Events(KEYED).update((7, 1, 0), (7, 2, 0)).update((7, 2, 0), (7, 3, 0)))
    assert rows(d) == [(7, 3, 0), (8, 8, 8)]


def test_a_delete_that_finds_nothing_and_an_insert_that_is_there_are_no_findings(d: Session) -> None:
    d.execute(KEYED_SQL)
    d.execute("INSERT INTO t VALUES (2, 2, 2)")
    apply_safely(d, KEYED, Events(KEYED).delete(1, 1, 1).insert(2, 2, 2))
    assert rows(d) == [(2, 2, 2)]


@pytest.mark.parametrize("done", range(4))
def test_distinct_rows_without_a_key_are_exact(d: Session, done: int) -> None:
    d.execute("CREATE TABLE t (a BIGINT, b BIGINT)")
    d.execute("INSERT INTO t VALUES (1, 1), (9, 9)")
    changes = [RowChange((1, 1), (1, 2)), RowChange(None, (5, 5)), RowChange((1, 2), (1, 1))]
    for change in changes[:done]:
        replay(d, PlainTable("t", ("a", "b")), [change])
    events = Events(KEYLESS).update((1, 1), (1, 2), rowid=1).insert(5, 5, rowid=2).update((1, 2), (1, 1), rowid=1)
    apply_safely(d, KEYLESS, events)
    assert rows(d) == [(1, 1), (5, 5), (9, 9)]


def test_a_row_that_had_an_image_twice_takes_one_row_of_the_target(d: Session) -> None:
    d.execute("CREATE TABLE t (a BIGINT, b BIGINT)")
    d.execute("INSERT INTO t VALUES (1, 1), (1, 1)")
    apply_safely(d, KEYLESS, Events(KEYLESS).update((1, 1), (1, 2), rowid=1).update((1, 2), (1, 1), rowid=1))
    assert rows(d) == [(1, 1), (1, 1)]


@pytest.mark.parametrize("seed", range(25))
def test_any_part_of_a_span_is_completed(d: Session, seed: int) -> None:
    """The target after a crashed safe mode: some operations, then, in a later life, some of them again."""
    rng = random.Random(f"safe {seed}")
    d.execute(KEYED_SQL)
    state: dict[int, tuple[Any, ...]] = {}
    for number in range(6):
        state[number] = (number, number if rng.random() < 0.8 else None, 0)
    for row in state.values():
        d.execute("INSERT INTO t VALUES (%s, %s, %s)", row)
    d.commit()
    events, changes = Events(KEYED), []
    for _ in range(rng.randint(3, 30)):
        changes.append(_change(rng, state, events))
    plain = PlainTable("t", ("id", "u", "v"), (("id",), ("u",)))
    for _ in range(rng.randint(1, 3)):
        replay(d, plain, changes[: rng.randint(0, len(changes))])
    apply_safely(d, KEYED, events)
    assert rows(d) == sorted(state.values(), key=repr)


def _change(rng: random.Random, state: dict[int, tuple[Any, ...]], events: Events) -> RowChange:
    """One more operation of the upstream, on ``state``."""
    free = [u for u in range(12) if u not in {row[1] for row in state.values()}]
    number = rng.randint(0, 9)
    old = state.get(number)
    new = (number, rng.choice([*free, None]), rng.randint(0, 99))
    if old is None:
        events.insert(*new)
        state[number] = new
        return RowChange(None, new)
    if rng.random() < 0.3:
        events.delete(*old)
        del state[number]
        return RowChange(old, None)
    events.update(old, new)
    state[number] = new
    return RowChange(old, new)


def test_a_row_without_a_partition_is_passed_over_where_the_partition_may_have_been_dropped(d: Session) -> None:
    d.execute("CREATE TABLE t (a BIGINT PRIMARY KEY, v BIGINT) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (10))")
    apply_safely(d, CLUSTERED, Events(CLUSTERED).insert(1, 5).insert(11, 5), superseded=[TABLE_ID])
    assert rows(d) == [(1, 5)]
    with pytest.raises(ApplyError, match="no partition"):
        apply_safely(d, CLUSTERED, Events(CLUSTERED).insert(11, 5))


ADD_INDEX, DROP_COLUMN, RENAME_TABLE = 7, 6, 14


@pytest.mark.parametrize(
    ("there", "kind", "past"),
    [
        ("id INT PRIMARY KEY, a INT", ADD_INDEX, False),  # b was lost in another way
        ("", ADD_INDEX, False),
        ("id INT PRIMARY KEY, a INT", DROP_COLUMN, True),
        ("", DROP_COLUMN, False),
        ("", RENAME_TABLE, True),
        ("id INT PRIMARY KEY, a INT, b VARCHAR(9)", DROP_COLUMN, False),
    ],
)
def test_only_what_a_later_ddl_takes_away_says_that_it_was_executed(d: Session, there: str, kind: int, past: bool) -> None:
    """The rows of such a table are left out; where no DDL explains it, the target refuses them loudly."""
    before = [ddl_jobs.column(1, "id", {**ddl_jobs.INT, "Flag": 4099}), ddl_jobs.column(2, "a"), ddl_jobs.column(3, "b", ddl_jobs.VARCHAR)]
    made = ddl_jobs.job(2, 3, ddl_jobs.table(50, "e", before))
    later = ddl_jobs.table(50, "f" if kind == RENAME_TABLE else "e", before[:2] if kind == DROP_COLUMN else before)
    history = ddl_jobs.history(ddl_jobs.database(1), made, ddl_jobs.job(40, kind, later, query="an ALTER TABLE"))
    at = history.table_at(50, 2)
    assert at is not None
    if there:
        d.execute(f"CREATE TABLE e ({there})")
    mode = SafeMode()
    mode.begin(SafeBounds(10, 1000), "another Drainer has crashed")
    assert mode.prepared(d, RowsStep(10, 399, 5, {50: at}), history)[0].gone == ({50} if past else set())
