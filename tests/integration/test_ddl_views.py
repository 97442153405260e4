"""Views on a real MariaDB: they read what the upstream's read, and one that the target refuses never stops the rows (ddl.md 3)."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableName, TableRoute
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import LEFT_OUT, note_copied, remarkable
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.ddl_jobs import column, database, history, job, steps_of, table
from tests.support.ddl_target import CONFIG, Died, apply, apply_all, committed, ddl_session, deadly, prepared
from tests.support.golden_case import GOLDEN, ddl_steps, load_case
from tests.support.leases import held

pytestmark = pytest.mark.mysql

OF_VIEWS = ("g_rep_b1", "g_rep_b2", "g_rep_v2")
POINTS = ("after-ddl-intent", "after-ddl", "before-ddl-done")


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target(), databases=("d", "e", *OF_VIEWS)) as session:
        yield session


def view(table_id: int, name: str, select: str, columns: tuple[str, ...] = ("id",), user: str = "", **more: Any) -> dict[str, Any]:
    """A view as its job has it."""
    definer = {"Username": user, "Hostname": "%", "CurrentUser": not user}
    said = {"view_select": select, "view_algorithm": 0, "view_security": 0, "view_definer": definer, "view_checkoption": 1, **more}
    return table(table_id, name, [column(i, c) for i, c in enumerate(columns, 1)], view=said)


VIEWS = "SHOW FULL TABLES FROM d WHERE table_type = 'VIEW'"
OF_T, OF_LATER = "SELECT `id` AS `id` FROM `d`.`t`", "SELECT `id` AS `id` FROM `d`.`later`"


def left_out(session: Session) -> list[int]:
    """The jobs that the record calls left out."""
    return [one.job_id for one in remarkable(session, CONFIG.checkpoint_schema) if one.how == "left out"]


def done(session: Session, step: DdlStep, h: SchemaHistory, *, dies: bool) -> str:
    """How it was done; or die once at each point, and finish."""
    for point in POINTS if dies else ():
        with deadly(point):
            session.use("information_schema")  # a life begins in no database
            try:
                apply(session, step, h)
            except Died:
                session.rollback()
    return apply(session, step, h).how


@pytest.mark.shows("ddl create view")
@pytest.mark.parametrize("dies", [False, True])
def test_the_views_of_the_reports_read_what_the_upstreams_read(session: Session, dies: bool) -> None:
    """Made in another database than their session's, and of columns without a name."""
    case = load_case("reports")
    for step in ddl_steps(case):
        if step.job.schema_name in OF_VIEWS:
            done(session, step, case.history, dies=dies)
            name = f"{step.job.schema_name}.{step.job.table_name}"
            value = {"g_rep_b1.u": "1", "g_rep_b2.u": "2", "g_rep_v2.t": "'q'"}.get(name)
            if value and step.job.type == JobType.CREATE_TABLE:
                committed(session, f"INSERT INTO {name} VALUES ({value})")
    for path in sorted((GOLDEN / "reports" / "expected_views").glob("*.tsv")):
        schema, name = path.stem.split(".", 1)
        names, *rows = path.read_text().splitlines()
        assert [c for (c, *_) in session.query(f"SHOW COLUMNS FROM {schema}.{name}")] == names.split("\t")
        found = session.query(f"SELECT * FROM {schema}.{name}")
        assert ["\t".join(str(v).encode().hex().upper() for v in row) for row in found] == rows
    assert left_out(session) == []


MADE = [database(1), job(2, 3, table(10, "t"), query="CREATE TABLE `t` (`id` INT PRIMARY KEY)", table_name="t")]


def tried(session: Session, h: SchemaHistory, config: ApplyConfig = CONFIG) -> list[str]:
    """How each DDL was done."""
    return [outcome.how for outcome in apply_all(session, steps_of(h), h, config)]


