"""Tables with columns that only the target has, on a real MariaDB: rows keep what those hold as long as they keep their keys, in every way of applying."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import FindingError
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql import parallel, part_plans
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.parallel import LEFT, PartTarget, apply_part
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import as_found
from tests.support.leases import held
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, VERSION, Events, column, index, table, text
from tests.support.recorded import begun
from tests.support.row_worlds import RowHistory, RowWorld, clustered, two_keys

pytestmark = pytest.mark.mysql

SCHEMA = "others_marks"
WAYS = ("at once", "in parts", "row by row")
NOTED = "note varchar(20) NOT NULL DEFAULT 'none', must int NOT NULL"
PAIR = table([column("id", flag=NOT_NULL), text("u"), column("n")], [index("PRIMARY", ("id", -1), primary=True), index("u", ("u", -1))])
"""Its primary key is not clustered: an UPDATE may change it."""
PAIR_SQL = f"CREATE TABLE d.t (id bigint PRIMARY KEY, u varchar(20), {NOTED}, n bigint, UNIQUE (u))"
CLUSTERED = table([column("id", flag=INT_PK), column("n")], handle="int")
KEYLESS = table([column("a"), text("b")])
START = "INSERT INTO d.t (id, u, n, note, must) VALUES (1,'a',0,'one',11),(2,'b',0,'two',22),(3,'c',0,'three',33)"


@dataclass
class Place:
    """A target with one table ``d.t``, and the ways to apply rows to it."""

    server: PrivateMariaDB
    session: Session
    way: str = "at once"
    settings: dict[str, Any] = field(default_factory=dict)
    after_ts: int = 10
    sink: MySQLSink | None = None
    skipped: frozenset[int] = frozenset()
    finishes: bool = True
    """Whether a span in parts ends, or is left as after a death."""

    def apply(self, events: pa.Table, at: TableAt = PAIR) -> Written:
        """The rows as one step."""
        upto_ts = max([self.after_ts, *events.column("commit_ts").to_pylist()])
        step = RowsStep(self.after_ts, upto_ts, events.num_rows, {at.table_id: at}, applied=AppliedJobs(int(VERSION)))
        done = self._in_parts(events, step, at) if self.way == "in parts" else self.opened().apply(events, step, StageClock())
        self.after_ts = upto_ts
        return done

    def opened(self) -> MySQLSink:
        if self.sink is None:
            how: dict[str, Any] = {"net_change": self.way != "row by row", "worker_count": 2, "txn_batch": 100}
            apply = ApplyConfig(checkpoint_schema=SCHEMA, **how, **self.settings)
            self.sink = MySQLSink(DrainerConfig(target=self.server.target(), apply=apply), 1)
            self.sink.open(lambda target, ts: self.after_ts if ts is None else ts, SchemaHistory)
        return self.sink

    def _in_parts(self, events: pa.Table, step: RowsStep, at: TableAt) -> Written:
        """As the tasks of two parts do it, each asked twice: the first one cannot write before the other's deletes."""
        there = as_found(at, read_tables(self.session, [("d", "t")])["d", "t"], partial=False)
        assert isinstance(there, TableAt)
        lease = held(self.session, schema=SCHEMA)
        record = begun(self.session, (step.after_ts, step.upto_ts), 2, SCHEMA)
        self.session.commit()
        keys = row_identities(events, step.tables)
        keyless = np.full(events.num_rows, not at.info.unique_keys())
        numbers = part_numbers(events.column("table_id").to_numpy(), keys, keyless, 2)
        how = PartPlan((step.after_ts, step.upto_ts), {at.table_id: there}, self.session.flavour, PlanLimits(), self.skipped, frozenset())
        to = PartTarget(ShippedTarget.of(self.server.target(), Here), ApplyConfig(checkpoint_schema=SCHEMA), lease, *how.span, 2)
        rows = 0
        findings: tuple[Finding, ...] = ()
        with_keys = events.append_column("key", keys)
        for part in (0, 1, 0, 1):
            mine = with_keys.filter(pa.array(numbers == part))
            for batch in apply_part(part, mine, how, to, 0.0):
                done = parallel._together(pa.Table.from_batches([batch.filter(pa.compute.not_equal(batch.column("phase"), LEFT))]))
                rows, findings = rows + done.rows, findings + done.findings
        if self.finishes:
            record.forget_upto(self.session, step.upto_ts)
        self.session.commit()
        return Written(rows, findings)

    def rows(self, columns: str = "id, u, n, note, must") -> list[tuple[Any, ...]]:
        found = self.session.query(f"SELECT {columns} FROM d.t ORDER BY 1, 2, 3")
        self.session.commit()
        return found


Make = Callable[..., Place]


@pytest.fixture
def make(mariadb: PrivateMariaDB) -> Iterator[Make]:
    places: list[Place] = []
    with connect(mariadb.target(), ApplyConfig(lease_timeout=3600.0)) as session:

        def made(way: str, *statements: str, **settings: Any) -> Place:
            session.execute("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
            for statement in statements:
                session.execute(statement)
            session.commit()
            places.append(Place(mariadb, session, way, settings))
            return places[-1]

        yield made
        for place in places:
            if place.sink is not None:
                place.sink.close()
        session.rollback()
        for name in ("d", SCHEMA):
            session.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, make: Make) -> Place:
    return make(request.param, PAIR_SQL, START)


