"""Tables under other names at the target: which routes there may be, and what they make of the texts of DDLs."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableRoute
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import altered_by, by_changes
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite, statements_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Charset, Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes, TargetName
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, partitions, steps_of, table

DIALECT = Dialect(Flavour.MARIADB, Charset("utf8mb4", "utf8mb4_bin"))


def routes(*given: TableRoute, **more: object) -> Routes:
    return Routes.of(ApplyConfig(routes=given, **more))  # type: ignore[arg-type]


ROUTES = routes(TableRoute("D", "T", "x", "u"), TableRoute("d", "v", "", "w"), TableRoute("e", "", "f", ""))


def test_names_at_the_target() -> None:
    assert ROUTES.target("d", "t") == ROUTES.target("D", "t") == TargetName("x", "u")
    assert ROUTES.target("d", "V") == TargetName("d", "w")
    assert ROUTES.target("d", "other") == TargetName("d", "other")
    assert ROUTES.target("E", "any") == TargetName("f", "any")
    assert [ROUTES.database(name) for name in ("e", "d")] == ["f", "d"]
    both = routes(TableRoute("e", "t", "", "u"), TableRoute("e", "", "f", ""))
    assert both.target("e", "t") == TargetName("f", "u"), "the table's route wins, in the database's target"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((TableRoute("", "t", "x"),), "db-name is missing"),
        ((TableRoute("d", "t"),), "it changes nothing"),
        ((TableRoute("d", "", "x", columns=("a",)),), "may not have to-tbl, columns or where"),
        ((TableRoute("d", "", "", "x"),), "a route of a whole database needs to-db, and may not"),
        ((TableRoute("d", "~t", "x"),), "patterns are not supported"),
        ((TableRoute("d", "t*", "x"),), "patterns are not supported"),
        ((TableRoute("d", "t", "x"), TableRoute("D", "T", "y")), "two routes lead from d.t"),
        ((TableRoute("d", "a", "x", "t"), TableRoute("d", "b", "X", "T")), r"two routes lead to x.t, but tables cannot be merged"),
        ((TableRoute("a", "", "x"), TableRoute("b", "", "x")), "two routes lead to x"),
    ],
)
def test_a_route_that_cannot_be_right_is_refused(given: tuple[TableRoute, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=f"spark.route.*{words}"):
        routes(*given)


@pytest.mark.parametrize("db_type", ["file", "kafka"])
def test_binlogs_have_the_names_of_the_upstream(db_type: str) -> None:
    with pytest.raises(ConfigError, match="keep the upstream's names"):
        routes(TableRoute("d", "t", "x"), db_type=db_type)


def sql_of(h: SchemaHistory, texts: dict[int, str], dialect: Dialect = DIALECT) -> str:
    step = steps_of(h, texts)[-1]
    subject = subject_of(decided(step, h, Selection(routes=ROUTES)), h, routes=ROUTES)
    return "nothing" if subject.given.form is DdlForm.NOTHING else rewrite(subject, dialect, restored=True).sql


BASE = (database(1), database(2, "e", 2000))
MADE = (*BASE, job(3, 3, table(10, "t"), query="create table t (id int primary key)"))


OTHERWISE = "MINVALUE 1 MAXVALUE 9223372036854775806 CACHE 1000 NOCYCLE"


@pytest.mark.parametrize(
    ("last", "text", "wanted", "flavours"),
    [
        (job(4, 4, table_id=10), "DROP TABLE t", "DROP TABLE `x`.`u`", "both"),
        (job(4, 11, table(11, "t"), table_id=10), "TRUNCATE t", "TRUNCATE TABLE `x`.`u`", "both"),
        (job(4, 14, table(10, "n")), "RENAME TABLE t TO n", "RENAME TABLE `x`.`u` TO `d`.`n`", "both"),
        (job(4, 14, table(10, "v")), "RENAME TABLE t TO v", "RENAME TABLE `x`.`u` TO `d`.`w`", "both"),
        (job(4, 14, table(10, "t"), schema_id=2000, schema_name="e"), "RENAME TABLE t TO e.t", "RENAME TABLE `x`.`u` TO `f`.`t`", "both"),
        (job(4, 2, schema_id=2000, schema_name="e"), "DROP DATABASE e", "DROP DATABASE `f`", "both"),
        (database(4, "e", 3000), "CREATE DATABASE e", "CREATE DATABASE `f` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin", "tidb"),
        (job(4, 34, table(11, "v", sequence={"sequence_start": 3})), "CREATE SEQUENCE v START 3", f"CREATE SEQUENCE `d`.`w` START WITH 3 INCREMENT BY 1 {OTHERWISE}", "tidb"),
        (job(4, 3, table(11, "v")), "CREATE TABLE v (id int primary key)", "CREATE TABLE `d`.`w` (`id` INT NOT NULL, PRIMARY KEY (`id`)) DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin", "tidb"),
    ],
)  # fmt: skip
def test_statements_that_are_built_have_the_targets_names(last: dict[str, object], text: str, wanted: str, flavours: str) -> None:
    for flavour in (Flavour.TIDB, Flavour.MARIADB) if flavours == "both" else (Flavour.TIDB,):
        assert sql_of(history(*MADE, last), {4: text}, replace(DIALECT, flavour=flavour)) == wanted


@pytest.mark.parametrize(("query", "form"), [("ALTER TABLE t NEW", DdlForm.INFOS), ("ALTER TABLE other NEW", DdlForm.TEXT)])
def test_a_text_is_not_sent_where_its_table_has_another_name(query: str, form: DdlForm) -> None:
    """At a TiDB, too, which is given the changes of the infos then; a kind that is not known is refused."""
    name = query.split()[2]
    made = (*BASE, job(3, 3, table(10, name)))
    subjects = []
    for tp in (5, 250):
        h = history(*made, job(4, tp, table(10, name, [column(1, "id"), column(2, "a")]), query=query))
        subjects.append(subject_of(steps_of(h)[-1], h, routes=ROUTES))
    adds, unknown = subjects
    assert (adds.given.form, unknown.given.form) == (form, form)
    assert by_changes(adds, replace(DIALECT, flavour=Flavour.TIDB)) and not by_changes(unknown, DIALECT)
    assert not rewrite(unknown, DIALECT, restored=True).by_infos


def test_of_several_tables_only_those_that_are_replicated_are_sent() -> None:
    hidden = Selection(TableFilter(ignore_tables=(("d", "~^_"),)))
    both = job(5, 47, table(11, "_b"), many=[table(10, "old"), table(11, "_b")])
    h = history(*MADE, job(4, 3, table(11, "_a")), both)
    step = decided(steps_of(h, {5: "RENAME TABLE t TO old, _a TO _b"})[-1], h, hidden)
    assert rewrite(subject_of(step, h), DIALECT, restored=True).sql == "RENAME TABLE `d`.`t` TO `d`.`old`"
    h = history(*MADE, job(4, 60, None, many=[table(11, "_a"), table(12, "n")]))
    made = statements_of(subject_of(decided(steps_of(h)[-1], h, hidden), h), DIALECT, restored=True)
    assert [s.sql.split(" (")[0] for s in made] == ["CREATE TABLE `d`.`n`"]


def test_a_rename_between_names_that_are_one_at_the_target_needs_nothing() -> None:
    same = routes(TableRoute("d", "t", "x", "u"), TableRoute("d", "n", "x", "u2"))
    h = history(*MADE, job(4, 14, table(10, "n")))
    step = steps_of(h)[-1]
    assert rewrite(subject_of(step, h, routes=same), DIALECT, restored=True).sql
    merged = replace(same, tables=(same.tables[0], ("d", "n", TargetName("x", "u"))))
    assert not rewrite(subject_of(step, h, routes=merged), DIALECT, restored=True).sql


def test_a_swap_keeps_its_order() -> None:
    swap = job(5, 47, table(11, "t"), many=[table(10, "old"), table(11, "t")])
    h = history(*MADE, job(4, 3, table(11, "v")), swap)
    wanted = "RENAME TABLE `x`.`u` TO `d`.`old`, `d`.`w` TO `x`.`u`"
    assert sql_of(h, {5: "RENAME TABLE `t` TO `old`, `v` TO `t`"}) == wanted


def test_a_name_without_a_database_is_of_the_session_s() -> None:
    """The job is of the first pair's database; ``d`` has a table of the other one's name."""
    text = "RENAME TABLE `d`.`t` TO `d`.`t2`, `s` TO `s2`"
    both = job(6, 47, table(11, "s2"), many=[table(10, "t2"), table(11, "s2")], query=text)
    h = history(*MADE, job(4, 3, table(11, "s"), schema_id=2000, schema_name="e"), job(5, 3, table(12, "s")), both)
    assert sql_of(h, {}) == "RENAME TABLE `x`.`u` TO `d`.`t2`, `f`.`s` TO `f`.`s2`"


def test_a_derived_table_has_the_targets_name() -> None:
    h = history(*MADE, job(4, 60, None, many=[table(11, "v"), table(12, "n")]))
    first, second = steps_of(h)[-2:]
    assert statements_of(subject_of(first, h, routes=ROUTES), DIALECT, restored=True)[0].sql.startswith("CREATE TABLE `x`.`u` (")
    assert [s.sql.split(" (")[0] for s in statements_of(subject_of(second, h, routes=ROUTES), DIALECT, restored=True)] == [
        "CREATE TABLE `d`.`w`",
        "CREATE TABLE `d`.`n`",
    ]


# Lists of columns.

ABC = [column(1, "id", {**INT, "Flag": 4099}), column(2, "a"), column(3, "b")]
LISTED = routes(TableRoute("d", "t", "", "u", columns=("ID", "a")))


def listed(*jobs: dict[str, object], selection: Routes = LISTED) -> tuple[SchemaHistory, DdlStep, Subject]:
    h = history(*BASE, job(3, 3, table(10, "t", ABC), query="create table t (id int primary key, a int, b int)"), *jobs)
    step = decided(steps_of(h)[-1], h, Selection(routes=selection))
    return h, step, subject_of(step, h, routes=selection)


def test_a_table_is_made_with_the_columns_of_its_list() -> None:
    _, _, subject = listed()
    assert subject.given.form is DdlForm.INFOS
    (made,) = statements_of(subject, DIALECT, restored=True)
    assert made.sql.startswith("CREATE TABLE `d`.`u` (`id` ") and "`a`" in made.sql and "`b`" not in made.sql


def test_keys_count_only_whole() -> None:
    keys = [index(1, "k", ("a", 1), unique=True), index(2, "l", ("a", 1), ("b", 2), unique=True), index(3, "m", ("b", 2))]
    h = history(*BASE, job(3, 3, table(10, "t", ABC, index_info=keys, partition=partitions((11, "p0")))))
    at = h.table_at(10, 3)
    assert at is not None
    moved = LISTED.moved(at)
    assert [c.name for c in moved.info.columns] == ["id", "a"] and [i.name for i in moved.info.indexes] == ["k"]
    assert [[c.name for c in key] for key in moved.info.unique_keys()] == [["id"], ["a"]] and moved.info.partitions == ()
    last = routes(TableRoute("d", "t", columns=("id", "b"))).moved(at)
    assert [(i.name, [c.name for c in last.info.index_columns(i)]) for i in last.info.indexes] == [("m", ["b"])]


def test_what_changes_other_columns_is_not_sent() -> None:
    _, step, subject = listed(job(4, 5, table(10, "t", [*ABC, column(4, "c")]), query="alter table t add c int"))
    assert (step.decision.fate, subject.given.form) == (DdlFate.APPLIED, DdlForm.NOTHING)
    wider = [*ABC[:1], column(2, "a", {**INT, "Tp": 8, "Flen": 20}), ABC[2]]
    _, _, subject = listed(job(4, 12, table(10, "t", wider), query="alter table t modify a bigint, drop b"))
    assert subject.given.form is DdlForm.INFOS
    altered = altered_by(subject, DIALECT)
    assert altered is not None and altered.clauses() == ["MODIFY COLUMN `a` BIGINT NULL"]
    _, _, subject = listed(job(4, 4, table_id=10))
    made = rewrite(subject, DIALECT, restored=True)
    assert subject.given.form is DdlForm.INFOS and made.by_infos and made.sql == "DROP TABLE `d`.`u`"


@pytest.mark.parametrize(
    ("columns", "words"),
    [(("a", "b"), "the route of d.t lacks the columns id of the primary key"), (("id", "x"), "d.t has no column x"), (("id",), "")],
)
def test_a_list_needs_the_key_and_columns_that_are_there(columns: tuple[str, ...], words: str) -> None:
    given = routes(TableRoute("d", "t", columns=columns))
    h, step, _ = listed(selection=given)
    live = Selection(routes=given).live(h, 3)
    assert words in given.wrong(live, h) and bool(words) is bool(given.wrong(live, h))
    assert step.decision.fate is (DdlFate.REFUSED if words else DdlFate.APPLIED)


def test_a_list_may_name_columns_of_other_versions() -> None:
    both = routes(TableRoute("d", "t", columns=("id", "a", "z")))
    z = [ABC[0], column(2, "z"), ABC[2]]
    jobs = (job(4, 12, table(10, "t", z), query="alter table t rename column a to z"), job(5, 11, table(11, "t", z), table_id=10))
    h = history(*BASE, job(3, 3, table(10, "t", ABC), query="create table t (id int primary key, a int, b int)"), *jobs)
    selection = Selection(routes=both)
    fates = [decided(step, h, selection).decision for step in steps_of(h)]
    assert [d.fate for d in fates] == [DdlFate.APPLIED] * 5
    assert [both.wrong(selection.live(h, version), h) for version in (3, 4)] == ["", ""]
    gone = routes(TableRoute("d", "t", columns=("a", "y")))
    assert "d.t has no column y" in gone.wrong(selection.live(h, 3), h)


def test_a_quoted_column_of_a_condition_is_seen() -> None:
    def at(kind: dict[str, object], column_id: int) -> dict[str, object]:
        return table(10, "t", [ABC[0], column(column_id, "my col", kind)])

    h = history(*BASE, job(3, 3, at(INT, 2)), job(4, 12, at(VARCHAR, 7)))
    where = Selection(routes=routes(TableRoute("d", "t", where="`My Col` > 1")))
    assert "the values of my col of d.t are converted" in decided(steps_of(h)[-1], h, where).decision.why


LIST = Selection(routes=LISTED)
WHERE = Selection(routes=routes(TableRoute("d", "t", where="A > 1 AND `id` < 9")))


TABLE_OF_THREE = (*BASE, job(3, 3, table(10, "t", ABC)))


def routed(*route: str) -> Selection:
    return Selection(routes=routes(TableRoute(*route)))


MERGED = routed("d", "t", "", "u")


@pytest.mark.parametrize(
    ("selection", "last", "words"),
    [
        (MERGED, job(4, 3, table(11, "u")), "d.t and d.u would both be d.u at the target"),
        (MERGED, job(4, 3, table(11, "n")), ""),
        (MERGED, job(4, 14, table(10, "n", ABC)), ""),
        (MERGED, job(4, 21, {**table(11, "x"), "view": {}}, query="create view x as select * from `t`"), "the view names t"),
        (MERGED, job(4, 21, {**table(11, "x"), "view": {}}, query="create view x as select 1"), ""),
        (routed("d", "t", "x", ""), job(4, 2, schema_name="d"), "d.t is x.t at the target, and DROP DATABASE d would not drop it"),
        (routed("d", "t", "e", ""), job(4, 2, schema_id=2000, schema_name="e"), "the target has d.t in e too"),
        (routed("d", "", "x", ""), job(4, 2, schema_name="d"), ""),
        (LIST, job(4, 12, table(10, "t", [ABC[0], column(2, "z"), ABC[2]])), "a of d.t becomes z, but its list of columns has only one"),
        (LIST, job(4, 12, table(10, "t", [ABC[0], column(2, "z"), column(3, "a")])), "but its list of columns has only one"),
        (LIST, job(4, 14, table(10, "n", ABC)), "have different lists of columns"),
        (LIST, job(4, 20, table(10, "t", ABC)), "the target has no partitions of"),
        (LIST, job(4, 6, table(10, "t", [ABC[0], ABC[2]])), ""),
        (WHERE, job(4, 6, table(10, "t", [ABC[0], ABC[2]])), "of d.t names a, which the table does not have after this DDL"),
        (WHERE, job(4, 12, table(10, "t", [ABC[0], column(2, "z"), ABC[2]])), "of d.t names a, which"),
        (WHERE, job(4, 12, table(10, "t", [ABC[0], column(7, "a"), ABC[2]])), "the values of a of d.t are converted"),
        (WHERE, job(4, 12, table(10, "t", [ABC[0], ABC[1], column(7, "b")])), ""),
        (WHERE, job(4, 5, table(10, "t", [*ABC, column(4, "c")])), ""),
        (WHERE, job(4, 14, table(10, "n", ABC)), "have different conditions for rows"),
        (WHERE, job(4, 11, table(11, "t", ABC), table_id=10), ""),
    ],
)
def test_ddls_that_a_route_does_not_allow(selection: Selection, last: dict[str, object], words: str) -> None:
    """Two tables never become one, a database is dropped only where that drops its tables, and what a list or a condition names stays."""
    h = history(*TABLE_OF_THREE, last)
    decision = decided(steps_of(h)[-1], h, selection).decision
    assert decision.fate is (DdlFate.REFUSED if words else DdlFate.APPLIED) and words in decision.why


def test_conditions_are_for_net_changes() -> None:
    with pytest.raises(ConfigError, match="where needs the net change of a row"):
        routes(TableRoute("d", "t", where="a > 1"), net_change=False)
