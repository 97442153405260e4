"""The lease on a real MariaDB: who may take it and when, and that nothing is written by a life that has lost it."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseHeld, LeaseLost, RetryableApplyError, Stopped
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql import lease, lease_guard, mysql_sink, parallel
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table, forget_later, load_applied
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, GUARD, LeaseGuard, alone
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.parallel import PartTarget
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, TransientError
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenParts, Part, StateTable
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Origin, Phase, Statement
from tests.support.attempts import run_retried
from tests.support.ddl_jobs import database, history, job, steps_of, table
from tests.support.ddl_target import committed
from tests.support.eventually import eventually
from tests.support.fakes.planned import Planned
from tests.support.leases import take_lease
from tests.support.recorded import progress_in, record_in, set_checkpoint

pytestmark = pytest.mark.mysql

ROOT = Path(__file__).parents[2]
SCHEMA = "lease_marks"
RECORD, OTHER = StateTable(SCHEMA, 1), StateTable(SCHEMA, 2)
CONFIG = ApplyConfig(checkpoint_schema=SCHEMA, lease_timeout=1.0)
HISTORY = history(
    database(1, "leased"),
    job(2, 3, table(10, "t"), query="CREATE TABLE `t` (`id` INT PRIMARY KEY)", schema_name="leased"),
    job(3, 11, table(11, "t"), query="TRUNCATE TABLE `t`", schema_name="leased", table_id=10),
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_guard, "_SLICE", 1)


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        record_in(session, SCHEMA)
        ensure_ddl_table(session, CONFIG)
        session.execute("CREATE DATABASE leased")
        yield session
        session.rollback()
        session.execute(f"DROP DATABASE {SCHEMA}")
        session.execute("DROP DATABASE leased")


@pytest.fixture
def guards(mariadb: PrivateMariaDB) -> Iterator[Callable[..., LeaseGuard]]:
    """Makes guards of cluster 1 under a name, and closes them."""
    made: list[LeaseGuard] = []

    def make(name: str, tell: Callable[[TransientError | None], None] = lambda error: None) -> LeaseGuard:
        policy = RetryPolicy(5, tell=tell)
        made.append(LeaseGuard(lambda: connect(mariadb.target(), CONFIG), 1, SCHEMA, LeaseHolder(name), CONFIG.lease_timeout, policy))
        return made[-1]

    yield make
    for guard in made:
        guard.close()


def steps() -> list[DdlStep]:
    return steps_of(HISTORY, {j.id: f"{j.query};" for j in HISTORY.ordered})


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.3)
    return thread


# The row.


def test_the_former_life_is_told_who_has_it(session: Session) -> None:
    first = take_lease(session, schema=SCHEMA, drainer="one")
    lease.check(session, first)
    second = take_lease(session, schema=SCHEMA, drainer="two")
    lease.check(session, second)
    assert (second.epoch, second.target) == (first.epoch + 1, first.target)
    with pytest.raises(LeaseLost, match=rf"stops writing.*drainer 'two' on .* \(pid {os.getpid()}\) since 20.* took it as epoch 2"):
        lease.check(session, first)


def test_clusters_have_leases_of_their_own(session: Session) -> None:
    one, two = take_lease(session, 1, SCHEMA), take_lease(session, 2, SCHEMA)
    lease.check(session, one)
    lease.check(session, two)
    assert one.target != two.target


def test_a_target_that_went_back_does_not_know_this_life(session: Session) -> None:
    backup = take_lease(session, schema=SCHEMA)
    newer = take_lease(session, schema=SCHEMA)
    session.execute(f"UPDATE {SCHEMA}.spark_lease SET epoch = %s, life = %s", [backup.epoch, backup.life])
    with pytest.raises(LeaseLost, match="restored or rebuilt"):
        lease.check(session, newer)
    after = take_lease(session, schema=SCHEMA)
    assert after.epoch == newer.epoch
    with pytest.raises(LeaseLost, match="took it as epoch 2"):
        lease.check(session, newer)
    session.execute(f"DROP TABLE {SCHEMA}.spark_lease")
    with pytest.raises(LeaseLost, match="restored or rebuilt"):
        lease.check(session, after)


def test_a_statement_that_checks_the_lease_itself(mariadb: PrivateMariaDB, session: Session) -> None:
    """It waits for whoever is taking the lease, and then writes nothing."""
    session.execute("CREATE TABLE leased.n (n INT PRIMARY KEY)")
    first = take_lease(session, schema=SCHEMA)
    errors: list[BaseException] = []

    def write(n: int) -> None:
        with connect(mariadb.target(), CONFIG) as other:
            other.execute("SET SESSION autocommit = 1")
            try:
                lease.write(other, first, "REPLACE INTO leased.n (n) SELECT %s", [n])
            except ApplyError as error:
                errors.append(error)

    write(1)
    assert session.query("SELECT n FROM leased.n") == [(1,)] and not errors
    session.begin()
    lease.take(session, 1, SCHEMA, LeaseHolder("two"))
    thread = beside(lambda: write(2))
    assert thread.is_alive()
    session.commit()
    thread.join(30)
    assert session.query("SELECT n FROM leased.n") == [(1,)] and [type(error) for error in errors] == [LeaseLost]
    session.commit()


def test_taking_waits_for_a_transaction_under_way_and_parts_do_not(mariadb: PrivateMariaDB, session: Session) -> None:
    held = take_lease(session, schema=SCHEMA)
    taken: list[Lease] = []

    def take() -> None:
        with connect(mariadb.target(), CONFIG) as other:
            taken.append(take_lease(other, schema=SCHEMA))

    with connect(mariadb.target(), ApplyConfig()) as part, connect(mariadb.target(), ApplyConfig()) as other_part:
        for one in (part, other_part):
            one.begin()
            lease.check(one, held)
        thread = beside(take)
        assert thread.is_alive() and not taken
        part.commit()
        other_part.commit()
        thread.join(30)
    assert [t.epoch for t in taken] == [held.epoch + 1]


# The guard.


def test_a_living_drainer_is_not_robbed(guards: Callable[..., LeaseGuard]) -> None:
    first = guards("one")
    held = first.take()
    told: list[str] = []
    with pytest.raises(LeaseHeld, match="already has a running Drainer on this target: drainer 'one' on "):
        guards("two", lambda error: told.append(str(error))).take()
    assert len(told) == 1 and told[0].startswith("the lease of cluster 1, for up to 2 s: drainer 'one' on "), (
        "at once, not when it gives up"
    )
    assert first.lost is None
    first.close()
    assert guards("three").take().epoch == held.epoch + 1


def test_a_lease_that_was_given_back_writes_nothing(guards: Callable[..., LeaseGuard], session: Session) -> None:
    guard = guards("one")
    held = guard.take()
    guard.close()
    with pytest.raises(LeaseLost, match="it was released"):
        lease.check(session, held)


def test_a_lost_connection_is_made_anew(guards: Callable[..., LeaseGuard], session: Session) -> None:
    guard = guards("one")
    held = guard.take()
    name = lease.lock_name(GUARD, SCHEMA, 1)
    ((before,),) = session.query("SELECT IS_USED_LOCK(%s)", [name])
    session.execute(f"KILL {before}")
    eventually(lambda: session.query("SELECT IS_USED_LOCK(%s)", [name])[0][0] not in (None, before), what="another connection has the lock")
    lease.check(session, held)
    assert guard.lost is None


def test_a_holder_notices_that_it_lost_without_writing(guards: Callable[..., LeaseGuard], session: Session) -> None:
    guard = guards("one")
    guard.take()
    take_lease(session, schema=SCHEMA, drainer="two")
    assert "drainer 'two'" in str(eventually(lambda: guard.lost))


HOLD = """
    import json, os, sys, time
    from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
    from pyspark_tidb_binlog.sinks.mysql.lease import LeaseHolder, check
    from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
    from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
    from pyspark_tidb_binlog.sinks.mysql.session import connect
    target, apply = TargetConfig(**json.loads(os.environ["TARGET"])), ApplyConfig(checkpoint_schema=sys.argv[1], lease_timeout=1.0)
    guard = LeaseGuard(lambda: connect(target, apply), 1, sys.argv[1], LeaseHolder("process"), 1.0, RetryPolicy(5))
    held = guard.take()
    session = connect(target, apply)
    session.begin()
    check(session, held)
    print("holds", flush=True)
    while guard.lost is None:
        time.sleep(0.05)
    print(guard.lost, flush=True)
    session.execute("INSERT INTO leased.t VALUES (1)")
