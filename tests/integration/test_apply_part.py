"""Parts of a span on a real MariaDB, without Spark: time, a server in the way, findings, many subsets, and a span that stopped between them."""

import pickle
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.mysql import part_plans, plan
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, SpanPlan
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, connect
from pyspark_tidb_binlog.sinks.mysql.statements import Statement
from tests.support.attempts import run_checked, run_transaction
from tests.support.ddl_target import dying
from tests.support.one_span import Begin, spans_at
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, parted, table, text
from tests.support.real_safe_mode import PlainTable, RowChange, replay

pytestmark = pytest.mark.mysql

PAIR = table([column("id", flag=INT_PK), column("u"), text("v")], [index("uu", ("u", -1))], handle="int")
PAIR_SQL = "CREATE TABLE d.t (id bigint primary key, u bigint, v varchar(400), UNIQUE KEY uu (u))"
INSERT = "INSERT INTO d.t VALUES "
KEYLESS = table([column("a"), column("j", ColumnType.JSON)])
EXPECTED = [("id=1", 1001), ("id=12", 1008), ("id=13", 1009), ("id=4", 1004), ("id=9", 1007)]


@pytest.fixture
def begin(mariadb: PrivateMariaDB) -> Iterator[Begin]:
    with spans_at(mariadb.target()) as spans:
        yield spans


# A transaction that is skipped after the deletes are committed.


def damaged(events: Events, place: int) -> pa.Table:
    """The events, of which one has an object with too many elements."""
    whole = events.table()
    rows = whole.column("row").to_pylist()
    at = rows[place].rindex(b"\x01\x01\x00\x00\x00") + 1
    rows[place] = rows[place][:at] + b"\xff" + rows[place][at + 1 :]
    return whole.set_column(whole.schema.get_field_index("row"), whole.schema.field("row"), pa.array(rows, pa.binary()))


def test_a_damaged_row_without_a_key_is_skipped(begin: Begin) -> None:
    part = begin("CREATE TABLE d.t (a bigint, j json)", INSERT + "(1,'1'),(2,'2')")
    events = Events(KEYLESS).update((1, 1), (1, 10), rowid=1).update((2, 2), (2, {"b": 1}), rowid=2)
    for i in range(3, 30):
        events.insert(i, i, rowid=i)
    rows = damaged(events, 1)
    with pytest.raises(Corruption):
        part.part(0, rows, KEYLESS)
    part.part(0, rows, KEYLESS, frozenset([1002]))
    assert part.rows()[:2] == [(1, "10"), (2, "2")]


def test_a_damaged_change_of_a_row_of_a_partitioned_table_is_skipped(begin: Begin) -> None:
    """Images tell rows apart there, which may have one rowid."""
    part, at = begin("CREATE TABLE d.t (a bigint, j json)", INSERT + "(1,'1')"), parted(KEYLESS)
    rows = damaged(Events(at).update((1, 1), (1, {"b": 1}), rowid=1).update((1, 1), (1, 2), rowid=1), 0)
    with pytest.raises(Corruption):
        part.part(0, rows, at)
    part.part(0, rows, at, frozenset([1001]))
    assert part.rows() == [(1, "2")]


# Two rows with the same ``_tidb_rowid``, in two partitions.


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (a)"])
@pytest.mark.parametrize("memory", [1 << 25, 400])
@pytest.mark.parametrize("skipped", [frozenset[int](), frozenset([1005])])
def test_rows_of_two_partitions_that_share_a_rowid(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, key: str, memory: int, skipped: frozenset[int]
) -> None:
    """Also where a transaction between two changes of one of them is skipped: that leaves no third row."""
    monkeypatch.setattr(part_plans, "IN_MEMORY", memory)
    at = table([column("a", flag=NOT_NULL), column("b")], [index("PRIMARY", ("a", -1), primary=True)] if key else [])
    more = [(n, 0) for n in range(20, 40)]
    rows = ", ".join(map(str, [(2, 2), (12, 12), (3, 3), (13, 13), *more]))
    part = begin(f"CREATE TABLE d.t (a bigint, b bigint{key})", INSERT + rows)
    events = Events(parted(at)).update((2, 2), (2, 3), rowid=1).update((12, 12), (12, 13), rowid=1).delete(3, 3, rowid=2)
    events.update((13, 13), (13, 14), rowid=2).update((2, 3), (2, 4), rowid=1).delete(12, 13, rowid=1).update((2, 4), (2, 5), rowid=1)
    for n in range(20, 40):
        events.update((n, 0), (n, 1), rowid=n)
    done = part.part(0, events.table(), parted(at), skipped)
    assert part.rows() == [(2, 5), (13, 14), *((n, 1) for n in range(20, 40))]
    assert [finding for row in done for finding in pickle.loads(row["detail"])] == []