@pytest.mark.parametrize(
    "helps",
    [
        job(5, 3, table(12, "later"), query="CREATE TABLE `later` (`id` INT PRIMARY KEY)"),
        job(5, 14, table(10, "later"), query="RENAME TABLE `t` TO `later`"),
    ],
    ids=["create", "rename"],
)
@pytest.mark.parametrize("dies", [False, True])
def test_a_refused_view_is_made_when_its_table_comes(session: Session, helps: dict[str, Any], dies: bool) -> None:
    """With a view over it. ``[[ignore]]``: the first table of that name was not made at the target."""
    over = view(21, "w", "SELECT `id`+1 AS `b` FROM `d`.`v`", ("b",))
    h = history(*MADE, job(3, 21, view(20, "v", OF_LATER)), job(4, 21, over), helps)
    *before, last = steps_of(h)
    assert [done(session, step, h, dies=dies) for step in before][2:] == ["left out"] * 2
    assert left_out(session) == [3, 4]
    (lost,) = (one.losses for one in remarkable(session, CONFIG.checkpoint_schema) if one.job_id == 3)
    assert "d.v: the view is left out, and tried again after each CREATE and RENAME" in lost[0] and "doesn't exist" in lost[0]
    done(session, last, h, dies=dies)
    session.execute("INSERT INTO d.later VALUES (7)")
    assert session.query("SELECT b FROM d.w") == [(8,)]
    assert left_out(session) == [] and remarkable(session, CONFIG.checkpoint_schema) == []


def test_a_view_that_a_first_load_could_not_make_is_tried_again(session: Session) -> None:
    h = history(database(1), job(2, 21, view(20, "v", OF_T)), job(3, 3, table(10, "t"), query=MADE[1]["query"]))
    made, _, helps = steps_of(h)
    apply(session, made, h)
    loaded = h.table_at(20, 2)
    assert loaded is not None
    note_copied(session, CONFIG, 1, 5, loaded, LEFT_OUT, ["the server's words"])
    session.commit()
    apply(session, helps, h)
    assert left_out(session) == [] and session.query("SELECT * FROM d.v") == []


