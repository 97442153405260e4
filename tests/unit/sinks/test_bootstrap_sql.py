"""The statements that a bootstrap sends to TiDB, and what it makes of the answers."""

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableRoute
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest, drainer_options
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, table_json
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import ports_at, unverified
from pyspark_tidb_binlog.schemas.errors import (
    BootstrapRefused,
    ConfigError,
    PumpUnavailable,
    RetryableApplyError,
    ServerRefused,
    SnapshotCollected,
)
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ForeignKey, PartitionDef, TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyProgress
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import (
    MOST_RANGES,
    Key,
    KeyRange,
    chunk_sql,
    even_boundaries,
    key_from_json,
    key_to_json,
    ranges_between,
)
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SchemaMoves, TidbServer, handle_of, require_same
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import WantedTable, making
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import cells_of, expression, form_of, shows, whole
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes
from tests.support.fakes.told_tidb import ToldTidb

TS = 449000000000000001


def table(described: Table, schema: str = "shop") -> TableAt:
    info = TableInfo.from_json(table_json(described, 7))
    return TableAt(7, schema, described.name, info, SchemaVersion(3), (), False)


ITEM = table(Table("item", (Column("id", "bigint unsigned"), Column("f", "float"), Column("e", "enum('a','b')")), ("id",)))
NAMED = table(Table("na`med", (Column("k", "varchar(20)"), Column("n", "int"), Column("v", "text")), ("k", "n")))
KEYLESS = table(Table("log", (Column("a", "int"), Column("b", "bit(3)"))))


def test_the_newest_timestamp_is_that_of_a_transaction_of_the_cluster() -> None:
    tidb = ToldTidb({"tidb_current_ts": [(str(TS),)]})
    assert tidb.now() == TS
    assert tidb.told.asked == ["BEGIN", "SELECT @@tidb_current_ts", "ROLLBACK", "closed"]


def test_the_servers_of_the_cluster() -> None:
    tidb = ToldTidb({"tidb_servers_info": [("uuid-1", "10.0.0.1", 4000, "On"), (b"uuid-2", b"10.0.0.2", 4001, b"Skipping")]})
    assert tidb.servers() == (TidbServer("uuid-1", "10.0.0.1:4000", "On"), TidbServer("uuid-2", "10.0.0.2:4001", "Skipping"))
    assert tidb.told.asked[0] == "SELECT ddl_id, ip, port, binlog_status FROM information_schema.tidb_servers_info"


def test_whether_it_is_the_cluster_whose_binlogs_come() -> None:
    tidb = ToldTidb({"tidb_servers_info": [("uuid-1", "10.0.0.1", 4000, "On")]})
    assert unverified(tidb, 7, lambda: {"uuid-0": "a:1", "uuid-1": "10.0.0.1:4000"}) == ""
    with pytest.raises(BootstrapRefused, match=r"another cluster than 7, .* 10\.0\.0\.1:4000 \(uuid-1\); cluster 7 has a:1 \(uuid-0\)"):
        unverified(tidb, 7, lambda: {"uuid-0": "a:1"})

    def away() -> dict[str, str]:
        raise PumpUnavailable("no port answers")

    assert unverified(tidb, 7, away) == "no port answers"
    assert unverified(tidb, 7, dict) == "the side of the stream reports no TiDB server"
    old = ToldTidb({"tidb_servers_info": ServerRefused("no such table", 1146, "", "tidb:4000")})
    assert unverified(old, 7, lambda: {"uuid-0": "a:1"}) == "no such table"
    with pytest.raises(PumpUnavailable, match=r"is the file /tmp/history\.json"):
        ports_at("/tmp/history.json", None)


def test_the_ids_of_tables_at_the_snapshot() -> None:
    tidb = ToldTidb({"tidb_table_id": [("Shop", "Item", 7), (b"shop", b"log", None)]})
    assert tidb.table_ids(tidb.told) == {("shop", "item"): 7, ("shop", "log"): 0}  # type: ignore[arg-type]
    assert tidb.told.asked == ["SELECT table_schema, table_name, tidb_table_id FROM information_schema.tables"]
    tidb = ToldTidb({"tidb_table_id": ServerRefused("no such column", 1054, "", "tidb:4000")})
    assert tidb.table_ids(tidb.told) == {}  # type: ignore[arg-type]


