"""A transaction that is to be skipped, or no longer, once the deletes of a span in parts are committed: on a real MariaDB, without Spark."""

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError, LeaseLost, SchemaMismatch
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.mysql import parallel, part_plans
from tests.support.ddl_target import Died, deadly
from tests.support.killed_fork import in_a_life_that_is_killed
from tests.support.leases import take_lease
from tests.support.one_span import SCHEMA, OneSpan, spans_at
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, table, text
from tests.support.target_rows import refusing

pytestmark = pytest.mark.mysql

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of table: how TiDB identifies its rows, and what the target has."""

    at: TableAt
    sql: str


PAIR = Kind(
    table([column("id", flag=INT_PK), column("u"), text("v")], [index("uu", ("u", -1))], handle="int"),
    "CREATE TABLE d.t (id bigint primary key, u bigint, v varchar(400), UNIQUE KEY uu (u))",
)
HANDLE = Kind(
    table([column("id", flag=INT_PK), column("u"), text("v")], handle="int"),
    "CREATE TABLE d.t (id bigint primary key, u bigint, v varchar(400))",
)
COMMON = Kind(
    table(
        [text("id", flag=NOT_NULL), column("u"), text("v")],
        [index("PRIMARY", ("id", -1), primary=True), index("uu", ("u", -1))],
        handle="common",
    ),
    "CREATE TABLE d.t (id varchar(100) primary key, u bigint, v varchar(400), UNIQUE KEY uu (u))",
)
UNIQUE = Kind(
    table([column("id"), column("u"), text("v")], [index("uu", ("u", -1))]),
    "CREATE TABLE d.t (id bigint, u bigint, v varchar(400), UNIQUE KEY uu (u))",
)
KEYLESS = Kind(table([column("id"), column("u"), text("v")]), "CREATE TABLE d.t (id bigint, u bigint, v varchar(400))")
KINDS = [
    pytest.param(k, id=n) for n, k in (("pair", PAIR), ("handle", HANDLE), ("common", COMMON), ("unique", UNIQUE), ("keyless", KEYLESS))
]


@dataclass(frozen=True)
class Life(OneSpan):
    """A span of ``d.t`` in parts, and the lease of one life of the Drainer."""

    at: TableAt

    def run(self, events: Sequence[pa.Table], *skipped: int) -> list[Finding]:
        """Apply all parts, one after the other and again while some are left, as Spark's jobs do; the findings."""
        findings: list[Finding] = []
        for _ in range(2):
            left = [part for part in range(len(events)) if self.task(part, events[part], findings, *skipped)]
        assert not left
        return findings

    def task(self, part: int, events: pa.Table, findings: list[Finding], *skipped: int) -> bool:
        """Apply one part; whether it is left."""
        done = self.part(part, events, self.at, frozenset(skipped))
        findings += [finding for row in done for finding in pickle.loads(row["detail"])]
        return any(row["phase"] == parallel.LEFT for row in done)

    def deletes_only(self, events: Sequence[pa.Table], *skipped: int) -> None:
        """Apply the parts up to the last delete: the life ends before the first write."""
        for part, some in enumerate(events):
            with suppress(Died), deadly("between-phases"):
                self.task(part, some, [], *skipped)


Begin = Callable[..., Life]


