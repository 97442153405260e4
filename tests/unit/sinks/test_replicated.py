"""Which tables, row changes and DDLs are replicated: the real Drainer's filters, and DDLs across their border."""

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, EventFilterRule, TableMigrateRule, TableName
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine import choice
from pyspark_tidb_binlog.sinks.engine.batch import wanted
from pyspark_tidb_binlog.sinks.engine.choice import LeftOut, decided
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.routing.table_filter import EventRule, EventRules, TableFilter, event_of
from tests.support.ddl_jobs import database, history, job, partitions, steps_of, table

DO_DB = TableFilter(replicate_schemas=("shop",))
DO_TABLE = TableFilter(replicate_tables=(("shop", "~^t[0-9]+$"), ("~log", "x")))
BOTH = TableFilter(("shop",), (), (("other", "t"),))
IGNORED = TableFilter(("shop", "mysql"), ("mysql",), (), (("shop", "~tmp"), ("shop", "a.b")))


@pytest.mark.shows("syncer.replicate-do-table", "syncer.ignore-table", "drainer gotcha 5")
@pytest.mark.parametrize(
    ("table_filter", "schema", "name", "kept"),
    [
        (TableFilter(), "any", "t", True),
        (DO_DB, "SHOP", "t", True),
        (DO_DB, "shop2", "t", False),
        (DO_TABLE, "Shop", "T12", True),
        (DO_TABLE, "shop", "t12x", False),
        (DO_TABLE, "my_LOGS", "x", True),
        (DO_TABLE, "my_logs", "xy", False),
        (DO_TABLE, "shop", "", False),  # a database is asked for with an empty table
        (TableFilter(replicate_tables=(("shop", ".*"),)), "shop", "", True),
        (BOTH, "shop", "anything", True),
        (BOTH, "other", "t", True),
        (BOTH, "other", "u", False),
        (BOTH, "third", "t", False),
        (IGNORED, "mysql", "user", False),  # an ignore entry wins over a do entry
        (IGNORED, "shop", "my_TMP_1", False),
        (IGNORED, "shop", "axb", False),  # a plain name is a regular expression
        (IGNORED, "shop", "axbc", True),
        (IGNORED, "shop", "", True),
        (TableFilter(("a|b",)), "abc", "t", True),  # ^a|b$, as in the real Drainer
        (TableFilter(("a|b",)), "cab", "t", True),
        (TableFilter(("a|b",)), "cac", "t", False),
    ],
)
def test_tables_are_filtered_as_by_the_real_drainer(table_filter: TableFilter, schema: str, name: str, kept: bool) -> None:
    assert table_filter.keeps(schema, name) is kept


@pytest.mark.parametrize(
    ("pattern", "name", "kept"),
    [
        (r"\w+", "täble", False),
        (r"~^[\w-]+$", "表", False),
        (r"\W", "ä", True),
        (r"~\d", "t٣", False),
        (r"~\d", "t3", True),
        (r"Ä\d", "ä1", True),
        (r"~\bb", "äb", True),
        (r"[]\d]", "]", True),
        (r"\[\w\]", "[A]", True),
        (r"a\\d", "a\\d", True),
    ],
)
def test_the_classes_of_an_expression_are_go_s(pattern: str, name: str, kept: bool) -> None:
    assert TableFilter(replicate_tables=(("d", pattern),)).keeps("d", name) is kept


@pytest.mark.parametrize("pattern", [r"[\W]", "(", "~[[:alpha:]]+", r"~a\z", r"~a\Z", r"~\pL"])
@pytest.mark.parametrize("setting", ["replicate_do_db", "replicate_do_table", "ignore_table", "ignore_schemas"])
def test_an_expression_that_would_mean_something_else_is_refused(setting: str, pattern: str) -> None:
    value = (TableName("d", pattern),) if setting.endswith("table") else (pattern,)
    with pytest.raises(ConfigError, match=f"syncer.{setting.replace('_', '-')}: .*is not a valid regular expression"):
        Selection.of(ApplyConfig(**{setting: value}))  # type: ignore[arg-type]