@pytest.mark.shows("drainer --bootstrap")
def test_a_session_reads_at_the_snapshot() -> None:
    tidb = ToldTidb()
    with tidb.at(TS) as session:
        session.query("SELECT 1")
    assert tidb.told.asked == ["SET SESSION autocommit = 1", f"SET @@SESSION.tidb_snapshot = '{TS}'", "SELECT 1", "closed"]


@pytest.mark.parametrize("kind", [ServerRefused, RetryableApplyError])
@pytest.mark.parametrize("errno", [8055, 9006])
def test_a_snapshot_that_gc_has_passed_is_refused_whenever_it_is_noticed(errno: int, kind: type[ServerRefused]) -> None:
    tidb = ToldTidb({"tidb_snapshot": kind("target tidb:4000 refused", errno, "GC", "tidb:4000")})
    with pytest.raises(SnapshotCollected, match=r"TiDB at tidb:4000 cannot be read at 449000000000000001 .* GC has passed it"), tidb.at(TS):
        pass


def test_errors_of_the_upstream_are_not_called_the_targets() -> None:
    tidb = ToldTidb()
    with pytest.raises(RetryableApplyError, match="upstream TiDB tidb:4000 refused 'x'") as found, tidb.at(TS):
        raise RetryableApplyError("target tidb:4000 refused 'x'", 2013, "lost", "tidb:4000")
    assert found.value.errno == 2013
    with pytest.raises(ServerRefused, match="^target db:3306 refused"), tidb.at(TS):
        raise ServerRefused("target db:3306 refused 'x'", 1, "", "db:3306")


def test_ranges_begin_where_regions_do() -> None:
    tidb = ToldTidb({"TABLESAMPLE": [(b"5",), (b"9",)]})
    found = tidb.ranges(tidb.told, ITEM)  # type: ignore[arg-type]
    assert tidb.told.asked == ["SELECT `id` FROM `shop`.`item` TABLESAMPLE REGIONS() ORDER BY `id`"]
    assert found == (KeyRange("", (), (b"5",)), KeyRange("", (b"5",), (b"9",)), KeyRange("", (b"9",), ()))


def test_a_table_without_a_clustered_key_is_read_by_its_rowid() -> None:
    tidb = ToldTidb({"TABLESAMPLE": [(b"3",)]})
    tidb.ranges(tidb.told, KEYLESS)  # type: ignore[arg-type]
    assert tidb.told.asked == ["SELECT _tidb_rowid FROM `shop`.`log` TABLESAMPLE REGIONS() ORDER BY _tidb_rowid"]
    handle = handle_of(KEYLESS.info.handle_columns())
    sql = chunk_sql("`shop`.`log`", ["`a`"], handle, KeyRange(end=(b"9",)), (b"4",), 10)
    assert sql == b"SELECT `a`, _tidb_rowid FROM `shop`.`log` WHERE (_tidb_rowid > 4 AND _tidb_rowid < 9) ORDER BY _tidb_rowid LIMIT 10"


def test_a_tidb_without_samples_divides_integers_evenly() -> None:
    old = ServerRefused("syntax", 1064, "", "tidb:4000")
    tidb = ToldTidb({"TABLESAMPLE": old, "MIN(": [("1", "64")]})
    found = tidb.ranges(tidb.told, ITEM)  # type: ignore[arg-type]
    assert tidb.told.asked[-1] == "SELECT MIN(`id`), MAX(`id`) FROM `shop`.`item`"
    assert len(found) == 32 and found[1] == KeyRange("", (b"3",), (b"5",))
    tidb = ToldTidb({"TABLESAMPLE": old})
    assert tidb.ranges(tidb.told, NAMED) == (KeyRange(),)  # type: ignore[arg-type]


