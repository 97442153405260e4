"""What a Drainer that was killed, or another one after it, has left at a target and in its relay log, built by hand: no row is lost or doubled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import walk
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from tests.support.crashed_site import CLUSTER, CrashedSite, ddl_record, inserted, records, step_of, table_of
from tests.support.killed_fork import in_a_life_that_is_killed, killed_at_each_statement
from tests.support.recorded import PLACE, begun

pytestmark = pytest.mark.mysql


@pytest.fixture
def site(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[CrashedSite]:
    found = CrashedSite(mariadb, tmp_path)
    yield found
    found.drop()


# A step that ends where safe mode ends, as before a DDL.

KEYLESS = [inserted(100, "x", (1, "a", 1)), inserted(105, "x", (2, "b", 2))]


def test_a_real_one_that_went_on_within_our_span_leaves_the_rest_of_it_in_doubt(site: CrashedSite) -> None:
    site.checkpoint(95, consistent=True)
    with connect(site.server.target(), ApplyConfig()) as session:
        begun(session, (90, 109), 2, cluster_id=CLUSTER)
        session.commit()
    site.query("INSERT INTO d.x VALUES (1, 'a', 1), (2, 'b', 2)")  # the parts that were done
    assert site.stream(KEYLESS, (95, 109)) == ()
    assert site.query("SELECT * FROM d.x ORDER BY a") == [(1, "a", 1), (2, "b", 2)]


def test_a_savepoint_that_was_set_back_to_before_a_ddl_that_was_refused(site: CrashedSite, tmp_path: Path) -> None:
    elsewhere = CheckpointConfig(type="file"), str(tmp_path / "data")
    site.query("INSERT INTO d.x VALUES (1, 'a', 1), (2, 'b', 2)")
    site.stream([], (109, 109), *elsewhere)
    (tmp_path / "data" / "savepoint").write_text("consistent = true\ncommitTS = 95\nschema-version = 1\n")
    assert site.stream(KEYLESS, (95, 109), *elsewhere) == ()
    assert site.query("SELECT * FROM d.x ORDER BY a") == [(1, "a", 1), (2, "b", 2)]


# Recovery from a relay log without the upstream.


def test_a_transaction_that_is_left_out_by_now_does_not_count_what_was_done_of_it_against_the_next(site: CrashedSite) -> None:
    """What the message about it says to do. The number of operations that are done is one of other operations then."""
    site.checkpoint(90)
    big = [*(inserted(100, "c1", (i, None, i), i) for i in range(2500)), inserted(100, "gone", (1, None, 1), 2500)]
    site.log(records([*big, *(inserted(110, "c1", (100000 + i, None, i), i) for i in range(600))]))
    with pytest.raises(ApplyError, match=r"rows of d.gone at commit_ts 100.*ignore-txn-commit-ts = \[100\]"):
        site.recover()
    assert site.query("SELECT JSON_VALUE(value, '$.done') > 0 " + PLACE.format("tidb_binlog")) == [(1,)]
    assert site.recover(ignored=[100]).commit_ts == 110
    assert site.query("SELECT COUNT(*) FROM d.c1 WHERE id >= 100000") == [(600,)]


HOURS = 3_600_000 << 18


@pytest.mark.parametrize(
    ("commit_ts", "there"),
    [(90, [50]), (90, []), (90, [90 + 48 * HOURS])],
    ids=["ends before the checkpoint", "empty", "begins days later"],
)
def test_a_real_ones_log_that_does_not_go_on_from_the_checkpoint_is_refused(site: CrashedSite, commit_ts: int, there: list[int]) -> None:
    """A part of what follows is in the target, and only safe mode, or another log, could bring it on."""
    site.checkpoint(commit_ts)
    site.log(records([inserted(ts, "c1", (7, None, 7)) for ts in there]))
    site.query("INSERT INTO d.x VALUES (1, 'a', 1)")
    before = site.recorded()
    with pytest.raises(ApplyError, match="does not hold all of them"):
        site.recover()
    assert site.recorded() == before and site.query("SELECT * FROM d.c1") == []
    assert site.stream([inserted(100, "x", (1, "a", 1))], (90, 130)) == ()
    assert site.query("SELECT * FROM d.x") == [(1, "a", 1)]


def test_a_real_ones_log_that_ends_at_the_checkpoint_is_complete(site: CrashedSite) -> None:
    site.checkpoint(90)
    site.log(records([inserted(90, "c1", (7, None, 7))]))
    assert site.recover().commit_ts == 90
    assert '"consistent":true,"commitTS":90' in site.recorded()


ADD = ddl_record(110, "y", "ALTER TABLE y ADD COLUMN extra INT")


@pytest.mark.parametrize("die", ["after-rows-commit:1", "before-relayed-ddl:1", "after-ddl:1", "after-ddl-record:1"])
def test_a_recovery_that_was_killed_leaves_the_stream_in_safe_mode_and_the_log_where_it_is(site: CrashedSite, die: str) -> None:
    """All of the log may be in the target, not only what the recovery had come to."""
    site.checkpoint(90)
    rows = [inserted(100, "c1", (1, None, 1)), inserted(120, "x", (1, "a", 1))]
    first, second = records(rows)
    site.log([first, ADD, second])
    site.query("INSERT INTO d.c1 VALUES (1, NULL, 1); INSERT INTO d.x VALUES (1, 'a', 1); ALTER TABLE d.y ADD COLUMN extra INT")
    in_a_life_that_is_killed(site.recover, die)
    sink, behind = site.relayed()
    try:
        opened = sink.open(lambda _, found: found or 0, SchemaHistory).progress
        assert behind._safe.until_ts >= 120
        assert [commit_ts_of(r.payload) for r in walk(site.log_dir)] == [100, 110, 120]
        for upto_ts in (109, 130) if opened.commit_ts < 109 else (130,):
            here = rows_between(table_of(rows), sink.commit_ts, upto_ts)
            done = sink.apply(here, step_of(sink.commit_ts, upto_ts, here.num_rows), StageClock())
            assert done.findings == ()
    finally:
        sink.close()
    assert opened.commit_ts in (90, 109, 110)
    assert site.query("SELECT * FROM d.x") == [(1, "a", 1)] and site.query("SELECT * FROM d.c1") == [(1, None, 1)]


@pytest.mark.parametrize("ends_with", ["rows", "ddl"])
def test_a_recovery_that_is_killed_at_its_last_statements_applies_nothing_twice(site: CrashedSite, ends_with: str) -> None:
    first, second = records([inserted(100, "x", (1, "a", 1)), inserted(105, "x", (2, "b", 2))])
    site.log([first, second, ADD] if ends_with == "ddl" else [first, second])

    def begin() -> None:
        site.query("DELETE FROM d.x; ALTER TABLE d.y DROP COLUMN IF EXISTS extra; DROP TABLE IF EXISTS tidb_binlog.spark_state")
        site.checkpoint(90)

    states = set[bool]()
    for number in killed_at_each_statement(begin, site.recover, 14):
        states.add('"consistent":true' in site.recorded())
        if '"consistent":true' not in site.recorded():
            assert site.recover().commit_ts == (110 if ends_with == "ddl" else 105)
        assert '"consistent":true' in site.recorded()
        assert site.query("SELECT * FROM d.x ORDER BY a") == [(1, "a", 1), (2, "b", 2)], f"killed at statement {number}"
        assert site.query("SHOW COLUMNS FROM d.y LIKE 'extra'") != [] or ends_with == "rows"
    assert states == {False, True}


@pytest.mark.parametrize("die", [f"{point}:{number}" for point in ("after-ddl", "after-ddl-record") for number in (1, 2, 3)])
def test_the_third_of_early_ddls_in_a_log_may_have_the_text_of_the_first(site: CrashedSite, die: str) -> None:
    site.checkpoint(90)
    first, second = records([inserted(100, "c1", (1, None, 1)), inserted(120, "x", (1, "a", 1))])
    site.log([first, ADD, ddl_record(110, "y", "ALTER TABLE y DROP COLUMN extra"), ADD, second])
    in_a_life_that_is_killed(site.recover, die)
    assert site.recover().commit_ts == 120
    assert site.query("SELECT * FROM d.x") == [(1, "a", 1)]
    assert site.query("SHOW COLUMNS FROM d.y LIKE 'extra'") != []


def test_killed_after_the_record_of_a_step_was_put_off(site: CrashedSite) -> None:
    """The target records less than the killed stream had passed. Nothing was applied in between, so the next one begins there."""
    first, second = inserted(100, "x", (1, "a", 1)), inserted(130, "x", (2, "b", 2))

    def streamed(*ends: int) -> None:
        _, sink = site.relayed()
        sink.open(lambda _, found: 90 if found is None else found, SchemaHistory)
        sink.defer(lambda recorded, upto: None)
        for upto_ts in ends:
            here = rows_between(table_of([first, second]), sink.commit_ts, upto_ts)
            sink.apply(here, step_of(sink.commit_ts, upto_ts, here.num_rows), StageClock())
        sink.close()

    in_a_life_that_is_killed(lambda: streamed(101, 105, 120), "after-record-put-off:1")
    assert '"commitTS":105,' in site.recorded()
    streamed(140)
    assert site.query("SELECT * FROM d.x ORDER BY a") == [(1, "a", 1), (2, "b", 2)]


# DDLs in such a log.

EXCHANGE = "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE q"


def exchanged(site: CrashedSite) -> None:
    """A log with a row of d.y before an EXCHANGE of two other tables, and one after it."""
    site.checkpoint(90)
    site.query("CREATE TABLE d.p (id bigint PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10000))")
    site.query("CREATE TABLE d.q (id bigint PRIMARY KEY); INSERT INTO d.q VALUES (1)")
    first, second = records([inserted(100, "y", (1, None, 1)), inserted(120, "y", (2, None, 2))])
    site.log([first, ddl_record(110, "p", EXCHANGE), second])


def test_an_exchange_that_a_real_one_may_have_executed_is_left_to_a_person(site: CrashedSite) -> None:
    exchanged(site)
    with pytest.raises(DdlRefused, match="may have been executed before its Drainer was killed") as refused:
        site.recover()
    assert site.query("SELECT * FROM d.y") == [], "nothing was changed"
    # It was executed.
    site.query(f"INSERT INTO d.y VALUES (1, NULL, 1); USE d; {EXCHANGE}")
    site.query("UPDATE " + str(refused.value).split("UPDATE ")[1].split(", and start")[0])
    assert site.recover().commit_ts == 120
    assert (site.query("SELECT id FROM d.p"), site.query("SELECT id FROM d.y")) == ([(1,)], [(1,), (2,)])


def test_an_exchange_of_which_a_person_says_that_it_was_not_executed(site: CrashedSite) -> None:
    """What comes before it is replayed first, and no repetition takes it for executed."""
    exchanged(site)
    for _ in range(2):
        with pytest.raises(DdlRefused, match="the target has everything before the DDL of commit_ts 110 ") as refused:
            site.recover(ignored=[110])
        assert (site.query("SELECT id FROM d.y"), site.query("SELECT id FROM d.q")) == ([(1,)], [(1,)])
    site.query(f"USE d; {EXCHANGE}")
    site.query("UPDATE " + str(refused.value).split("UPDATE ")[1].split(", and start")[0])
    assert site.recover(ignored=[110]).commit_ts == 120
    assert (site.query("SELECT id FROM d.p"), site.query("SELECT id FROM d.y")) == ([(1,)], [(1,), (2,)])


def test_a_recovery_that_was_killed_at_an_exchange_does_not_execute_it_twice(site: CrashedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first DDL may be repeated, so that the second one is known not to have been executed, until the recovery itself begins it."""
    exchanged(site)
    for file in site.log_dir.iterdir():
        file.unlink()
    first, second = records([inserted(100, "y", (1, None, 1)), inserted(120, "y", (2, None, 2))])
    site.log([first, ddl_record(105, "c1", "ALTER TABLE c1 ADD INDEX (n)"), ddl_record(110, "p", EXCHANGE), second])
    die_at(monkeypatch, "after-ddl:2")
    with pytest.raises(Killed):
        site.recover()
    monkeypatch.undo()
    with pytest.raises(DdlRefused, match="the target has everything before the DDL of commit_ts 110 ") as refused:
        site.recover()
    assert (site.query("SELECT id FROM d.p"), site.query("SELECT id FROM d.q")) == ([(1,)], [])
    site.query("UPDATE " + str(refused.value).split("UPDATE ")[1].split(", and start")[0])
    assert site.recover().commit_ts == 120
    assert site.query("SELECT id FROM d.y") == [(1,), (2,)]


