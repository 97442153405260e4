"""RECOVER TABLE and FLASHBACK TABLE at a TiDB target: the rows that the upstream has back, or a refusal with the way on."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, EventFilterRule, TableMigrateRule, TableName, TableRoute
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyHead, CopyKind, CopyRecord
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTable
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome, load_outcomes
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.foreseen import WaitingDdls, foreseen
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.replay.plain_text import execute_text
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, column, database, history, job, steps_of, table
from tests.support.ddl_target import CONFIG, Unrecorded, ddl_session, dying
from tests.support.fakes.restoring_tidb import DROPPED, RestoringTidb
from tests.support.leases import held
from tests.support.private_mysql import MYSQLD, RealMariaDB

pytestmark = pytest.mark.mysql


@pytest.fixture
def tidb(mariadb: PrivateMariaDB) -> Iterator[RestoringTidb]:
    server = RealMariaDB() if MYSQLD else contextlib.nullcontext(mariadb)
    with server as played, ddl_session(played.target(), databases=("d", "x", DROPPED)) as session:
        yield RestoringTidb(session)


def applied(
    tidb: RestoringTidb, h: SchemaHistory, texts: dict[int, str], config: ApplyConfig = CONFIG, after: int = 0, **more: Any
) -> list[DdlOutcome]:
    """The outcomes of all DDLs ``after`` this job; behind that of job 2, which makes a table, it has the rows 1 and 2."""
    found = []
    for step in [s for s in steps_of(h, texts) if s.job.id > after]:
        decision = decided(step, h, Selection.of(config))
        lease = held(tidb.session, schema=config.checkpoint_schema)
        found.append(apply_ddl(tidb, decision, h, config, lease, lambda _: None, **more))
        if step.job.id == 2 and found[-1].how in ("text", "derived"):
            tidb.execute(f"INSERT INTO {tidb.tables()[0]} VALUES (1), (2)")
            tidb.commit()
    return found


T, U = table(10, "t"), table(10, "u")
MADE = (database(1), job(2, 3, T))
DROP = job(3, 4, table_id=10, table_name="t")
TRUNCATE = job(3, 11, table(11, "t"), table_id=10, table_name="t")
DROP_TRUNCATED = job(5, 4, table_id=11, table_name="t", query="drop table t")
IN_X = {"schema_id": 1001, "schema_name": "x"}
DROP_X = [database(4, "x", 1001), job(5, 3, table(20, "v"), **IN_X), job(6, 4, table_id=20, table_name="v", **IN_X)]
T_TEXTS = {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY);", 3: "DROP TABLE `t`;"}
TRUNCATED = T_TEXTS | {3: "TRUNCATE TABLE `t`;"}
COLUMNS = TableRoute("d", "t", columns=("id",))
ONE_COLUMN = ApplyConfig(drainer="ddl", checkpoint_schema=CONFIG.checkpoint_schema, routes=(COLUMNS,))
TO_X = ApplyConfig(
    drainer="ddl", checkpoint_schema=CONFIG.checkpoint_schema, routes=(TableRoute("d", "t", "x", "v"), TableRoute("d", "u", "x", "w"))
)
NOT_X = dataclasses.replace(TO_X, ignore_table=(TableName("x", "v"),))
NO_DROPS = {
    "binlog_filter_rule": (EventFilterRule("no drops", ("drop table",)),),
    "table_migrate_rule": (TableMigrateRule(("no drops",), "d", "*"),),
}


@pytest.mark.shows("ddl recover table")
@pytest.mark.parametrize(
    ("gone", "back", "text", "config", "sent", "there"),
    [
        ([DROP], T, "RECOVER TABLE BY JOB 3;", CONFIG, "RECOVER TABLE `d`.`t`", {"d.t": [1, 2]}),
        ([DROP], T, "RECOVER TABLE `t` 5;", CONFIG, "RECOVER TABLE `d`.`t`", {"d.t": [1, 2]}),
        ([DROP], U, "FLASHBACK TABLE `t` TO `u`;", CONFIG, "FLASHBACK TABLE `d`.`t` TO `u`", {"d.u": [1, 2]}),
        ([TRUNCATE], U, "FLASHBACK TABLE `t` TO `u`;", CONFIG, "FLASHBACK TABLE `d`.`t` TO `u`", {"d.t": [], "d.u": [1, 2]}),
        ([DROP], T, "RECOVER TABLE BY JOB 3;", ONE_COLUMN, "RECOVER TABLE `d`.`t`", {"d.t": [1, 2]}),
        ([DROP], T, "RECOVER TABLE BY JOB 3;", TO_X, "RECOVER TABLE `x`.`v`", {"x.v": [1, 2]}),
        ([TRUNCATE], U, "FLASHBACK TABLE `t` TO `u`;", TO_X, "FLASHBACK TABLE `x`.`v` TO `w`", {"x.v": [], "x.w": [1, 2]}),
        ([DROP, *DROP_X], T, "RECOVER TABLE `t`;", NOT_X, "RECOVER TABLE `x`.`v`", {"x.v": [1, 2]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl"])
def test_a_tidb_restores_the_table_once(
    tidb: RestoringTidb, gone: list[Any], back: Any, text: str, config: ApplyConfig, sent: str, there: dict[str, list[int]], point: str
) -> None:
    """By its name at the target, also where the process dies around it; ``--check`` has nothing against it. ``there``: the tables with their rows."""
    tidb.execute("CREATE DATABASE x")
    h = history(*MADE, *gone, job(9, 25, back, query=text.lower()))
    texts = (TRUNCATED if TRUNCATE in gone else T_TEXTS) | {9: text}
    assert not list(foreseen(tidb, WaitingDdls(0, h, AppliedJobs(0)), config, [], ["x"]))
    if point:
        applied(tidb, history(*MADE, *gone), texts, config)
        with dying(f"{point}-recover-table"):
            applied(tidb, h, texts, config)
    outcome = applied(tidb, h, texts, config)[-1]
    assert (outcome.state, outcome.how) == ("done", "found" if point == "after-ddl" else "text")
    assert tidb.restored == [sent]
    assert {name: [i for (i,) in tidb.query(f"SELECT id FROM {name} ORDER BY id")] for name in tidb.tables()} == there


V = table(12, "t")


@pytest.mark.shows("ddl recover table")
@pytest.mark.parametrize(
    ("jobs", "config", "words"),
    [
        ([DROP, job(4, 3, V), job(5, 4, table_id=12), job(6, 25, T)], {}, r"job 3 dropped it, and later job 5 dropped another table d\.t.*by hand"),
        ([DROP, job(4, 3, V), job(5, 4, table_id=12), job(6, 25, T)], {"ignore_txn_commit_ts": (50,)}, "and later job 5 dropped another table.*by hand"),
        ([TRUNCATE, DROP_TRUNCATED, job(6, 25, table(11, "u"))], NO_DROPS, "job 5 dropped it, but spark_ddl does not record this as executed.*by hand"),
        ([TRUNCATE, DROP_TRUNCATED, job(6, 25, table(11, "u"))], {"ignore_txn_commit_ts": (50,)}, "job 5 dropped it, but spark_ddl.*by hand"),
        ([DROP, job(4, 3, V), job(6, 25, T)], {}, r"error 1050.*Drop the table of that name at the target, or rename it, and"),
        ([DROP, job(6, 25, U)], {"ignore_table": (TableName("d", "t"),)}, r"d\.t becomes d\.u, but d\.t is not replicated"),
        ([DROP, job(6, 25, U)], {"routes": (TableRoute("d", "u", "x", "u"),)}, r"restored as x\.u, but TiDB restores a table of d only in d"),
        ([DROP, job(6, 25, U)], {"routes": (COLUMNS,)}, r"d\.t and d\.u have different lists of columns"),
        ([job(6, 25, table(13, "z"))], {}, "the DDL history does not hold the DROP or TRUNCATE of this table"),
    ],
)  # fmt: skip
def test_what_a_tidb_would_not_restore_as_upstream_is_refused(
    tidb: RestoringTidb, jobs: list[Any], config: dict[str, Any], words: str
) -> None:
    """And ``--check`` says so before. None is sent but what the server itself refuses."""
    tidb.execute("CREATE DATABASE x")
    h, used = history(*MADE, *jobs), dataclasses.replace(CONFIG, **config)
    texts = (TRUNCATED if TRUNCATE in jobs else T_TEXTS) | {4: T_TEXTS[2], 5: T_TEXTS[3], 6: "RECOVER TABLE BY JOB 3;"}
    said = [remark.what for remark in foreseen(tidb, WaitingDdls(0, h, AppliedJobs(0)), used, [], ["x"])]
    with pytest.raises(DdlRefused, match=words):
        applied(tidb, h, texts, used)
    assert tidb.restored == (["RECOVER TABLE `d`.`t`"] if "1050" in words else [])
    assert len(said) == 1 and said[0].startswith("will be refused"), said


@pytest.mark.shows("ddl recover table")
@pytest.mark.parametrize("record", ["begun behind it", "copied since"])
def test_what_the_stream_did_not_drop_there_last_is_not_restored(tidb: RestoringTidb, record: str) -> None:
    """The stream began behind the TRUNCATE, or tables were copied after it: the target keeps other rows under that name."""
    h, texts = history(*MADE, TRUNCATE, job(4, 25, U)), TRUNCATED | {4: "FLASHBACK TABLE `t` TO `u`;"}
    applied(tidb, history(*MADE, TRUNCATE), texts)

    def checked() -> list[str]:
        waiting = WaitingDdls(35, h, AppliedJobs(3), outcomes=load_outcomes(tidb, CONFIG.checkpoint_schema, 1))
        return [r.what for r in foreseen(tidb, waiting, CONFIG, [("d", "t")], ["d"])]

    assert checked() == []
    CopyRecord(tidb.session, 2, CONFIG.checkpoint_schema).ensure()
    head = CopyHead(CopyKind.TABLES, 35)
    CopyRecord(tidb.session, 2, CONFIG.checkpoint_schema).begin(head, [])
    tidb.commit()
    assert checked() == []  # of another cluster
    if record == "copied since":
        CopyRecord(tidb.session, 1, CONFIG.checkpoint_schema).begin(head, [])
    else:
        tidb.execute("DELETE FROM ddl_marks.spark_ddl")
    tidb.commit()
    (said,) = checked()
    assert "job 3" in said
    with pytest.raises(
        DdlRefused, match="job 3 dropped it, but spark_ddl does not record this as executed here, or tables were copied since.*by hand"
    ):
        applied(tidb, h, texts, after=3)
    assert tidb.restored == []
    tidb.execute("CREATE TABLE d.u LIKE d.t")  # a person does
    assert applied(tidb, h, texts, after=3)[-1].how == "found"


@pytest.mark.parametrize(
    ("refusal", "way_out"),
    [
        (
            (1105, "Can't find dropped/truncated table 't' in GC safe point"),
            "GC has passed .* Create the table there by hand.*tidb_gc_life_time",
        ),
        (
            (1105, "Can't find localTemporary/dropped/truncated table: t in DDL history jobs"),
            "never had the table. Create the table there by hand",
        ),
        ((8055, "snapshot is older than GC safe point"), "GC has passed .* Create the table there by hand"),
        ((8121, "privilege check for 'SUPER' fail"), "Repair the target, or skip"),
    ],
)
def test_a_table_that_a_tidb_cannot_restore_is_made_by_hand(tidb: RestoringTidb, refusal: tuple[int, str], way_out: str) -> None:
    h = history(*MADE, DROP, job(4, 25, T))
    texts = T_TEXTS | {4: "RECOVER TABLE `t`;"}
    applied(tidb, history(*MADE, DROP), texts)
    tidb.collect()
    tidb.refusal = refusal
    for _ in range(2):
        with pytest.raises(DdlRefused, match=rf"on d\.t at commit_ts 40 refused: .*error {refusal[0]}, {refusal[1]}.*{way_out}"):
            applied(tidb, h, texts)
    tidb.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    assert applied(tidb, h, texts)[-1].how == "found"


def test_a_table_that_is_restored_under_a_name_that_is_not_replicated_stays_dropped(tidb: RestoringTidb) -> None:
    h = history(*MADE, DROP, job(4, 25, U))
    config = dataclasses.replace(CONFIG, ignore_table=(TableName("d", "u"),))
    assert applied(tidb, h, T_TEXTS | {4: "FLASHBACK TABLE `t` TO `u`;"}, config)[-1].how == "filtered"
    assert (tidb.restored, tidb.tables()) == ([], [])


def test_a_tidb_that_was_taken_over_from_another_drainer_restores_nothing_by_itself(tidb: RestoringTidb) -> None:
    """The other one may have dropped a later table of the name; where the table is there, it was restored."""
    h = history(*MADE, DROP, job(4, 25, T))
    texts = T_TEXTS | {4: "RECOVER TABLE `t`;"}
    applied(tidb, history(*MADE, DROP), texts)
    with pytest.raises(DdlRefused, match="may have dropped or truncated a later table of that name"):
        applied(tidb, h, texts, in_doubt=True)
    tidb.execute("DELETE FROM ddl_marks.spark_ddl WHERE job_id = 4")
    tidb.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    assert applied(tidb, h, texts, in_doubt=True)[-1].how == "found"


def test_a_frozen_table_is_not_restored_over_the_upstreams(tidb: RestoringTidb) -> None:
    wide = table(10, "t", [column(1, "id", {**INT, "Flag": 4099}), column(2, "n")])
    h = history(*MADE, job(3, 5, wide), job(4, 4, table_id=10), job(5, 25, wide))
    """Its DROP was not executed, so the target still has it."""
    texts = {2: T_TEXTS[2], 3: "ALTER TABLE `t` ADD COLUMN `n` INT;", 4: "DROP TABLE `t`;", 5: "RECOVER TABLE `t`;"}
    applied(tidb, history(*MADE), texts)
    *_, last = steps_of(h, texts)
    with pytest.raises(DdlRefused, match=r"d\.t is frozen since the DDL of job 3 was not executed"):
        apply_ddl(
            tidb,
            last,
            h,
            CONFIG,
            held(tidb.session, schema=CONFIG.checkpoint_schema),
            lambda _: None,
            {10: FrozenTable(3, "d", "t", {1: "id"})},
        )


def test_a_job_of_the_upstream_is_no_name_at_the_target(mariadb: PrivateMariaDB) -> None:
    """Of a DDL that is known by its text alone."""
    record = Unrecorded()
    with ddl_session(mariadb.target(), databases=("d",)) as session:
        session.execute("CREATE DATABASE d")
        session.commit()
        for flavour in Flavour:
            with pytest.raises(ApplyError, match="names a job of the upstream"):
                execute_text(lambda: connect(mariadb.target(), CONFIG), FEW, "d", "recover table /* x */ by job 7;", flavour, record)