def test_a_key_of_several_columns() -> None:
    handle = handle_of(NAMED.info.handle_columns())
    tidb = ToldTidb({"TABLESAMPLE": [(b"it's", b"5")]})
    first, last = tidb.ranges(tidb.told, NAMED)  # type: ignore[arg-type]
    assert tidb.told.asked == ["SELECT `k`, `n` FROM `shop`.`na``med` TABLESAMPLE REGIONS() ORDER BY `k`, `n`"]
    assert (first.end, last.begin) == ((b"'it''s'", b"5"), (b"'it''s'", b"5"))

    def asked(within: KeyRange, after: Key = ()) -> str:
        head, _, where = chunk_sql("t", ["`v`"], handle, within, after, 3).decode().partition(" WHERE ")
        assert head == "SELECT `v`, `k`, `n` FROM t" and where.endswith(" ORDER BY `k`, `n` LIMIT 3")
        return where.removesuffix(" ORDER BY `k`, `n` LIMIT 3")

    assert asked(last) == "`k` > 'it''s' OR (`k` = 'it''s' AND `n` >= 5)"
    assert asked(first) == "`k` < 'it''s' OR (`k` = 'it''s' AND `n` < 5)"
    assert asked(first, (b"'it''s'", b"1")) == "(`k` = 'it''s' AND `n` > 1 AND `n` < 5)"
    below, above = "(`k` < 'it''s' OR (`k` = 'it''s' AND `n` < 5))", "(`k` > 'a' OR (`k` = 'a' AND `n` > 1))"
    assert asked(first, (b"'a'", b"1")) == (
        f"(`k` > 'a' AND `k` < 'it''s') OR (`k` = 'a' AND `n` > 1 AND {below}) OR (`k` = 'it''s' AND `n` < 5 AND {above})"
    )


def test_each_condition_of_a_key_of_several_columns_is_a_range_of_the_index() -> None:
    three = table(Table("t", tuple(Column(name, "int") for name in "abc"), ("a", "b", "c")))
    handle = handle_of(three.info.handle_columns())
    within = KeyRange("", (b"1", b"2", b"3"), (b"4", b"5", b"6"))
    where = chunk_sql("t", [], handle, within, (), 3).decode().partition(" WHERE ")[2].partition(" ORDER ")[0]
    assert where.replace("`", "").split(" OR ") == [
        "(a > 1 AND a < 4)",
        "(a = 1 AND b > 2)",
        "(a = 1 AND b = 2 AND c >= 3)",
        "(a = 4 AND b < 5)",
        "(a = 4 AND b = 5 AND c < 6)",
    ]


def test_a_partition_is_read_alone() -> None:
    handle = handle_of(ITEM.info.handle_columns())
    assert chunk_sql("t", ["a"], handle, KeyRange("p`0"), (), 2) == b"SELECT a, `id` FROM t PARTITION (`p``0`) ORDER BY `id` LIMIT 2"


def test_ranges_leave_nothing_out_and_are_not_too_many() -> None:
    found = ranges_between([(str(n).encode(),) for n in (3, 3, 8)])
    assert [(r.begin, r.end) for r in found] == [((), (b"3",)), ((b"3",), (b"8",)), ((b"8",), ())]
    many = ranges_between([(b"%d" % n,) for n in range(10_000)])
    assert len(many) <= MOST_RANGES and many[0].begin == many[-1].end == ()
    assert all(left.end == right.begin for left, right in zip(many, many[1:], strict=False))
    assert even_boundaries(5, 5, 32) == [] and even_boundaries(0, 3, 32) == [(b"1",), (b"2",), (b"3",)]


def test_keys_are_stored_as_they_are() -> None:
    key = (b"_binary'\x00\xff'", "'ä'".encode(), b"-1")
    assert key_from_json(key_to_json(key)) == key and key_from_json(None) == ()
    place = KeyRange("p", key, ())
    assert KeyRange.from_json(place.to_json()) == place and place.to_json().isascii()