def rules(*chosen: TableMigrateRule, case_sensitive: bool = False, **named: tuple[tuple[str, ...], tuple[str, ...]]) -> EventRules:
    found = tuple(EventFilterRule(name, *lists) for name, lists in named.items())
    return EventRules.of(ApplyConfig(table_migrate_rule=chosen, binlog_filter_rule=found, case_sensitive=case_sensitive))


def of(schema: str, name: str, *names: str) -> TableMigrateRule:
    return TableMigrateRule(names, schema, name)


def only(*events: str, sql: tuple[str, ...] = ()) -> EventRules:
    return EventRules((EventRule("d", "t", events, sql),))


ROWS = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE})


@pytest.mark.parametrize(
    ("events", "ignored"),
    [
        (("delete",), {Op.DELETE}),
        (("Insert", "UPDATE"), {Op.INSERT, Op.UPDATE}),
        (("all",), ROWS),
        (("all dml",), ROWS),
        (("all ddl", "drop table"), set()),
        (("none", "all dml"), set()),
        (("none dml", "delete"), set()),
        (("delete", "none dml"), {Op.DELETE}),
        (("none ddl", "delete"), {Op.DELETE}),
        ((), set()),
    ],
)
def test_row_changes_are_left_out_by_kind(events: tuple[str, ...], ignored: set[Op]) -> None:
    assert only(*events).ignored_rows("D", "T") == ignored
    assert only(*events).ignored_rows("d", "t2") == frozenset()


@pytest.mark.shows("syncer.binlog-filter-rule")
@pytest.mark.parametrize(
    ("events", "query", "ignored"),
    [
        (("drop table",), "DROP TABLE IF EXISTS t", True),
        (("drop table",), "drop view t", False),
        (("all ddl",), "alter table t add x int", True),
        (("all ddl",), "create sequence t", False),  # no event: only ignore-sql could name it
        (("all dml",), "drop table t", False),
        (("none ddl", "drop table"), "drop table t", False),
        (("truncate table",), "TRUNCATE t", True),
        (("create index",), "create unique index i on t (a)", True),
        (("add index",), "create index i on t (a)", True),
        (("drop index",), "alter table t drop index i", False),  # an ALTER is alter table, whatever it does
        (("alter table",), "alter table t drop index i", True),
        (("drop table partition",), "alter table t drop partition p", False),
        (("rename table",), "rename table t to u", True),
        (("create view",), "create algorithm = undefined definer = `r`@`%` sql security definer view t as select 1", True),
    ],
)
def test_ddls_are_left_out_by_event(events: tuple[str, ...], query: str, ignored: bool) -> None:
    assert only(*events).ignores_ddl("d", "t", query) is ignored


@pytest.mark.shows("syncer.binlog-filter-rule")
def test_ddls_are_left_out_by_their_text_and_rows_never() -> None:
    found = only(sql=("^drop\\s+table", "add column.*secret"))
    assert found.ignores_ddl("d", "t", "DROP   TABLE t") and found.ignores_ddl("d", "t", "alter table t ADD COLUMN x_secret int")
    assert found.ignores_ddl("d", "t", "gibberish add column secret"), "also one that nobody can parse"
    assert not found.ignores_ddl("d", "t", "alter table t add column s int")
    assert found.ignored_rows("d", "t") == frozenset()


@pytest.mark.shows("syncer.table-migrate-rule")
@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("log_*", "log_", True),
        ("log_*", "LOG_2024", True),
        ("log_?", "log_1", True),
        ("log_?", "log_12", False),
        ("log_[0-4]", "log_3", True),
        ("log_[0-4]", "log_5", False),
        ("log_[!0-4]", "log_5", True),
        ("log_[!0-4]", "log_3", False),
        ("log.1", "logx1", False),  # no regular expression
        ("log_[", "log_[", True),
    ],
)
def test_name_patterns(pattern: str, name: str, matches: bool) -> None:
    found = rules(of("d", pattern, "r"), r=(("delete",), ()))
    assert bool(found.ignored_rows("d", name)) is matches