def still(place: Place, note: str, must: int) -> tuple[str, int]:
    """What a row holds whose unique keys have changed: row by row it is an UPDATE."""
    return (note, must) if place.way == "row by row" else ("none", 0)


def assert_reset(place: Place, done: Written, rows: int) -> None:
    """So many rows have lost what they held, and each is a finding."""
    lost = [(FindingKind.VALUE, "got their defaults: note, must")] * (0 if place.way == "row by row" else rows)
    assert [(found.kind, found.words[-30:]) for found in done.findings] == lost


def test_a_row_whose_key_changes_gets_defaults_and_is_a_finding(place: Place) -> None:
    done = place.apply(Events(PAIR).update((1, "a", 0), (9, "a", 1), rowid=1).update((2, "b", 0), (2, "b", 5), rowid=2).table())
    assert_reset(place, done, 1)
    assert place.rows() == [(2, "b", 5, "two", 22), (3, "c", 0, "three", 33), (9, "a", 1, *still(place, "one", 11))]


def test_two_rows_swap_their_primary_keys(place: Place) -> None:
    events = Events(PAIR).update((1, "a", 0), (100, "a", 0), rowid=1)
    events.update((2, "b", 0), (1, "b", 7), rowid=2).update((100, "a", 0), (2, "a", 0), rowid=1)
    assert_reset(place, place.apply(events.table()), 2)
    assert place.rows() == [(1, "b", 7, *still(place, "two", 22)), (2, "a", 0, *still(place, "one", 11)), (3, "c", 0, "three", 33)]


def test_two_rows_swap_a_unique_value_that_only_the_collation_takes_for_equal(place: Place) -> None:
    events = Events(PAIR).update((1, "a", 0), (1, "tmp", 0), rowid=1)
    events.update((2, "b", 0), (2, "A", 0), rowid=2).update((1, "tmp", 0), (1, "B", 0), rowid=1)
    assert_reset(place, place.apply(events.table()), 2)
    assert place.rows() == [(1, "B", 0, *still(place, "one", 11)), (2, "A", 0, *still(place, "two", 22)), (3, "c", 0, "three", 33)]


def test_a_new_row_gets_defaults_also_where_there_is_none(place: Place) -> None:
    done = place.apply(Events(PAIR).insert(4, "d", 4, rowid=4).table())
    assert done.findings == ()
    assert place.rows()[-1] == (4, "d", 4, "none", 0)


def test_a_row_that_is_deleted_and_inserted_again_is_a_new_one(place: Place) -> None:
    """As row by row: the other columns have their defaults."""
    events = Events(PAIR).delete(1, "a", 0, rowid=1).insert(1, "a", 0, rowid=77).update((1, "a", 0), (1, "a", 1), rowid=77)
    assert place.apply(events.table()).findings == ()
    assert place.rows()[0] == (1, "a", 1, "none", 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_memory", [True, False])
def test_so_is_one_with_a_clustered_key(way: str, in_memory: bool, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.setattr(part_plans, "IN_MEMORY", 1)
    place = make(
        way, f"CREATE TABLE d.t (id bigint PRIMARY KEY, n bigint, {NOTED})", "INSERT INTO d.t VALUES (1,1,'one',11),(2,2,'two',22)"
    )
    events = Events(CLUSTERED).update((1, 1), (1, 5)).delete(1, 5).insert(1, 6).update((1, 6), (1, 7)).update((2, 2), (2, 3))
    assert place.apply(events.table(), CLUSTERED).findings == ()
    assert place.rows("id, n, note, must") == [(1, 7, "none", 0), (2, 3, "two", 22)]


@pytest.mark.parametrize("way", WAYS)
def test_rows_without_a_key_keep_them_row_by_row_only(way: str, make: Make) -> None:
    place = make(way, f"CREATE TABLE d.t (a bigint, b varchar(20), {NOTED})", "INSERT INTO d.t VALUES (1,'x','one',11),(2,'x','two',22)")
    events = Events(KEYLESS).update((1, "x"), (2, "y"), rowid=1).update((2, "x"), (1, "x"), rowid=2).update((2, "y"), (2, "x"), rowid=1)
    assert_reset(place, place.apply(events.table(), KEYLESS), 2)
    assert place.rows("a, b, note, must") == [(1, "x", *still(place, "two", 22)), (2, "x", *still(place, "one", 11))]


def test_nothing_is_written_where_findings_stop(make: Make) -> None:
    place = make("at once", PAIR_SQL, START, on_finding="stop")
    with pytest.raises(FindingError, match="got their defaults: note, must"):
        place.apply(Events(PAIR).update((1, "a", 0), (9, "a", 1), rowid=1).table())
    assert place.rows()[0] == (1, "a", 0, "one", 11)


def test_what_a_correction_cannot_bring_back_is_a_finding(make: Make) -> None:
    """The rows have left their places when a person decides to skip the transaction that moves one of them."""
    place = make("in parts", PAIR_SQL, START)
    events = Events(PAIR).update((1, "a", 0), (9, "a", 1), rowid=1).update((2, "b", 0), (8, "b", 1), rowid=2).table()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "_others_deleted", lambda *_: False)
        place.finishes = False
        place.apply(events)
    assert place.rows("id, u, n") == [(3, "c", 0)]
    place.after_ts, place.skipped = 10, frozenset([1001])
    done = place.apply(events)
    assert place.rows() == [(1, "a", 0, "none", 0), (3, "c", 0, "three", 33), (8, "b", 1, "none", 0)]
    assert [(f.kind, f.commit_ts) for f in done.findings] == [(FindingKind.VALUE, 1001), (FindingKind.VALUE, 1002)]
    assert done.findings[0].words.endswith("with the defaults of the columns that only the target has: note, must")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [clustered, two_keys])
