"""Tables under other names at the target: which routes there may be, and what they make of the texts of DDLs."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableRoute
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.derive import derive
from pyspark_tidb_binlog.sinks.mysql.ddl.frozen_names import DdlForm
from pyspark_tidb_binlog.sinks.mysql.ddl.routed_text import routed_text
from pyspark_tidb_binlog.sinks.mysql.ddl.text import rewrite, subject_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.routing.routes import Routes, TargetName
from pyspark_tidb_binlog.sinks.routing.selection import DdlFate, Selection
from tests.support.ddl_jobs import database, history, job, steps_of, table

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
        ((TableRoute("d", "t"),), "names no target"),
        ((TableRoute("d", "", "", "x"),), "a route of a whole database has to-db and no to-tbl"),
        ((TableRoute("d", "~t", "x"),), "patterns are not known here"),
        ((TableRoute("d", "t*", "x"),), "patterns are not known here"),
        ((TableRoute("d", "t", "x"), TableRoute("D", "T", "y")), "two routes lead from d.t"),
        ((TableRoute("d", "a", "x", "t"), TableRoute("d", "b", "X", "T")), r"two routes lead to x.t; tables cannot be merged"),
        ((TableRoute("a", "", "x"), TableRoute("b", "", "x")), "two routes lead to x"),
        ((TableRoute("d", "t", "x", columns=("a",)),), "columns and where are not built"),
        ((TableRoute("d", "t", "x", where="a > 1"),), "columns and where are not built"),
    ],
)
def test_a_route_that_cannot_be_right_is_refused(given: tuple[TableRoute, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=f"spark.route.*{words}"):
        routes(*given)


@pytest.mark.parametrize("db_type", ["file", "kafka"])
def test_binlogs_have_the_names_of_the_upstream(db_type: str) -> None:
    with pytest.raises(ConfigError, match="handed on as they are"):
        routes(TableRoute("d", "t", "x"), db_type=db_type)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ALTER TABLE `t` ADD COLUMN `t` INT COMMENT 'table t'", "ALTER TABLE `x`.`u` ADD COLUMN `t` INT COMMENT 'table t'"),
        ("alter table d . t rename column t to w", "alter table `x`.`u` rename column t to w"),
        ("ALTER TABLE `e`.`t` RENAME INDEX `t` TO `i`", "ALTER TABLE `f`.`t` RENAME INDEX `t` TO `i`"),
        ("ALTER TABLE other DROP COLUMN t", "ALTER TABLE `d`.`other` DROP COLUMN t"),
        ("CREATE UNIQUE INDEX `t` ON `t` (`on`)", "CREATE UNIQUE INDEX `t` ON `x`.`u` (`on`)"),
        ("DROP INDEX t ON v", "DROP INDEX t ON `d`.`w`"),
        (
            "CREATE TABLE IF NOT EXISTS t (a INT, FOREIGN KEY (a) REFERENCES `v` (`t`) ON DELETE CASCADE) COMMENT='like t'",
            "CREATE TABLE IF NOT EXISTS `x`.`u` (a INT, FOREIGN KEY (a) REFERENCES `d`.`w` (`t`) ON DELETE CASCADE) COMMENT='like t'",
        ),
        ("CREATE TABLE n LIKE t", "CREATE TABLE `d`.`n` LIKE `x`.`u`"),
        ("CREATE TABLE n (LIKE e.t)", "CREATE TABLE `d`.`n` (LIKE `f`.`t`)"),
        ("CREATE TABLE n (a INT CHECK (a LIKE t))", "CREATE TABLE `d`.`n` (a INT CHECK (a LIKE t))"),
        ("CREATE /*T! x */ TABLE /* t */ `t` (a INT)", "CREATE /*T! x */ TABLE /* t */ `x`.`u` (a INT)"),
        ("CREATE SEQUENCE IF NOT EXISTS t START 3", "CREATE SEQUENCE IF NOT EXISTS `x`.`u` START 3"),
    ],
)
def test_names_in_texts(text: str, wanted: str) -> None:
    assert routed_text(text, ROUTES, "d", restored=True) == wanted


def sql_of(h: SchemaHistory, texts: dict[int, str]) -> str:
    step = steps_of(h, texts)[-1]
    subject = subject_of(decided(step, h, Selection(routes=ROUTES)), h, routes=ROUTES)
    return "nothing" if subject.given.form is DdlForm.NOTHING else rewrite(subject, DIALECT, restored=True).sql


BASE = (database(1), database(2, "e", 2000))
MADE = (*BASE, job(3, 3, table(10, "t"), query="create table t (id int primary key)"))


@pytest.mark.parametrize(
    ("last", "text", "wanted"),
    [
        (job(4, 4, table_id=10), "DROP TABLE t", "DROP TABLE `x`.`u`"),
        (job(4, 11, table(11, "t"), table_id=10), "TRUNCATE t", "TRUNCATE TABLE `x`.`u`"),
        (job(4, 14, table(10, "n")), "RENAME TABLE t TO n", "RENAME TABLE `x`.`u` TO `d`.`n`"),
        (job(4, 14, table(10, "v")), "RENAME TABLE t TO v", "RENAME TABLE `x`.`u` TO `d`.`w`"),
        (job(4, 14, table(10, "t"), schema_id=2000, schema_name="e"), "RENAME TABLE t TO e.t", "RENAME TABLE `x`.`u` TO `f`.`t`"),
        (job(4, 2, schema_id=2000, schema_name="e"), "DROP DATABASE e", "DROP DATABASE `f`"),
    ],
)
def test_statements_that_are_built_have_the_targets_names(last: dict[str, object], text: str, wanted: str) -> None:
    assert sql_of(history(*MADE, last), {4: text}) == wanted


def test_a_rename_between_names_that_are_one_at_the_target_needs_nothing() -> None:
    same = routes(TableRoute("d", "t", "x", "u"), TableRoute("d", "n", "x", "u2"))
    h = history(*MADE, job(4, 14, table(10, "n")))
    step = steps_of(h, {})[-1]
    assert subject_of(step, h, routes=same).given.form is DdlForm.TEXT
    merged = replace(same, tables=(same.tables[0], ("d", "n", TargetName("x", "u"))))
    assert subject_of(step, h, routes=merged).given.form is DdlForm.NOTHING


def test_a_swap_keeps_its_order() -> None:
    swap = job(5, 47, table(11, "t"), many=[table(10, "old"), table(11, "t")])
    h = history(*MADE, job(4, 3, table(11, "v")), swap)
    wanted = "RENAME TABLE `x`.`u` TO `d`.`old`, `d`.`w` TO `x`.`u`"
    assert sql_of(h, {5: "RENAME TABLE `t` TO `old`, `v` TO `t`"}) == wanted


def test_a_derived_table_has_the_targets_name() -> None:
    h = history(*MADE, job(4, 60, None, many=[table(11, "v"), table(12, "n")]))
    first, second = steps_of(h, {})[-2:]
    assert derive(subject_of(first, h, routes=ROUTES), DIALECT)[0].sql.startswith("CREATE TABLE `x`.`u` (")
    assert [s.sql.split(" (")[0] for s in derive(subject_of(second, h, routes=ROUTES), DIALECT)] == [
        "CREATE TABLE `d`.`w`",
        "CREATE TABLE `d`.`n`",
    ]


MERGING = Selection(routes=routes(TableRoute("d", "t", "", "u")))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (job(4, 3, table(11, "u")), "d.t and d.u would both be d.u at the target"),
        (job(4, 3, table(11, "n")), ""),
        (job(4, 14, table(10, "n")), ""),
        (job(4, 21, {**table(11, "x"), "view": {}}, query="create view x as select * from `t`"), "the view names t"),
        (job(4, 21, {**table(11, "x"), "view": {}}, query="create view x as select 1"), ""),
    ],
)
def test_two_tables_never_become_one(last: dict[str, object], words: str) -> None:
    h = history(*MADE, last)
    decision = decided(steps_of(h, {})[-1], h, MERGING).decision
    assert decision.fate is (DdlFate.REFUSED if words else DdlFate.APPLIED)
    assert words in decision.why


@pytest.mark.parametrize(
    ("given", "schema", "words"),
    [
        (TableRoute("d", "t", "x", ""), "d", "d.t is x.t at the target, which DROP DATABASE d would leave"),
        (TableRoute("d", "t", "e", ""), "e", "d.t is in e at the target too"),
        (TableRoute("d", "", "x", ""), "d", ""),
    ],
)
def test_a_database_is_dropped_only_where_that_drops_its_tables(given: TableRoute, schema: str, words: str) -> None:
    ids = {"d": 1000, "e": 2000}
    h = history(*MADE, job(4, 2, schema_id=ids[schema], schema_name=schema))
    decision = decided(steps_of(h, {})[-1], h, Selection(routes=routes(given))).decision
    assert decision.fate is (DdlFate.REFUSED if words else DdlFate.APPLIED) and words in decision.why