def test_what_is_asked_for_each_type() -> None:
    kinds = ("float", "double", "enum('a')", "set('a')", "bit(5)", "timestamp(3)", "json", "blob")
    columns = table(Table("t", tuple(Column(f"c{i}", kind) for i, kind in enumerate(kinds)))).info.columns
    assert [expression(c) for c in columns] == [
        "`c0` * 1e0",
        "`c1`",
        "CAST(`c2` AS UNSIGNED)",
        "CAST(`c3` AS UNSIGNED)",
        "CAST(`c4` AS UNSIGNED)",
        "`c5`",
        "`c6`",
        "`c7`",
    ]


def test_a_type_that_is_not_the_historys_is_noticed() -> None:
    kinds = {
        "int": ("int(11)", "int", "INT(10)"),
        "int unsigned": ("int(10) unsigned", "int unsigned"),
        "bigint": ("bigint(20)", "bigint"),
        "year": ("year(4)", "year"),
        "double": ("double",),
        "decimal(10,2)": ("decimal(10,2)",),
        "varchar(20)": ("varchar(20)",),
        "date": ("date",),
        "datetime(3)": ("datetime(3)",),
        "timestamp": ("timestamp",),
        "enum('a','it''s')": ("enum('a','it''s')",),
        "bit(5)": ("bit(5)",),
        "text": ("text",),
        "blob": ("blob",),
        "json": ("json",),
    }
    columns = dict(zip(kinds, table(Table("t", tuple(Column(f"c{i}", kind) for i, kind in enumerate(kinds)))).info.columns, strict=True))
    for kind, shown in kinds.items():
        assert all(shows(text, columns[kind]) for text in shown), kind
        # a long VARCHAR and a TEXT are read and written alike
        others = [text for other, texts in kinds.items() if other not in (kind, "text") for text in texts]
        assert not any(shows(text, columns[kind]) for text in others), kind
    assert not shows("decimal(10,3)", columns["decimal(10,2)"]) and not shows("datetime", columns["datetime(3)"])
    assert not shows("enum('it''s','a')", columns["enum('a','it''s')"])
    words = replace(columns["enum('a','it''s')"], elems=("a\nb", "\\\\srv\\x", "it's"))
    assert shows("enum('a\\nb','\\\\srv\\x','it''s')", words) and not shows("enum('a\\nb','\\srv\\x','it''s')", words)


def test_a_table_is_the_historys_before_it_is_read() -> None:
    same = [("ID", "bigint(20) unsigned"), ("f", "float"), ("e", "enum('a','b')")]
    require_same(ITEM, same, 0)
    require_same(ITEM, same, 7)
    for there, table_id, words in (
        (None, 0, "is not in the upstream"),
        (same, 8, "has the id 8 in the upstream's snapshot, and 7"),
        (same[:2], 7, "has the columns ID, f in the upstream"),
        ([*same[:2], ("e", "varchar(20)")], 7, r"has other types .*: e varchar\(20\) instead of ENUM\('a','b'\)"),
    ):
        with pytest.raises(SchemaMoves, match=words):
            require_same(ITEM, there, table_id)


def test_what_the_upstream_answers_never_is_more_than_one_literal() -> None:
    number, date, text = table(Table("t", (Column("n", "decimal(10,2)"), Column("d", "date"), Column("v", "varchar(9)")))).info.columns
    for good in (b"-1.50", b"007", b"1e+20", b"2.5E-7", None):
        (cells,) = cells_of([form_of(number)], [pa.array([good], pa.binary())])
        assert whole(cells) == [good or b"NULL"]
    for bad in (b"id", b"1),(99,2", b"NULL", b"0x41", b"1 + 1", b"", b"1\n", b"(SELECT USER())", b"\xff"):
        with pytest.raises(BootstrapRefused, match="no number|text for a column"):
            cells_of([form_of(number)], [pa.array([b"1", bad], pa.binary())])
    for column in (date, text):
        (cells,) = cells_of([form_of(column)], [pa.array([b"x'),(98,'y"], pa.binary())])
        assert whole(cells) == [b"'x''),(98,''y'"]