# Time and the server.


def test_planning_takes_longer_than_a_connection_may_be_idle(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A big part of nothing but inserts has no delete to send for as long as it takes to plan all of its subsets."""
    part = begin(PAIR_SQL, lease_timeout=1.0)

    class Slow(SpanPlan):
        def __init__(self, *args: Any, **more: Any) -> None:
            time.sleep(0.5)
            super().__init__(*args, **more)

    monkeypatch.setattr(part_plans, "SpanPlan", Slow)
    monkeypatch.setattr(part_plans, "IN_MEMORY", 500)
    events = Events(PAIR)
    for i in range(16):
        events.insert(i, i, "x" * 20)
    begun = time.monotonic()
    part.part(0, events.table(), PAIR)
    assert time.monotonic() - begun > 2, "twice as long as an idle connection lives"
    assert len(part.rows()) == 16


def test_a_server_that_takes_smaller_statements_than_planned(begin: Begin) -> None:
    part = begin(PAIR_SQL, on_finding="stop")
    part.session.execute("SET GLOBAL max_allowed_packet = 16384")
    events = Events(PAIR)
    for i in range(200):
        events.insert(i, i, "x" * 300)
    try:
        assert [(row["phase"], row["rows"]) for row in part.part(0, events.table(), PAIR)] == [("delete", 0), ("write", 200)]
        assert len(part.rows()) == 200
    finally:
        part.session.execute("SET GLOBAL max_allowed_packet = DEFAULT")


def test_a_read_timeout_while_the_next_statement_is_planned(begin: Begin, mariadb: PrivateMariaDB) -> None:
    part = begin(PAIR_SQL, INSERT + "(1,1,'a'),(2,2,'b')", to=replace(mariadb.target(), read_timeout=1.0), on_finding="stop")
    events = Events(PAIR).update((1, 1, "a"), (1, 2, "A")).update((2, 2, "b"), (2, 1, "B")).insert(3, 3, "c").insert(4, 4, "d")
    with connect(mariadb.target(), ApplyConfig()) as other:
        other.begin()
        other.query("SELECT * FROM d.t WHERE id = 2 FOR UPDATE")
        letting_go = threading.Timer(1.5, other.rollback)
        letting_go.start()
        part.part(0, events.table(), PAIR, limits=PlanLimits(max_rows=1, max_keys=1))
        letting_go.join()
    assert part.rows() == [(1, 2, "A"), (2, 1, "B"), (3, 3, "c"), (4, 4, "d")]


def test_an_interrupt_while_an_answer_is_unread_closes_the_connection(mariadb: PrivateMariaDB, begin: Begin) -> None:
    part = begin(PAIR_SQL)
    kept = KeptSessions(lambda: connect(mariadb.target(), part.to.apply), 30.0)
    events = Events(PAIR).insert(1, 1, "a").insert(2, 2, "b").table()
    first = next(SpanPlan(events, {TABLE_ID: PAIR}, PlanLimits(max_rows=1)).writes())

    def interrupted() -> Iterator[Statement]:
        yield first
        raise KeyboardInterrupt

    def work(session: Session) -> None:
        run_checked(session, part.to.apply, interrupted())

    with pytest.raises(KeyboardInterrupt):
        run_transaction(kept.use, work, RetryPolicy(0))
    assert run_transaction(kept.use, lambda session: session.query("SELECT 4711"), RetryPolicy(0)) == [(4711,)]
    assert part.rows() == []
    kept.close()


# Findings.


@pytest.mark.parametrize("memory", [1 << 25, 400])
@pytest.mark.parametrize("step", [8000, 3])
@pytest.mark.parametrize("most", [1, 2, 2000])
def test_findings_do_not_depend_on_subsets_slices_and_statements(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, memory: int, step: int, most: int
) -> None:
    """The transaction is run several times, planned anew each time."""
    monkeypatch.setattr(part_plans, "IN_MEMORY", memory)
    monkeypatch.setattr(plan, "SLICE", step)
    part = begin(PAIR_SQL, INSERT + "(2,2,'b'),(3,3,'c'),(5,5,'e'),(6,6,'f'),(7,7,'g'),(8,80,'h'),(100,12,'in the way'),(13,130,'too')")
    events = Events(PAIR).update((1, 1, "a"), (1, 1, "A")).update((2, 2, "b"), (2, 30, "B")).update((3, 3, "c"), (3, 2, "C"))
    events.delete(4, 4, "d").update((5, 5, "e"), (5, 5, "E")).delete(6, 6, "f").update((9, 9, "i"), (9, 90, "I"))
    events.insert(12, 12, "l").insert(13, 13, "m")
    more = [(i, i, "n") for i in range(40, 60)]
    for row in more:
        events.insert(*row)
    done = part.part(0, events.table(), PAIR, limits=PlanLimits(max_rows=most, max_keys=most))
    findings = [finding for row in done for finding in pickle.loads(row["detail"])]
    assert sorted((f.key, f.commit_ts) for f in findings) == EXPECTED
    kept = [(1, 1, "A"), (2, 30, "B"), (3, 2, "C"), (5, 5, "E"), (7, 7, "g"), (8, 80, "h"), (9, 90, "I"), (12, 12, "l"), (13, 13, "m")]
    assert part.rows() == kept + more


# A span that stopped between its parts' transactions: mended by a real Drainer's safe mode, and by ours.

INTEGERS = table([column("id", flag=INT_PK), column("u"), column("v")], [index("u", ("u", -1))], handle="int")
PLAIN = PlainTable("d.t", ("id", "u", "v"), (("id",), ("u",)))
WHERE = pytest.mark.parametrize("where", ["one deleted", "both deleted", "one written"])


class Half:
    """A history over ``d.t``, and its span in two parts."""

    def __init__(self, begin: Begin, seed: int) -> None:
        rng = random.Random(f"half {seed}")
        self.state: dict[int, tuple[Any, ...]] = {n: (n, n, 0) for n in range(8)}
        create = "CREATE TABLE d.t (id bigint primary key, u bigint, v bigint, UNIQUE KEY u (u))"
        self.span = begin(create, INSERT + ", ".join(map(str, self.state.values())), parts=2, on_finding="stop")
        self.events = Events(INTEGERS)
        self.changes = [self._change(rng) for _ in range(30)]

    def _change(self, rng: random.Random) -> RowChange:
        free = [u for u in range(16) if u not in {row[1] for row in self.state.values()}]
        number = rng.randint(0, 11)
        old, new = self.state.get(number), (number, rng.choice(free), rng.randint(0, 99))
        if old is None:
            self.events.insert(*new)
        elif rng.random() < 0.3:
            self.events.delete(*old)
            del self.state[number]
            return RowChange(old, None)
        else:
            self.events.update(old, new)
        self.state[number] = new
        return RowChange(old, new)

    def part(self, number: int, skipped: frozenset[int] = frozenset(), *, safe: bool = False) -> None:
        """What a task does for it."""
        rows = self.events.table()
        keys = row_identities(rows, {TABLE_ID: INTEGERS})
        parts = part_numbers(rows.column("table_id").to_numpy(), keys, np.zeros(len(keys), np.bool_), 2)
        self.span.part(number, rows.filter(pa.array(parts == number)), INTEGERS, skipped, safe=safe)

    def stop(self, where: str, *, safe: bool = False) -> None:
        """After the deletes of one part, of both, or after the writes of one."""
        self.part(0, safe=safe)
        if where == "both deleted":
            with dying("between-phases"):
                self.part(1, safe=safe)
        elif where == "one written":
            self.part(1, safe=safe)

    def is_whole(self) -> bool:
        return self.span.rows() == sorted(self.state.values())


@pytest.mark.parametrize("seed", range(6))
@WHERE
def test_a_real_ones_safe_mode_mends_what_ours_has_left(where: str, seed: int, begin: Begin) -> None:
    half = Half(begin, seed)
    half.stop(where)
    assert not half.is_whole()
    replay(half.span.session, PLAIN, half.changes)
    assert half.is_whole()


@pytest.mark.parametrize("seed", range(6))
@WHERE
def test_ours_in_safe_mode_is_finished_from_wherever_it_stopped(
    where: str, seed: int, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a real one had applied a part of it, and in subsets smaller than a row's history."""
    monkeypatch.setattr(part_plans, "IN_MEMORY", 300)
    half = Half(begin, seed)
    replay(half.span.session, PLAIN, half.changes[: 5 * seed])
    half.stop(where, safe=True)
    for part in (0, 1, 0):
        half.part(part, safe=True)
    assert half.is_whole()


def test_other_transactions_cannot_be_skipped_within_a_span_of_safe_mode(begin: Begin) -> None:
    half = Half(begin, 0)
    half.stop("one deleted", safe=True)
    with pytest.raises(ApplyError, match=r"was begun in safe mode with syncer.ignore-txn-commit-ts = \[\]"):
        half.part(0, frozenset({1001}), safe=True)
    half.part(1, safe=True)
    half.part(0, safe=True)
    assert half.is_whole()