@pytest.mark.shows("syncer.table-migrate-rule")
def test_rules_of_one_place_and_of_several_apply_together() -> None:
    found = rules(
        of("d", "t", "a"),
        of("D", "T", "b"),
        of("d*", "", "c"),
        a=(("insert",), ()),
        b=(("update",), ()),
        c=(("drop database", "delete"), ()),
    )
    assert len(found.rules) == 2
    assert found.ignored_rows("d", "t") == ROWS
    assert found.ignored_rows("d2", "other") == {Op.DELETE}, "a pattern of a database alone holds for all of its tables"
    assert found.ignores_ddl("d2", "", "drop schema d2")
    assert not rules(of("d", "t", "a"), a=(("all",), ())).ignores_ddl("d", "", "drop database d")


@pytest.mark.shows("syncer.case-sensitive")
def test_case_counts_only_where_it_is_asked_for() -> None:
    found = rules(of("D", "t", "a"), case_sensitive=True, a=(("all",), ()))
    assert found.ignored_rows("D", "t") == ROWS and found.ignored_rows("d", "t") == frozenset()


@pytest.mark.parametrize(
    ("chosen", "rule", "words"),
    [
        (of("d", "t", "b"), (("delete",), ()), r"names \[syncer.binlog-filter-rule.b\], which does not exist; known: a"),
        (of("", "t", "a"), (("delete",), ()), "source.schema is missing"),
        (of("d", "t*x", "a"), (("delete",), ()), r"'t\*x' has \* before its end"),
        (of("d", "t[z-a]", "a"), (("delete",), ()), "is not a valid pattern"),
        (of("d", "t", "a"), (("delte",), ()), "ignore-event 'delte' is not one of .*delete"),
        (of("d", "t", "a"), ((), ("(",)), r"ignore-sql \['\('\] is not a valid regular expression"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(chosen: TableMigrateRule, rule: tuple[tuple[str, ...], tuple[str, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rules(chosen, a=rule)


def test_the_event_of_a_text() -> None:
    assert [
        event_of(q) for q in ("", "select 1", "/* x */ create /*T! y */ temporary table t (i int)", "create or replace view v as select 1")
    ] == [
        "",
        "",
        "create table",
        "create view",
    ]


# DDLs across the border.

SELECTION = Selection(TableFilter(ignore_schemas=("x",), ignore_tables=(("d", "~^_"),)))


def decisions(h: SchemaHistory, selection: Selection = SELECTION, texts: dict[int, str] | None = None) -> list[DdlFate]:
    return [decided(step, h, selection).decision.fate for step in steps_of(h, texts or {})]


HOMES = (database(1), database(2, "x", 2000))
KEPT = job(3, 3, table(10, "t"))
UNKEPT = job(4, 3, table(11, "_t"))
APPLIED, FILTERED, REFUSED = DdlFate.APPLIED, DdlFate.FILTERED, DdlFate.REFUSED


@pytest.mark.parametrize(
    ("last", "fate"),
    [
        (job(5, 14, table(10, "u")), APPLIED),
        (job(5, 14, table(10, "_u")), APPLIED),  # it leaves the filter: its name is free again at the target
        (job(5, 14, table(10, "t"), schema_id=2000), APPLIED),
        (job(5, 14, table(11, "u")), REFUSED),
        (job(5, 14, table(11, "_u")), FILTERED),
        (job(5, 4, table_id=11), FILTERED),
        (job(5, 11, table(12, "t"), table_id=10), APPLIED),
        (job(5, 11, table(12, "_t"), table_id=11), FILTERED),
        (job(5, 2), APPLIED),
        (job(5, 2, schema_id=2000, schema_name="x"), FILTERED),
        (job(5, 3, table(12, "n"), query="create table n (like `_t`)"), APPLIED),
    ],
)
def test_ddls_at_the_border(last: dict[str, object], fate: DdlFate) -> None:
    assert decisions(history(*HOMES, KEPT, UNKEPT, last))[-1] is fate


def test_a_swap_that_brings_a_table_in_is_refused_as_a_whole() -> None:
    """What gh-ost and pt-online-schema-change end with, while their ghost tables are ignored."""
    swap = job(5, 47, table(11, "t"), many=[table(10, "_old"), table(11, "t")], query="rename table t to _old, _t to t")
    h = history(*HOMES, KEPT, UNKEPT, swap)
    (*_, last) = steps_of(h)
    found = decided(last, h, SELECTION).decision
    assert found.fate is REFUSED
    assert "d._t becomes d.t, but d._t is not replicated" in found.why and "and then skip the DDL" in found.why


@pytest.mark.parametrize(
    ("whole", "part", "fate"), [("p", "t", APPLIED), ("p", "_t", REFUSED), ("_p", "t", REFUSED), ("_p", "_t", FILTERED)]
)
def test_exchanged_partitions(whole: str, part: str, fate: DdlFate) -> None:
    made = job(3, 3, table(20, whole, partition=partitions((21, "p0"))))
    exchange = job(5, 42, table(20, whole, partition=partitions((10, "p0"))), table_id=10)
    assert decisions(history(*HOMES, made, job(4, 3, table(10, part)), exchange))[-1] is fate


def test_a_rule_leaves_a_ddl_out_and_the_filter_comes_first() -> None:
    selection = Selection(SELECTION.tables, EventRules((EventRule("d", "", ("drop table",)),)))
    found = decisions(
        history(*HOMES, KEPT, UNKEPT, job(5, 4, table_id=10, query="drop table t"), job(6, 4, table_id=11, query="drop table _t")),
        selection,
    )
    assert found[-2:] == [DdlFate.LEFT_OUT, FILTERED]


# Rows.


def rows(*events: tuple[int, int, int]) -> pa.Table:
    """(table id, schema version, operation)"""
    return pa.Table.from_pylist(
        [{"commit_ts": 100 + n, "seq": 0, "op": op, "table_id": i, "schema_version": v, "row": b""} for n, (i, v, op) in enumerate(events)],
        schema=ROW_EVENT,
    )


def test_rows_of_tables_that_never_pass_are_dropped_unread() -> None:
    once = job(5, 14, table(11, "u"))
    assert LeftOut.of(history(*HOMES, KEPT, UNKEPT), SELECTION) == LeftOut(frozenset({11}), 4, concerned=frozenset({11}))
    renamed = LeftOut.of(history(*HOMES, KEPT, UNKEPT, once), SELECTION)
    assert (renamed.unread, renamed.concerned) == (frozenset(), {11}), "under another name it is replicated"
    left_out = LeftOut(frozenset({11}), 4)
    found = left_out.read(rows((10, 4, 0), (11, 4, 0), (11, 5, 0), (99, 4, 0)))
    kept = list(zip(found.column("table_id").to_pylist(), found.column("schema_version").to_pylist(), strict=True))
    assert kept == [(10, 4), (11, 5), (99, 4)], "of a newer version the name may be another one"


@pytest.mark.parametrize(
    ("selection", "concerned"),
    [(SELECTION, {11}), (Selection(), set()), (Selection(rules=only("delete")), {10}), (Selection(DO_DB), {10, 11})],
)
def test_only_a_step_with_tables_of_which_something_is_left_out_is_changed(selection: Selection, concerned: set[int]) -> None:
    known = history(*HOMES, KEPT, UNKEPT)
    assert LeftOut.of(known, selection).concerned == concerned
    steps = {i: RowsStep(0, 9, 1, {i: at}) for i in (10, 11) if (at := known.table_at(i, 4))}
    assert {i for i, step in steps.items() if choice.chosen(step, selection) != step} == concerned


def test_row_changes_are_left_out_by_table_and_operation() -> None:
    events = rows((10, 4, Op.INSERT), (10, 4, Op.DELETE), (11, 4, Op.DELETE), (11, 4, Op.UPDATE), (12, 4, Op.INSERT))
    found = wanted(events, {12}, {(10, int(Op.DELETE)), (11, int(Op.UPDATE))})
    assert list(zip(found.column("table_id").to_pylist(), found.column("op").to_pylist(), strict=True)) == [
        (10, Op.INSERT),
        (11, Op.DELETE),
    ]