SHOWN = """CREATE TABLE `item` (
  `id` bigint(20) unsigned NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */,
  `f` float DEFAULT NULL,
  `e` enum('a','b') COLLATE utf8mb4_bin DEFAULT NULL,
  PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */,
  CONSTRAINT `fk_1` FOREIGN KEY (`id`) REFERENCES `shop`.`other` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin /*T![auto_rand_base] AUTO_RANDOM_BASE=30001 */
PARTITION BY HASH (`id`) PARTITIONS 2"""


REFERRING = replace(ITEM, info=replace(ITEM.info, foreign_keys=(ForeignKey("fk_1", ("id",), "shop", "other", ("id",)),)))


def test_a_table_is_made_from_its_definition() -> None:
    two = (PartitionDef(1, "p0"), PartitionDef(2, "p1"))
    item = replace(REFERRING, info=replace(REFERRING.info, partitions=two, partition_type=2, partition_expr="`id`", partition_enabled=True))
    made = rewrite(making(WantedTable(item, item, SHOWN, None), NO_ROUTES), Dialect(Flavour.MARIADB), restored=False)
    assert made.sql.startswith("CREATE TABLE `shop`.`item` (`id` BIGINT UNSIGNED NOT NULL,")
    assert "utf8mb4_nopad_bin" in made.sql and "FOREIGN KEY (`id`) REFERENCES `shop`.`other` (`id`)" in made.sql
    assert "PARTITION BY HASH (`id`) PARTITIONS 2" in made.sql


def test_a_table_with_a_route_or_a_list_of_columns() -> None:
    routes = Routes.of(ApplyConfig(routes=(TableRoute("shop", "item", "mart", "thing"), TableRoute("shop", "other", "mart", "more"))))
    made = rewrite(making(WantedTable(REFERRING, routes.moved(REFERRING), SHOWN, None), routes), Dialect(Flavour.MARIADB), restored=False)
    assert made.sql.startswith("CREATE TABLE `mart`.`thing` (") and "REFERENCES `mart`.`more`" in made.sql
    routes = Routes.of(ApplyConfig(routes=(TableRoute("shop", "item", "mart", "thing", ("id", "e")),)))
    made = rewrite(making(WantedTable(ITEM, routes.moved(ITEM), SHOWN, None), routes), Dialect(Flavour.MARIADB), restored=False)
    assert made.sql.startswith("CREATE TABLE `mart`.`thing` (`id` BIGINT") and "`f`" not in made.sql and "PARTITION" not in made.sql


def test_names_on_the_command_line() -> None:
    def asked(*named: str) -> BootstrapRequest:
        return BootstrapRequest.of(drainer_options().parsed([f"--bootstrap={text}" for text in named]))

    assert not asked()
    assert asked("shop.item, shop.log", "`a.b`.`c``,d`").tables == (("shop", "item"), ("shop", "log"), ("a.b", "c`,d"))
    assert asked("shop.*").tables == (("shop", "*"),)
    assert asked("*").everything and not asked("*").tables
    requests = (BootstrapRequest(everything=True, restart=True), asked("shop.*"), BootstrapRequest(restart=True))
    assert [request.flag for request in requests] == ["--bootstrap-all", "--bootstrap", "--bootstrap-restart"], (
        "messages name what was given"
    )
    for wrong in ("item", "shop.", ".item", "a.b.c,d", "", " "):
        with pytest.raises(ConfigError, match="DB.TABLE"):
            asked(wrong)


def test_progress_in_words() -> None:
    assert CopyProgress(4, 1, 500, 2000, 100.0).words() == (
        "copying [######..................]  25% | 1 of 4 tables | 500 rows of about 2,000 | 100 rows/s | about 15 s left"
    )
    assert CopyProgress(4, 1, 500, 0, 0.0).words() == "copying [######..................]  25% | 1 of 4 tables | 500 rows | 0 rows/s"
    assert CopyProgress(4, 3, 3000, 2000, 9.0).share == 0.99 and CopyProgress(4, 4, 3000, 2000, 9.0).share == 1.0