"""


@pytest.fixture
def holder(mariadb: PrivateMariaDB, session: Session) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the lease and is in the middle of a transaction."""
    session.execute("CREATE TABLE leased.t (id INT PRIMARY KEY)")
    command = [sys.executable, "-c", textwrap.dedent(HOLD), SCHEMA]
    environ = os.environ | {
        "TARGET": json.dumps({name: value for name, value in dataclasses.asdict(mariadb.target()).items() if name != "security"})
    }
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def test_a_killed_process_leaves_the_lease_at_once(
    holder: "subprocess.Popen[str]", mariadb: PrivateMariaDB, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    holder.kill()
    holder.wait()
    patient = ApplyConfig(checkpoint_schema=SCHEMA, lease_timeout=600.0)
    guard = LeaseGuard(lambda: connect(mariadb.target(), patient), 1, SCHEMA, LeaseHolder("next"), 600.0, RetryPolicy(5))
    assert guard.take().epoch == 2
    guard.close()


@pytest.mark.shows("spark.lease-timeout")
def test_a_stopped_process_loses_the_lease_and_says_so_when_it_wakes(
    holder: "subprocess.Popen[str]", guards: Callable[..., LeaseGuard], session: Session
) -> None:
    holder.send_signal(signal.SIGSTOP)
    assert guards("next").take().epoch == 2
    holder.send_signal(signal.SIGCONT)
    said, _ = holder.communicate(timeout=60)
    assert "so this Drainer stops writing: drainer 'next'" in said and "took it as epoch 2" in said
    assert "RetryableApplyError" in said  # its transaction ended with its connection
    assert session.query("SELECT * FROM leased.t") == []


def test_a_holder_comes_back_after_the_server_restarted(fresh_mariadb: PrivateMariaDB) -> None:
    config = ApplyConfig(checkpoint_schema=SCHEMA, lease_timeout=4.0)

    def guard(name: str) -> LeaseGuard:
        return LeaseGuard(lambda: connect(fresh_mariadb.target(), config), 1, SCHEMA, LeaseHolder(name), 4.0, RetryPolicy(60))

    first = guard("one")
    held = first.take()
    time.sleep(2)  # the server tells its uptime in whole seconds
    fresh_mariadb.kill()
    fresh_mariadb.restart()
    with pytest.raises(LeaseHeld, match="drainer 'one'"):
        guard("two").take()
    with connect(fresh_mariadb.target(), config) as session:
        lease.check(session, held)
    first.close()


# What is fenced.


def test_a_truncate_is_not_run_again_by_a_former_life(session: Session) -> None:
    create_database, create, truncate = steps()
    first = take_lease(session, schema=SCHEMA, drainer="one")
    for step in (create_database, create):
        apply_ddl(session, step, HISTORY, CONFIG, first, lambda _: None)
    second = take_lease(session, schema=SCHEMA, drainer="two")
    apply_ddl(session, truncate, HISTORY, CONFIG, second, lambda _: None)
    committed(session, "INSERT INTO leased.t VALUES (1)")
    committed(session, f"DELETE FROM {SCHEMA}.spark_ddl")
    with pytest.raises(LeaseLost):
        apply_ddl(session, truncate, HISTORY, CONFIG, first, lambda _: None)
    assert session.query("SELECT id FROM leased.t") == [(1,)]
    assert session.query(f"SELECT * FROM {SCHEMA}.spark_ddl") == []


def test_a_ddl_that_is_filtered_moves_nothing_for_a_former_life(session: Session) -> None:
    first = take_lease(session, schema=SCHEMA)
    take_lease(session, schema=SCHEMA)
    config = ApplyConfig(checkpoint_schema=SCHEMA, ignore_schemas=("leased",))
    with pytest.raises(LeaseLost):
        apply_ddl(session, steps()[1], HISTORY, config, first, lambda _: pytest.fail("the checkpoint was written"))


def test_nobody_takes_the_lease_within_a_ddl(mariadb: PrivateMariaDB, guards: Callable[..., LeaseGuard], session: Session) -> None:
    with alone(session, lease.lock_name(DDL, SCHEMA, 1)):
        guard = guards("two")
        thread = beside(guard.take)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()


def test_who_keeps_a_ddl_from_a_metadata_lock_is_named(mariadb: PrivateMariaDB, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's open transaction has read the table, for longer than a statement may take: the server goes on with the DDL of the lost connection."""
    monkeypatch.setattr(mysql_sink, "_LOOK_SECONDS", 0.2)
    sink = MySQLSink(DrainerConfig(target=dataclasses.replace(mariadb.target(), read_timeout=1.0), apply=CONFIG), 1)
    told: list[str] = []

    def person() -> None:
        for wanted in ("Waiting for table metadata lock", "no answer within syncer.to.read-timeout", "Waiting for table metadata lock"):
            eventually(lambda wanted=wanted: wanted in str(sink.waiting_for), what=wanted, pause=0.01)
            told.append(str(sink.waiting_for))
        reader.commit()

    with contextlib.closing(sink), connect(mariadb.target(), ApplyConfig()) as reader:
        sink.open(lambda target, commit_ts: 1, lambda: HISTORY)
        *before, truncate = steps()
        for step in before:
            sink.apply_ddl(step, HISTORY, {})
        reader.begin()
        assert reader.query("SELECT * FROM leased.t") == []
        ((blocking,),) = reader.query("SELECT CONNECTION_ID()")
        with ThreadPoolExecutor(1) as pool:
            ends = pool.submit(person)
            sink.apply_ddl(truncate, HISTORY, {})
            ends.result()
        assert sink.waiting_for is None
    words = rf"executes a DDL \(Waiting for table metadata lock\)\. .* session {blocking} \(.*@.*\) since 20.* UTC.*KILL {blocking}"
    assert re.search(words, told[0]) and re.search(words, told[-1]), told


def test_a_process_stopped_between_its_look_and_its_ddl(
    mariadb: PrivateMariaDB, guards: Callable[..., LeaseGuard], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is silent, as a stopped process's is; meanwhile another life takes over and writes a row that a TRUNCATE would take away."""
    create_database, create, truncate = steps()
    first = take_lease(session, schema=SCHEMA, drainer="one")
    for step in (create_database, create):
        apply_ddl(session, step, HISTORY, CONFIG, first, lambda _: None)

    def stopped(name: str) -> None:
        if name == "after-ddl-intent":
            monkeypatch.setattr(failpoints, "point", lambda _: None)
            guards("two").take()
            committed(session, "INSERT INTO leased.t VALUES (1)")

    monkeypatch.setattr(failpoints, "point", stopped)
    with pytest.raises(LeaseLost, match="drainer 'two'"):
        run_retried(
            lambda: connect(mariadb.target(), CONFIG),
            lambda s: apply_ddl(s, truncate, HISTORY, CONFIG, first, lambda _: None),
            RetryPolicy(5),
        )
    assert session.query("SELECT id FROM leased.t") == [(1,)]


THREE_ROWS = (
    Statement(b"INSERT INTO leased.keyless VALUES (1), (2), (3)", 3, Phase.WRITE, Effect.ADDS, Origin("`leased`.`keyless`", 1, ("a",), ())),
)


def part_of(mariadb: PrivateMariaDB, held: Lease) -> PartTarget:
    return PartTarget(ShippedTarget.of(mariadb.target(), Here), CONFIG, held, 10, 20, 1)


def test_a_part_of_a_former_life_loses(mariadb: PrivateMariaDB, session: Session) -> None:
    """Keyless rows; the span is open, its marker is not there: the lease alone tells the two lives apart."""
    session.execute("CREATE TABLE leased.keyless (a INT)")
    first = take_lease(session, schema=SCHEMA, drainer="one")
    RECORD.begin_parts(session, OpenParts(10, 20, 1))
    assert RECORD.claim(session, Part(10, 20, 0, 1, "delete"))
    session.commit()
    second = take_lease(session, schema=SCHEMA, drainer="two")
    with pytest.raises(LeaseLost):
        parallel._write_part(part_of(mariadb, first), 0, Phase.WRITE, Planned(THREE_ROWS))
    assert parallel._write_part(part_of(mariadb, second), 0, Phase.WRITE, Planned(THREE_ROWS)) == Written(3)
    assert session.query("SELECT COUNT(*) FROM leased.keyless") == [(3,)]


def test_two_names_on_one_span_write_it_once(mariadb: PrivateMariaDB, session: Session) -> None:
    """Renamed after a crash in the middle of parts: the unfinished span is found, and its part that is in is passed over."""
    session.execute("CREATE TABLE leased.keyless (a INT)")
    for name, written in (("one", 3), ("two", 0)):
        held = take_lease(session, schema=SCHEMA, drainer=name)
        RECORD.begin_parts(session, OpenParts(10, 20, 1))
        assert RECORD.claim(session, Part(10, 20, 0, 1, "delete")) is (written > 0)
        set_checkpoint(session, RECORD, 10, consistent=False)
        session.commit()
        assert parallel._write_part(part_of(mariadb, held), 0, Phase.WRITE, Planned(THREE_ROWS)) == Written(written)
    found = progress_in(session, RECORD).unfinished
    assert found is not None and found.done == {(0, "delete"), (0, "write")}
    assert session.query("SELECT COUNT(*) FROM leased.keyless") == [(3,)]


def test_what_is_recorded_of_data_that_is_gone_is_forgotten(session: Session) -> None:
    """The checkpoint row was set by hand, to the ts of the dump that was loaded: DDLs and spans of later times are not of these tables."""
    held = take_lease(session, schema=SCHEMA)
    for step in steps():
        apply_ddl(session, step, HISTORY, CONFIG, held, lambda _: None)
    session.execute("INSERT INTO leased.t VALUES (1)")
    for record in (RECORD, OTHER):
        record.begin_parts(session, OpenParts(40, 50, 2))
    set_checkpoint(session, RECORD, 25, consistent=True, version=0)
    session.commit()
    assert progress_in(session, RECORD).unfinished is None
    RECORD.forget_beyond(session, 25)
    assert forget_later(session, CONFIG, 1, 25) == (3,)
    session.commit()
    assert session.query(f"SELECT DISTINCT cluster_id, from_ts FROM {SCHEMA}.spark_state") == [(2, 40)]
    assert session.query(f"SELECT job_id FROM {SCHEMA}.spark_ddl ORDER BY 1") == [(1,), (2,)]
    assert apply_ddl(session, steps()[2], HISTORY, CONFIG, held, lambda _: None).how == "text"
    assert session.query("SELECT COUNT(*) FROM leased.t") == [(0,)]


def test_two_clusters_with_one_name_leave_each_others_markers(session: Session) -> None:
    for record in (RECORD, OTHER):
        set_checkpoint(session, record, 10, consistent=False)
        record.begin_parts(session, OpenParts(10, 20 + record.cluster_id, 2))
        assert record.claim(session, Part(10, 20 + record.cluster_id, 0, 2, "write"))
    OTHER.forget_upto(session, 22)
    found = progress_in(session, RECORD).unfinished
    assert found is not None and found.done == {(0, "write")}
    assert progress_in(session, OTHER).unfinished is None


def test_two_clusters_with_one_name_have_ddls_of_their_own(session: Session) -> None:
    create_database, create, _ = steps()
    one, two = take_lease(session, 1, SCHEMA), take_lease(session, 2, SCHEMA)
    apply_ddl(session, create_database, HISTORY, CONFIG, one, lambda _: None)
    apply_ddl(session, create, HISTORY, CONFIG, one, lambda _: None)
    committed(session, f"UPDATE {SCHEMA}.spark_ddl SET early = 1 WHERE job_id = 2")
    assert load_applied(session, CONFIG, 1, 1) == AppliedJobs(1, frozenset({2}))
    assert load_applied(session, CONFIG, 2, 1) == AppliedJobs(1)
    session.execute("DROP TABLE leased.t")
    assert apply_ddl(session, create, HISTORY, CONFIG, two, lambda _: None).how == "text"


def test_errors_tell_apart_what_may_pass() -> None:
    assert not issubclass(LeaseLost, RetryableApplyError) and issubclass(LeaseLost, ApplyError)


@pytest.mark.timeout(60)
def test_a_start_that_waits_for_a_predecessors_statement_hears_a_stop(mariadb: PrivateMariaDB, session: Session) -> None:
    def stopped(seconds: float) -> None:
        raise Stopped("told to stop")

    session.commit()
    with contextlib.closing(mariadb.connect()) as predecessor, predecessor.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", [lease.lock_name(DDL, SCHEMA, 1)])
        assert cursor.fetchall() == ((1,),)
        sink = MySQLSink(DrainerConfig(target=mariadb.target(), apply=CONFIG), 1, stopped)
        with contextlib.closing(sink), pytest.raises(Stopped):
            sink.open(lambda target, commit_ts: 5, lambda: HISTORY)


@pytest.mark.timeout(30)
def test_a_ddl_that_waits_for_one_still_running_hears_a_stop(mariadb: PrivateMariaDB, session: Session) -> None:
    """A person's open transaction holds a table longer than a statement may take: the server goes on with a DDL that its client has given up."""

    def shut(seconds: float) -> None:
        if waiting:
            raise Stopped("told to stop")

    waiting: list[bool] = []
    session.commit()
    sink = MySQLSink(DrainerConfig(target=mariadb.target(), apply=CONFIG), 1, shut)
    with contextlib.closing(sink), contextlib.closing(mariadb.connect()) as predecessor, predecessor.cursor() as cursor:
        sink.open(lambda target, commit_ts: 5, lambda: HISTORY)
        cursor.execute("SELECT GET_LOCK(%s, 0)", [lease.lock_name(DDL, SCHEMA, 1)])
        waiting.append(True)
        with pytest.raises(Stopped):
            sink.apply_ddl(steps()[0], HISTORY, {})