def test_rows_before_other_words_of_an_enum_are_left_to_a_person_and_the_ddl_alone_is_not(site: CrashedSite) -> None:
    """It was executed: the numbers in the rows before it mean other words by now. Executed twice, it does nothing."""
    site.checkpoint(90)
    site.query("CREATE TABLE d.w (id bigint PRIMARY KEY, e ENUM('b','a')); INSERT INTO d.w VALUES (1, 'a')")
    other_words = ddl_record(110, "w", "ALTER TABLE w MODIFY COLUMN e ENUM('b','a')")
    site.log([worded(100, 1), other_words, other_words, worded(120, 2)])  # its Drainer was started once more between the two
    with pytest.raises(DdlRefused, match="rows of its table come before it") as refused:
        site.recover()
    assert site.query("SELECT e FROM d.w") == [("a",)]
    for number in range(2):
        site.checkpoint(109)
        assert site.recover().ddls == 1, number
    assert site.query("SELECT e FROM d.w") == [("a",), ("a",)] and "commitTS" in str(refused.value)


def worded(commit_ts: int, row_id: int) -> bytes:
    """A record of an INSERT into d.w of the word whose number is 1 before 110, and 2 after."""
    columns = [
        slave.ColumnInfo(name="id", mysql_type="bigint", flen=20, decimal=0),
        slave.ColumnInfo(name="e", mysql_type="enum", flen=-1, decimal=-1),
    ]
    row = slave.Row(columns=[slave.Column(int64_value=row_id), slave.Column(uint64_value=1 if commit_ts < 110 else 2)])
    table = slave.Table(schema_name="d", table_name="w", column_info=columns, mutations=[slave.TableMutation(type=slave.Insert, row=row)])
    return slave.Binlog(type=slave.DML, commit_ts=commit_ts, dml_data=slave.DMLData(tables=[table])).SerializeToString()


class Killed(Exception):
    """Stands for a kill -9: nothing catches it."""


def die_at(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """``where``: the failpoint, and its how manyth pass."""
    name, _, number = where.partition(":")
    passes: list[str] = []
    real = failpoints.point

    def point(passed: str) -> None:
        if passed == name:
            passes.append(passed)
            if len(passes) == int(number):
                raise Killed
        real(passed)

    monkeypatch.setattr(failpoints, "point", point)


def test_a_recovery_that_goes_on_after_its_first_ddl_knows_that_the_second_was_not_executed(
    site: CrashedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.checkpoint(90)
    first, second = records([inserted(100, "c1", (1, None, 1)), inserted(120, "x", (1, "a", 1))])
    site.log([first, ADD, second, ddl_record(130, "x", "ALTER TABLE x RENAME COLUMN b TO w")])
    die_at(monkeypatch, "after-rows-commit:2")
    with pytest.raises(Killed):
        site.recover()
    monkeypatch.undo()
    assert site.recover().ddls == 1
    assert site.query("SELECT w FROM d.x") == [("a",)]