def test_a_view_that_was_dropped_or_replaced_is_not_tried_again(session: Session) -> None:
    gone = view(20, "v", OF_LATER)
    h = history(
        *MADE,
        job(3, 21, gone),
        job(4, 21, view(21, "w", "SELECT NO_SUCH(`id`) AS `id` FROM `d`.`t`")),
        job(5, 24, gone, query="DROP VIEW `v`", table_id=20),
        job(6, 21, view(22, "w", OF_T), query="CREATE OR REPLACE VIEW `w` AS SELECT 1"),
        job(7, 3, table(12, "later"), query="CREATE TABLE `later` (`id` INT PRIMARY KEY)"),
    )
    assert tried(session, h)[2:] == ["left out", "left out", "nothing", "text", "text"]
    assert [name for (name, *_) in session.query(VIEWS)] == ["w"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_refused_replacement_leaves_no_former_view(session: Session, dies: bool) -> None:
    """It would go on to read what the upstream's view no longer reads."""
    now = view(21, "v", "SELECT NO_SUCH(`id`) AS `id` FROM `d`.`t`")
    h = history(*MADE, job(3, 21, view(20, "v", OF_T)), job(4, 21, now))
    assert done(session, prepared(session, h), h, dies=dies) == "left out"
    assert left_out(session) == [4] and session.query(VIEWS) == []


def test_a_view_that_is_there_is_not_replaced(session: Session) -> None:
    """With other columns it is somebody's own; with the same it counts as made by hand."""
    h = history(*MADE, job(3, 21, view(20, "v", OF_T)), job(4, 21, view(21, "w", "SELECT 1 AS `id`")))
    made, table_step, *views = steps_of(h)
    apply_all(session, (made, table_step), h)
    committed(session, "CREATE VIEW d.v AS SELECT 5 AS own", "CREATE VIEW d.w AS SELECT 5 AS id")
    assert [apply(session, step, h).how for step in views] == ["left out", "nothing"]
    assert (session.query("SELECT own FROM d.v"), session.query("SELECT id FROM d.w")) == ([(5,)], [(5,)])


def test_what_another_drainer_may_have_made_is_missing(session: Session) -> None:
    """In a span of which another Drainer may have applied a part, 1146 is no sign that the view is there."""
    h = history(*MADE, job(3, 21, view(20, "v", OF_LATER)))
    for step in steps_of(h):
        found = apply_ddl(session, step, h, CONFIG, held(session, schema=CONFIG.checkpoint_schema), lambda _: None, in_doubt=True)
    assert found.how == "left out" and left_out(session) == [3]


def test_all_of_a_view_is_kept(session: Session) -> None:
    session.execute("CREATE OR REPLACE USER keeper@'%' IDENTIFIED BY 'x'")
    select = r"SELECT `id` AS `id`,_UTF8MB4'a\b''c' AS `x` FROM `d`.`t`"
    made = view(20, "v", select, ("id", "a`b"), user="keeper", view_algorithm=2, view_security=1)
    assert tried(session, history(*MADE, job(3, 21, made)))[-1] == "text"
    assert "ALGORITHM=TEMPTABLE DEFINER=`keeper`@`%` SQL SECURITY INVOKER" in str(session.query("SHOW CREATE VIEW d.v"))
    session.execute("INSERT INTO d.t VALUES (1)")
    assert session.query("SELECT `a``b` FROM d.v") == [("a\\b'c",)]
    session.execute("DROP USER keeper@'%'")


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("why", ["does not exist at the target", "may not be set by the target's user"])
def test_a_definer_that_cannot_be_becomes_the_account(mariadb: PrivateMariaDB, session: Session, why: str, dies: bool) -> None:
    """A MariaDB takes a view of an account that it lacks, and then refuses whoever reads it."""
    h = history(*MADE, job(3, 21, view(20, "v", OF_T, user="app")))
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE VIEW, SHOW VIEW"
    account = "CREATE OR REPLACE USER plain@localhost IDENTIFIED BY 'pw'", f"GRANT {rights} ON *.* TO plain@localhost"
    last = prepared(session, h, {}, *account)
    if not why.startswith("does not"):
        session.execute("CREATE OR REPLACE USER app@'%' IDENTIFIED BY 'x'")
    with connect(dataclasses.replace(mariadb.target(), user="plain", password="pw"), CONFIG) as theirs:
        theirs = session if why.startswith("does not") else theirs
        done(theirs, last, h, dies=dies)
        theirs.rollback()
    assert session.query("SELECT * FROM d.v") == []
    (one,) = remarkable(session, CONFIG.checkpoint_schema)
    assert one.losses == (f"d.v: the definer `app`@`%` {why}: CURRENT_USER in its place",)
    session.execute("DROP USER IF EXISTS app@'%', plain@localhost")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"routes": (TableRoute(db_name="d", tbl_name="t", to_tbl="other"),)}, "it names t, which has another name at the target"),
        ({"ignore_table": (TableName("d", "t"),)}, "it names d.t, which is not replicated"),
    ],
    ids=["route", "filter"],
)
@pytest.mark.shows("spark.route")
def test_a_view_of_what_the_target_has_not_by_its_name(session: Session, config: dict[str, Any], words: str) -> None:
    """Also if the target has a table of that name."""
    session.execute("CREATE DATABASE d")
    session.execute("CREATE TABLE d.t (id INT)")
    h = history(*MADE, job(3, 21, view(20, "v", OF_T)), job(4, 3, table(12, "later"), query="CREATE TABLE x (id INT)"))
    assert tried(session, h, dataclasses.replace(CONFIG, **config))[2] == "left out"
    assert words in json.loads(session.query("SELECT losses FROM ddl_marks.spark_ddl WHERE job_id = 3")[0][0])[0]
    assert session.query(VIEWS) == [] and left_out(session) == [3]


def test_policy_is_not_asked(session: Session) -> None:
    """Not even where the job gives a view, which the target lacks, another name."""
    lacking, renamed = (view(20, name, OF_LATER) for name in ("v", "w"))
    h = history(*MADE, job(3, 21, lacking), job(4, 14, renamed, query="RENAME TABLE `v` TO `w`"), job(5, 3, table(12, "later")))
    assert tried(session, h)[2:] == ["left out", "left out", "text"]
    assert left_out(session) == [] and session.query("SELECT * FROM d.w") == []