def test_random_histories(way: str, world: Callable[[str, int], RowWorld], make: Make) -> None:
    """Every row that lives through a step with its keys keeps its note, and every other one has the default."""
    rng = random.Random(7)
    made = world("t", TABLE_ID)
    past = RowHistory((made,), rng)
    names = [c.name for c in made.at.info.columns]
    create = made.create.replace("TABLE t (", "TABLE d.t (note varchar(40) NOT NULL DEFAULT 'none', ")
    place = make(way, create)
    for round_ in range(12):
        before = dict(made.rows)
        rows = past.batch(12)
        born = set(_inserted(made, rows))
        done = place.apply(rows, made.at)
        lived = {rowid for rowid in made.rows if rowid in before and rowid not in born}
        same = {rowid for rowid in lived if way == "row by row" or keys_in(made, before[rowid]) == keys_in(made, made.rows[rowid])}
        assert len(done.findings) == len(lived - same)
        expected = sorted(((f"n{round_}-{rowid}" if rowid in same else "none"), *row) for rowid, row in made.rows.items())
        assert sorted(place.rows(", ".join(["note", *names])), key=repr) == sorted(expected, key=repr), f"round {round_}"
        for rowid, row in made.rows.items():
            place.session.execute(f"UPDATE d.t SET note = 'n{round_ + 1}-{rowid}' WHERE n = {row[-1]}")
        place.session.commit()


def keys_in(world: RowWorld, row: tuple[Any, ...]) -> list[Any]:
    """The values of all unique keys."""
    named = dict(zip((c.name for c in world.at.info.columns), row, strict=True))
    return [named[c.name] for key in world.at.info.unique_keys() for c in key]


def _inserted(world: RowWorld, rows: pa.Table) -> list[int]:
    """The rows that are inserted, by TiDB's row id."""
    at = {world.at.table_id: world.at}
    keys = row_identities(rows, at).to_pylist()
    ops = rows.column("op").to_pylist()
    return [int.from_bytes(key, "big", signed=True) for key, op in zip(keys, ops, strict=True) if op == Op.INSERT]


def test_a_step_in_place_costs_no_more_statements_once_the_table_is_known(make: Make) -> None:
    place = make("at once", PAIR_SQL, START)
    place.apply(Events(PAIR).update((1, "a", 0), (1, "a", 1), rowid=1).table())

    def selects() -> int:
        return int(place.session.query("SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1])

    def one(ts: int) -> int:
        before = selects()
        place.apply(Events(PAIR, ts).update((2, "b", 0), (2, "b", 0), rowid=2).table())
        return selects() - before

    first, second = one(2000), one(3000)
    place.opened()._tables.forget()
    assert first == second and one(4000) == second + 3


@pytest.mark.parametrize("charset", ["latin1", "gbk", "utf16"])
@pytest.mark.parametrize("way", ["at once", "row by row"])
def test_safe_mode_finds_rows_by_keys_in_another_charset_than_the_upstream_s(way: str, charset: str, make: Make) -> None:
    """Of a list of several columns MariaDB would find none, and in safe mode a row that is not there is no finding."""
    keyed = table(
        [column("id", flag=INT_PK), text("c", INT_PK), column("n")],
        [index("PRIMARY", ("id", -1), ("c", -1), primary=True)],
        handle="common",
    )
    words = ["中", "文", "字"] if charset == "gbk" else ["é", "ü", "a"]
    there = f"CREATE TABLE d.t (id bigint, c varchar(20) CHARACTER SET {charset}, n bigint, PRIMARY KEY (id, c))"
    place = make(way, there, f"INSERT INTO d.t VALUES (0, '{words[0]}', 0), (1, '{words[1]}', 0), (2, '{words[2]}', 0)", safe_mode=True)
    change = Events(keyed).delete(0, words[0], 0).delete(1, words[1], 0)
    place.apply(change.update((2, words[2], 0), (3, words[2], 1)).table(), keyed)
    assert place.rows("id, c, n") == [(3, words[2], 1)]