@pytest.fixture
def begin(mariadb: PrivateMariaDB) -> Iterator[Begin]:
    """Begins a span: the kind of table, its rows, the number of parts, then settings of ``[syncer]``."""
    with spans_at(mariadb.target()) as spans:

        def made(kind: Kind, rows: Sequence[Row], parts: int = 1, **settings: Any) -> Life:
            literals = ("(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in rows)
            insert = f"INSERT INTO d.t VALUES {', '.join(literals)}"
            span = spans(kind.sql, *refusing("d.t", "NEW.u = 20"), insert, parts=parts, **{"on_finding": "stop", **settings})
            return Life(span.session, span.to, kind.at)

        yield made


def refused(life: Life, events: Sequence[pa.Table], named: int, *skipped: int) -> None:
    with pytest.raises(ApplyError, match=rf"skip the transaction with syncer.ignore-txn-commit-ts = \[{named}\]"):
        life.run(events, *skipped)


def value(kind: Kind, n: int) -> Any:
    return f"k{n}" if kind is COMMON else n


@pytest.mark.parametrize("memory", [1 << 25, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_transaction_is_skipped_as_its_message_says(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, kind: Kind, memory: int
) -> None:
    monkeypatch.setattr(part_plans, "IN_MEMORY", memory)
    one, two, three, four = (value(kind, n) for n in (1, 2, 3, 4))
    life = begin(kind, [(one, 1, "a"), (two, 2, "b"), (three, 3, "c")])
    events = Events(kind.at).update((one, 1, "a"), (one, 10, "A"), rowid=1).update((two, 2, "b"), (two, 20, "B"), rowid=2)
    events.delete(three, 3, "c", rowid=3, same=True).insert(four, 4, "d", rowid=4, same=True)
    refused(life, [events.table()], 1002)
    assert life.run([events.table()], 1002) == []
    assert life.rows() == [(one, 10, "A"), (two, 2, "b"), (three, 3, "c")]


def test_as_many_equal_rows_without_a_key_are_inserted_as_were_deleted(begin: Begin) -> None:
    life = begin(KEYLESS, [(1, 1, None)] * 5)
    events = Events(KEYLESS.at).update((1, 1, None), (1, 20, None), rowid=1).delete(1, 1, None, rowid=2, same=True)
    events.delete(1, 1, None, rowid=3).update((1, 1, None), (2, 2, None), rowid=4)
    refused(life, [events.table()], 1001)
    assert life.run([events.table()], 1001) == []
    assert life.rows() == [(1, 1, None)] * 3 + [(2, 2, None)]


def test_transactions_that_are_skipped_one_after_the_other_and_no_longer(begin: Begin) -> None:
    life = begin(PAIR, [(1, 1, "a"), (2, 2, "b"), (3, 3, "c")])
    events = Events(PAIR.at).update((1, 1, "a"), (1, 20, "A")).update((1, 20, "A"), (1, 20, "B")).update((2, 2, "b"), (2, 20, "b"))
    tables = [events.delete(3, 3, "c").table()]
    refused(life, tables, 1002)
    refused(life, tables, 1001, 1002)
    assert life.rows() == [], "both changed rows, and the removed one, are deleted"
    refused(life, tables, 1003, 1001, 1002)
    assert life.rows() == [(1, 1, "a")]
    refused(life, tables, 1003, 1001, 1002, 1004)
    assert life.rows() == [(1, 1, "a"), (3, 3, "c")]
    assert life.run(tables, 1001, 1002, 1003) == []
    assert life.rows() == [(1, 1, "a"), (2, 2, "b")]


def test_what_is_skipped_from_the_beginning_is_not_touched(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_plans, "DeleteCorrection", None)
    life = begin(PAIR, [(1, 1, "a"), (2, 2, "b")])
    events = [Events(PAIR.at).update((1, 1, "a"), (1, 10, "A")).update((2, 2, "b"), (2, 20, "B")).table()]
    life.deletes_only(events, 1002)
    assert life.rows() == [(2, 2, "b")]
    assert life.run(events, 1002) == []
    assert life.rows() == [(1, 10, "A"), (2, 2, "b")]
    assert life.session.query(f"SELECT SUBSTRING_INDEX(name, ' ', -1), value FROM {SCHEMA}.spark_state WHERE name LIKE 'part %'") == [
        ("delete", "1002"),
        ("write", "1002"),
    ]


@pytest.mark.parametrize("memory", [1 << 25, 50])
def test_a_skipped_transaction_may_change_an_unknown_table(begin: Begin, monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(part_plans, "IN_MEMORY", memory)
    life = begin(PAIR, [(1, 1, "a")])
    events = Events(PAIR.at).update((1, 1, "a"), (1, 10, "A")).insert(9, 9, "i").table()
    unknown = events.set_column(3, events.schema.field(3), pa.array([TABLE_ID, TABLE_ID + 1], pa.int64()))
    with pytest.raises(SchemaMismatch, match=rf"table id {TABLE_ID + 1}"):
        life.run([unknown])
    assert life.run([unknown], 1002) == []
    assert life.rows() == [(1, 10, "A")]


@pytest.mark.parametrize("kind", [k for k in KINDS if k.id in ("unique", "keyless")])
def test_another_row_that_was_deleted_instead_is_a_finding(begin: Begin, kind: Kind) -> None:
    """The skipped transaction would have made the one row like the other, which the next transaction's delete then finds instead."""
    life = begin(kind, [(1, 1, "a"), (2, 2, "b")])
    events = Events(kind.at).update((2, 2, "b"), (2, 5, "b"), rowid=2).update((1, 1, "a"), (2, 2, "b"), rowid=1, same=True)
    tables = [events.update((2, 2, "b"), (3, 20, "c"), rowid=1).table()]
    refused(life, tables, 1002, 1001)
    assert life.rows() == [(1, 1, "a")]
    findings = life.run(tables, 1001, 1002)
    assert [(f.table, f.commit_ts) for f in findings] == [("`d`.`t`", 1002)]
    assert findings[0].words.startswith("1 rows equal to those of this transaction may be missing")


# Several parts.

SPREAD = [
    Events(PAIR.at).update((1, 1, "a"), (1, 10, "A")).table(),
    Events(PAIR.at, 1001).update((2, 2, "b"), (2, 20, "B")).delete(3, 3, "c", same=True).update((4, 4, "d"), (4, 40, "D")).table(),
    Events(PAIR.at, 1001).update((5, 5, "e"), (5, 50, "E")).table(),
    Events(PAIR.at, 1001).insert(6, 2, "f").table().slice(0, 0),
]
BEFORE = [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (4, 4, "d"), (5, 5, "e")]


def test_a_part_that_is_finished_stays_and_says_so(begin: Begin) -> None:
    life = begin(PAIR, BEFORE, 4)
    for part in range(4):
        life.task(part, SPREAD[part], [])
    life.task(2, SPREAD[2], [])
    refused(life, SPREAD, 1002)
    findings = life.run(SPREAD, 1002)
    assert [(f.table, f.commit_ts) for f in findings] == [("`d`.`t`", 1002)]
    assert (
        findings[0].words
        == "the transaction is skipped in part: 1 of its row changes were written before syncer.ignore-txn-commit-ts was changed"
    )
    assert life.rows() == [(1, 10, "A"), (2, 2, "b"), (3, 3, "c"), (4, 40, "D"), (5, 50, "E")]
    assert life.run(SPREAD, 1002) == [], "nothing is left to do, and nothing is said twice"
    assert [f.commit_ts for f in life.run(SPREAD, 1001, 1002)] == [1001, 1002]


def test_no_part_writes_before_the_deletes_of_all_are_corrected(begin: Begin) -> None:
    life = begin(PAIR, BEFORE, 4)
    life.deletes_only(SPREAD)
    assert life.task(0, SPREAD[0], [], 1002)
    assert life.rows() == []
    assert life.task(1, SPREAD[1], [], 1002)
    assert life.rows() == [(2, 2, "b"), (3, 3, "c")]


@pytest.mark.parametrize("policy", ["stop", "record"])
def test_a_row_in_the_way_of_one_that_was_deleted_stays_and_is_a_finding(begin: Begin, policy: str) -> None:
    """The skipped transaction gave the unique value to another row, whose part is finished."""
    life = begin(PAIR, [(1, 1, "a"), (2, 2, "b")], 2, on_finding=policy)
    events = [
        Events(PAIR.at).update((1, 1, "a"), (1, 2, "A")).table(),
        Events(PAIR.at).update((2, 2, "b"), (2, 20, "b")).table(),
    ]
    life.deletes_only(events)
    life.task(0, events[0], [])
    refused(life, events, 1001)
    if policy == "stop":
        with pytest.raises(FindingError, match="not inserted again, because another row has its key"):
            life.run(events, 1001)
        assert life.rows() == [(1, 2, "A")]
        return
    findings = life.run(events, 1001)
    assert [(f.key, f.commit_ts) for f in findings] == [("", 1001), ("id=2", 1001)]
    assert life.rows() == [(1, 2, "A")]


def test_a_finished_part_that_took_a_unique_value_loses_nothing(begin: Begin) -> None:
    """A row that other transactions move as well stays deleted: inserted again, it would be in the way of the finished part."""
    life = begin(PAIR, [(1, 1, "a"), (2, 2, "b"), (3, 3, "c")], 2)
    events = [
        Events(PAIR.at, 1001).update((1, 1, "a"), (1, 2, "A")).table(),
        Events(PAIR.at).update((2, 2, "b"), (2, 4, "b")).table(),
    ]
    more = Events(PAIR.at, 1002).update((2, 4, "b"), (2, 5, "b")).update((3, 3, "c"), (3, 20, "c")).table()
    events[1] = pa.concat_tables([events[1], more])
    life.deletes_only(events)
    life.task(0, events[0], [])
    refused(life, events, 1004)
    assert life.run(events, 1003, 1004) == []
    assert life.rows() == [(1, 2, "A"), (2, 4, "b"), (3, 3, "c")]


def test_a_task_of_an_earlier_life_changes_nothing(begin: Begin) -> None:
    """Spark may still run it: it would correct the deletes back to what its own life skipped, and write without them."""
    earlier = begin(PAIR, BEFORE, 4)
    earlier.deletes_only(SPREAD)
    life = replace(earlier, to=replace(earlier.to, lease=take_lease(earlier.session, schema=SCHEMA)))
    for part in range(2):
        assert life.task(part, SPREAD[part], [], 1002)
    held = life.rows()
    for part in range(4):
        with pytest.raises(LeaseLost):
            earlier.task(part, SPREAD[part], [])
    assert life.rows() == held
    assert life.run(SPREAD, 1002) == []
    assert life.rows() == [(1, 10, "A"), (2, 2, "b"), (3, 3, "c"), (4, 40, "D"), (5, 5, "e")]


# Deaths.


POINTS = ["before-part-delete-commit:1", "after-part-delete:1", "before-part-delete-commit:2", "after-part-delete:2", "after-part-delete:4"]
POINTS += ["between-phases:1", "before-part-write-commit:1", "after-part-write:1"]


@pytest.mark.parametrize("die", POINTS)
def test_killed_at_any_point_while_what_is_skipped_changes(begin: Begin, die: str) -> None:
    life = begin(PAIR, BEFORE, 4)
    life.deletes_only(SPREAD, 1003)
    in_a_life_that_is_killed(lambda: life.run(SPREAD, 1002), die)
    assert [f.words for f in life.run(SPREAD, 1002)] == []
    assert life.rows() == [(1, 10, "A"), (2, 2, "b"), (3, 3, "c"), (4, 40, "D"), (5, 5, "e")]


@pytest.mark.parametrize("die", [pytest.param(die, marks=pytest.mark.slow if die.endswith("2") else ()) for die in POINTS[:5]])
def test_killed_while_it_changes_and_changed_again(begin: Begin, die: str) -> None:
    life = begin(PAIR, BEFORE, 4)
    life.deletes_only(SPREAD)
    in_a_life_that_is_killed(lambda: life.run(SPREAD, 1002), die)
    assert life.run(SPREAD, 1001, 1002, 1003) == []
    assert life.rows() == BEFORE


# Against a span that was begun with what is skipped in the end.


def history_of(kind: Kind, seed: int) -> tuple[list[Row], pa.Table]:
    """Rows, and changes of them that follow from each other, some rows changed often."""
    rng = random.Random(seed)
    rows: dict[int, Row] = {n: (value(kind, n), n, "a") for n in range(1, 7)}
    before, events = list(rows.values()), Events(kind.at)
    for step in range(14):
        n, same = rng.randint(1, 8), rng.random() < 0.4 and step > 0
        free = rng.choice([u for u in range(1, 12) if u not in {u for _, u, _ in rows.values()}])
        old = rows.get(n)
        if old is None:
            rows[n] = (value(kind, n), free, "new")
            events.insert(*rows[n], rowid=n, same=same)
        elif rng.random() < 0.3:
            events.delete(*rows.pop(n), rowid=n, same=same)
        else:
            rows[n] = (old[0], free if rng.random() < 0.6 else old[1], rng.choice("abc"))
            events.update(old, rows[n], rowid=n, same=same)
    return before, events.table()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow if seed > 3 else ()) for seed in range(12)])
@pytest.mark.parametrize("kind", [k for k in KINDS if k.id in ("pair", "handle", "common")])
def test_the_same_as_if_it_had_been_skipped_from_the_beginning(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, kind: Kind, seed: int
) -> None:
    before, events = history_of(kind, seed)
    rng = random.Random(seed)
    stamps = sorted(set(events.column("commit_ts").to_pylist()))
    first, second, last = (rng.sample(stamps, rng.randint(0, 4)) for _ in range(3))
    life = begin(kind, before, on_finding="record")
    life.deletes_only([events], *last)
    deleted = life.rows()
    expected = [(f.key, f.commit_ts) for f in life.run([events], *last)], life.rows()
    monkeypatch.setattr(part_plans, "IN_MEMORY", rng.choice([1 << 25, 300]))
    life = begin(kind, before, on_finding="record")
    for skipped in (first, second, last):
        life.deletes_only([events], *skipped)
    assert life.rows() == deleted
    assert ([(f.key, f.commit_ts) for f in life.run([events], *last)], life.rows()) == expected


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow if seed > 3 else ()) for seed in range(8)])
@pytest.mark.parametrize("kind", [k for k in KINDS if k.id in ("unique", "keyless")])
def test_rows_without_a_handle_too_if_nothing_was_skipped_before(begin: Begin, kind: Kind, seed: int) -> None:
    before, events = history_of(kind, seed)
    rng = random.Random(seed)
    last = rng.sample(sorted(set(events.column("commit_ts").to_pylist())), 3)
    life = begin(kind, before, on_finding="record")
    life.run([events], *last)
    expected = life.rows()
    life = begin(kind, before, on_finding="record")
    life.deletes_only([events])
    life.run([events], *last)
    assert life.rows() == expected
