"""Tables of every shape copied between two servers whose defaults differ: other sql_mode, time zone, charset, packets."""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, table_json
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import Bootstrap, Copied
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyHead, CopyKind
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, Key
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import ROWID, SnapshotSource
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables
from pyspark_tidb_binlog.sinks.mysql.lease import LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.sequences import place_of
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.lost_answers import losing
from tests.support.private_mysql import MYSQLD, RealMariaDB
from tests.support.target_rows import run_sql

TS = 449000000000000001


class StillServer(SnapshotSource):
    """Reads a server that nobody writes to. A boundary is every ``range_rows``-th key."""

    range_rows = 3

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")

    def table_ids(self, session: Session) -> dict[tuple[str, str], int]:
        """Not told."""
        return {}

    def columns(self, session: Session, table: TableAt) -> tuple[tuple[str, str], ...] | None:
        """TiDB's has no such column to show."""
        found = super().columns(session, table)
        return found and tuple(column for column in found if column[0] != ROWID)

    def create_text(self, session: Session, table: TableAt) -> str:
        """Without what stands for ``_tidb_rowid``."""
        shown = super().create_text(session, table)
        return re.sub(r"`_tidb_rowid` [^,]*,|,\s*KEY `_tidb_rowid` \(`_tidb_rowid`\)", "", shown).replace(",\n  \n)", "\n)")

    def numbers_given(self, session: Session, sequence: TableAt) -> int:
        """As the server tells it that stands for TiDB."""
        place = place_of(session, sequence.schema, sequence.name)
        return place.next_value - place.increment

    def _boundaries(self, session: Session, table: TableAt, handle: Handle, partition: str) -> list[Key]:
        source = f"{quote_name(table.schema)}.{quote_name(table.name)}" + (f" PARTITION ({quote_name(partition)})" if partition else "")
        asked, order = ", ".join(handle.expressions), ", ".join(handle.names)
        return self._keys(session, f"SELECT {asked} FROM {source} ORDER BY {order}", handle)[:: self.range_rows]


@dataclass(frozen=True)
class StillTable:
    """A table of the upstream."""

    described: Table
    schema: str = "still"
    also: str = ""
    """What SQL has beside the described columns."""
    options: str = ""
    partitions: tuple[str, ...] = ()
    generated: Mapping[str, str] = ()  # type: ignore[assignment]
    """By the column's name, its expression."""

    def sql(self) -> str:
        """What makes it on MariaDB; ``_tidb_rowid`` is invisible, where it is the handle."""
        made = dict(self.generated)
        parts = [
            f"{column.text()} AS ({made[column.name]}) VIRTUAL" if column.name in made else column.text()
            for column in self.described.columns
        ]
        if self.described.primary_key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, self.described.primary_key))})")
        if not self.described.primary_key or not self.described.clustered:
            parts.append("_tidb_rowid BIGINT NOT NULL INVISIBLE AUTO_INCREMENT, KEY (_tidb_rowid)")
        parts += [self.also] if self.also else []
        return f"CREATE TABLE {quote_name(self.schema)}.{quote_name(self.described.name)} ({', '.join(parts)}) {self.options}"

    def at(self, number: int) -> TableAt:
        """As the history describes it."""
        info = table_json(self.described, number)
        made = dict(self.generated)
        for column in info["cols"]:
            if column["name"]["O"] in made:
                column["generated_expr_string"] = made[column["name"]["O"]]
        if self.partitions:
            definitions = [{"id": number * 100 + i, "name": {"O": name, "L": name.lower()}} for i, name in enumerate(self.partitions)]
            expr = quote_name(self.described.primary_key[0])
            info["partition"] = {"type": 2, "enable": True, "expr": expr, "definitions": definitions, "num": len(definitions)}
        return TableAt(number, self.schema, self.described.name, TableInfo.from_json(info), SchemaVersion(1), (), False)


def still(schema: str, name: str, columns: str, key: str = "", **more: Any) -> StillTable:
    """A table with ``columns``, each a name and a type."""
    return StillTable(Table(name, tuple(Column(*one.split(" ", 1)) for one in columns.split(", ")), tuple(key.split())), schema, **more)


def other_at(number: int, schema: str, name: str, kind: str, **said: object) -> TableAt:
    """A ``view`` or ``sequence`` as the history describes it."""
    info = table_json(Table(name, (Column("id", "bigint"),)), number) | {kind: said}
    return TableAt(number, schema, name, TableInfo.from_json(info), SchemaVersion(1), (), False)


@contextmanager
def copying(spark: SparkSession, config: DrainerConfig, upstream: SnapshotSource, *, removes: bool = False) -> Iterator[Bootstrap]:
    """A copy under a lease of its own; ``config`` has a cluster id. ``removes``: what an earlier one has copied."""
    apply, cluster_id = config.apply, config.source.cluster_id
    guard = LeaseGuard(
        lambda: connect(config.target, apply), cluster_id, apply.checkpoint_schema, LeaseHolder("still"), apply.lease_timeout, FEW
    )
    try:
        yield Bootstrap(spark, config, guard.take(), upstream, SchemaHistory(), 1, threading.Event(), removes=removes)
    finally:
        guard.close()


def copied(
    spark: SparkSession,
    config: DrainerConfig,
    source: TargetConfig,
    tables: Sequence[TableAt],
    others: Sequence[TableAt] = (),
    *,
    again: bool = False,
) -> Copied:
    """A first load of ``tables`` and ``others``; ``again``: in the place of an earlier one."""
    reader = StillServer(ShippedTarget.of(source, spark.sparkContext.broadcast))
    with copying(spark, config, reader, removes=again) as copy:
        return copy.run(CopyHead(CopyKind.FIRST, TS), tables, others)


def texts(server: TargetConfig, sql: str) -> list[tuple[Any, ...]]:
    """The rows that a query gives, as the server's bytes, sorted."""
    with connect(server, ApplyConfig()) as session, session.stream(sql) as blocks:
        found = [row for block in blocks for row in zip(*(column.to_pylist() for column in block), strict=True)]
    return sorted(found, key=repr)


pytestmark = [pytest.mark.spark, pytest.mark.mysql]


@dataclass(frozen=True)
class Servers:
    source: PrivateMariaDB
    target: PrivateMariaDB


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """The upstream's sessions show seven rows at most, pad CHAR and are three hours behind; the target's are strict, and five and a half hours ahead."""
    upstream = {"sql-mode": "PAD_CHAR_TO_FULL_LENGTH,ALLOW_INVALID_DATES", "default-time-zone": "-03:00", "max-allowed-packet": "64M"}
    target = {
        "sql-mode": "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,ANSI_QUOTES",
        "default-time-zone": "+05:30",
        "character-set-server": "latin1",
        "collation-server": "latin1_swedish_ci",
        "explicit-defaults-for-timestamp": "OFF",
        "lower-case-table-names": "1",
        "max-allowed-packet": "32M",
    }
    with RealMariaDB(options=upstream) as source, PrivateMariaDB(options=target) as to:
        yield Servers(source, to)


def config_of(servers: Servers, cluster_id: int) -> DrainerConfig:
    """Each test's copy is that of another cluster."""
    apply = ApplyConfig(upstream_new_collations="true")
    return DrainerConfig(source=SourceConfig(cluster_id=cluster_id), target=servers.target.target(), apply=apply)


def same(servers: Servers, table: StillTable, columns: str = "*") -> None:
    name = f"{quote_name(table.schema)}.{quote_name(table.described.name)}"
    wanted = texts(servers.source.target(), f"SELECT {columns} FROM {name}")
    assert texts(servers.target.target(), f"SELECT {columns} FROM {name}") == wanted, name


def connections(server: PrivateMariaDB) -> int:
    """How many it has taken since it began."""
    return int(run_sql(server, "SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])


KEYS = (
    ("bigint", "-9223372036854775808, -2, -1, 0, 1, 9223372036854775807"),
    ("bigint unsigned", "0, 1, 9223372036854775807, 9223372036854775808, 18446744073709551614, 18446744073709551615"),
    ("varchar(20)", "'', 'a', 'B', 'it''s', '\\\\', '%', '_', 'ß', '語', '\n', '😀'"),
    ("char(5)", "'', 'a', 'B', 'bb', 'c'"),
    ("varbinary(8)", "'', 0x00, 0x0000, 0x01, 0x27, 0x5C, 0xFF, 0xFFFE, 0xC3"),
    ("binary(2)", "0x0000, 0x0001, 0x0027, 0x5C5C, 0xFFFF"),
    ("decimal(20,5)", "-1.5, -0.00001, 0, 0.00001, 123456789012345.12345"),
    ("double", "-1e300, -0.1, 0, 1e-300, 0.1, 0.30000000000000004, 1e300"),
    ("float", "-3.4e38, -0.1, 0, 0.1, 0.30000001, 16777217"),
    ("date", "'0000-00-00', '1000-01-01', '2024-02-30', '9999-12-31'"),
    ("datetime(6)", "'0000-00-00', '2024-00-00 00:00:00', '2024-05-06 07:08:09.123456', '9999-12-31 23:59:59.999999'"),
    ("timestamp(3)", "'0000-00-00', '1970-01-01 00:00:01.001', '2024-03-31 02:30:00', '2038-01-19 03:14:07.999'"),
    ("time(2)", "'-838:59:59', '-00:00:00.01', '0', '24:00:00', '99:59:59.99', '838:59:59'"),
    ("year", "0, 1901, 2000, 2155"),
    ("enum('z','a','m')", "1, 2, 3"),
    ("set('x','y','z')", "0, 1, 2, 3, 4, 7"),
    ("bit(12)", "0, 1, 39, 92, 4095"),
)


def test_every_type_of_a_key_as_ranges(servers: Servers, spark: SparkSession) -> None:
    run_sql(servers.source, "CREATE DATABASE still CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    tables = []
    with servers.source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
        for number, (kind, values) in enumerate(KEYS):
            both = Table(f"both{number}", (Column("a", kind), Column("b", "int"), Column("v", "varchar(30)")), ("a", "b"))
            one = Table(f"one{number}", (Column("k", kind), Column("v", "varchar(30)")), ("k",))
            tables += [StillTable(one), StillTable(both)]
            for table in tables[-2:]:
                cursor.execute(table.sql())
            listed = values.split(", ")
            cursor.execute(f"INSERT INTO still.one{number} VALUES " + ", ".join(f"({value}, 'v')" for value in listed))
            pairs = ", ".join(f"({value}, {n}, 'v')" for value in listed for n in (-3, 0, 5))
            cursor.execute(f"INSERT INTO still.both{number} VALUES {pairs}")
        folded = "CREATE TABLE still.folded (a VARCHAR(5) COLLATE utf8mb4_general_ci, b INT, v INT, PRIMARY KEY (a, b))"
        cursor.execute(folded)
        cursor.execute("INSERT INTO still.folded SELECT ELT(1 + seq % 4, 'a', 'A', 'b', 'B'), seq, seq FROM still.seq_1_to_60")
    cased = Table("folded", (Column("a", "varchar(5)", collate="utf8mb4_general_ci"), Column("b", "int"), Column("v", "int")), ("a", "b"))
    tables.append(StillTable(cased))
    run_sql(servers.source, "SET GLOBAL sql_select_limit = 7")
    config = config_of(servers, 33)
    before = connections(servers.source)
    copied(spark, config, servers.source.target(), [table.at(number) for number, table in enumerate(tables, 100)])
    # One for each worker process and the driver, and others only because none is kept for longer than half a minute: there are some 150 ranges.
    assert connections(servers.source) - before < 40
    run_sql(servers.source, "SET GLOBAL sql_select_limit = DEFAULT")
    for table in tables:
        same(servers, table)


def test_every_shape_of_a_table(servers: Servers, spark: SparkSession) -> None:
    weird, longest = "a `q`.%s 'x' \\ ß", "Ünd so weiter " + "語x" * 25
    assert len(longest) == 64
    wide = tuple(Column(f"c{number}", "int") for number in range(999))
    run_sql(servers.source, "CREATE DATABASE shapes CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    parts: dict[str, Any] = {"options": "PARTITION BY HASH (id) PARTITIONS 3", "partitions": ("p0", "p1", "p2")}
    tables = [
        still("shapes", "parted", "id bigint, v int", "id", **parts),
        still("shapes", "sums", "a int, s int, b int", "a", generated={"s": "`a` + `b`"}),
        still("shapes", "child", "id int, up int", "id", also="FOREIGN KEY fk (up) REFERENCES shapes.parent (id)"),
        still("shapes", "parent", "id int, down int", "id", also="FOREIGN KEY fk2 (down) REFERENCES shapes.child (id)"),
        still("shapes", "nothing", "id int", "id"),
        still("shapes", "deep", "id int, j json", "id"),
        StillTable(Table(weird, (Column(weird, "int"), Column("%", "varchar(9)"), Column("select", "int")), (weird,)), "shapes"),
        still("shapes", "huge", "id int, b longblob, t longtext", "id"),
        still("shapes", "keyless", "a int"),
        still("shapes", "only_keys", "a bigint unsigned, b varbinary(9)", "a b"),
        StillTable(Table(longest, (Column(longest, "varchar(9)"),), (longest,)), "shapes"),
        StillTable(Table("wide", (Column("id", "int"), *wide), ("id",)), "shapes"),
        StillTable(
            Table("times", (Column("at", "timestamp", not_null=True), Column("none", "timestamp"), Column("id", "int")), ("id",)), "shapes"
        ),
    ]
    with servers.source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION foreign_key_checks = 0, time_zone = '+00:00'")
        for table in tables:
            cursor.execute(table.sql())
        cursor.execute("INSERT INTO shapes.parted SELECT CAST(seq AS SIGNED) - 20, seq FROM shapes.seq_1_to_40")
        cursor.execute("INSERT INTO shapes.sums (a, b) SELECT seq, -2 * CAST(seq AS SIGNED) FROM shapes.seq_1_to_40")
        cursor.execute("INSERT INTO shapes.child VALUES (1, 1), (2, 9)")
        cursor.execute("INSERT INTO shapes.parent VALUES (1, 1), (9, NULL)")
        name = "`" + weird.replace("`", "``") + "`"
        cursor.execute(f"INSERT INTO shapes.{name} SELECT seq, '%s', seq FROM shapes.seq_1_to_10")
        cursor.execute("INSERT INTO shapes.huge VALUES (1, RANDOM_BYTES(1024), 'a'), (3, 0x00, 'c')")
        cursor.execute("INSERT INTO shapes.huge SELECT 2, REPEAT(UNHEX('000127FF5CC3A90A'), 2621440), REPEAT('ß', 1000)")
        cursor.execute("SET SESSION check_constraint_checks = 0")
        cursor.execute("INSERT INTO shapes.deep VALUES (1, '[]'), (2, CONCAT(REPEAT('[', 60), REPEAT(']', 60))), (3, NULL)")
        cursor.execute("INSERT INTO shapes.keyless SELECT seq % 3 FROM shapes.seq_1_to_40")
        cursor.execute("INSERT INTO shapes.only_keys SELECT 18446744073709551615 - seq % 4, CHAR(seq) FROM shapes.seq_1_to_40")
        cursor.execute(f"INSERT INTO shapes.{quote_name(longest)} VALUES ('a'), ('語')")
        cursor.execute(f"INSERT INTO shapes.wide SELECT {', '.join(['seq'] * 1000)} FROM shapes.seq_1_to_40")
        cursor.execute("INSERT INTO shapes.times VALUES ('2024-03-31 02:30:00', NULL, 1), (0, '2038-01-19 03:14:07', 2)")
    config = config_of(servers, 34)
    copied(spark, config, servers.source.target(), [table.at(number) for number, table in enumerate(tables, 300)])
    for table in tables:
        same(servers, table, "id, SHA2(b, 256), LENGTH(b), t" if table.described.name == "huge" else "*")
    assert len(texts(servers.target.target(), "SELECT PARTITION_NAME FROM information_schema.partitions WHERE table_name = 'parted'")) == 3


def test_a_row_that_the_target_takes_no_statement_for(servers: Servers, spark: SparkSession) -> None:
    run_sql(servers.source, "CREATE DATABASE huge CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    table = still("huge", "huge", "id int, b longblob", "id")
    run_sql(servers.source, table.sql())
    run_sql(servers.source, "INSERT INTO huge.huge VALUES (1, 'a'), (2, REPEAT('b', 20000000))")
    run_sql(servers.target, "SET GLOBAL max_allowed_packet = 4194304")
    # Other sessions than those that a worker process has kept, which have the former limit.
    config = config_of(servers, 35)
    config = replace(config, apply=replace(config.apply, retry_seconds=config.apply.retry_seconds + 1))
    with pytest.raises(
        PySparkException, match=r"huge\.huge cannot be copied: the row needs a statement of 20,.*max_allowed_packet is 4,194,304\. Raise"
    ):
        copied(spark, config, servers.source.target(), [table.at(400)])
    run_sql(servers.target, "SET GLOBAL max_allowed_packet = 33554432")
    config = replace(config, apply=replace(config.apply, retry_seconds=config.apply.retry_seconds + 1))
    copied(spark, config, servers.source.target(), [table.at(400)])
    same(servers, table, "id, SHA2(b, 256)")


def test_views_and_sequences(
    servers: Servers, spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(servers.source, "CREATE DATABASE seen CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    table = still("seen", "base", "id bigint, v int", "id")
    for sql in (
        table.sql(),
        "INSERT INTO seen.base VALUES (1, 2)",
        "CREATE VIEW seen.above AS SELECT v FROM seen.base",
        "CREATE VIEW seen.a_first AS SELECT v + 1 AS w FROM seen.above",
        "CREATE VIEW seen.theirs AS SELECT 1 AS one",
        "CREATE SEQUENCE seen.numbers START WITH 5 INCREMENT BY 1 CACHE 1000",
        "SELECT NEXTVAL(seen.numbers)",
        "CREATE DATABASE only_upstream",
        "CREATE TABLE only_upstream.t (a INT)",
        "CREATE VIEW seen.by_hand AS SELECT a FROM only_upstream.t",
    ):
        run_sql(servers.source, sql)
    run_sql(servers.target, "CREATE DATABASE seen")
    run_sql(servers.target, "CREATE VIEW seen.theirs AS SELECT 2 AS two")
    run_sql(servers.target, "CREATE TABLE seen.kept (id BIGINT, v INT, UNIQUE KEY theirs (v))")
    run_sql(servers.source, "CREATE TABLE seen.kept (id BIGINT PRIMARY KEY, v INT)")
    kept = still("seen", "kept", "id bigint, v int", "id")
    views = [other_at(510 + i, "seen", name, "view") for i, name in enumerate(("a_first", "above", "theirs", "by_hand"))]
    read = {"view_select": "SELECT `id` AS `id` FROM `seen`.`base`", "view_definer": {"Username": "nobody", "Hostname": "%"}}
    views.append(other_at(514, "seen", "by_info", "view", **read))
    run_sql(servers.source, "CREATE VIEW seen.by_info AS SELECT id FROM seen.base")
    others = [*views, other_at(520, "seen", "numbers", "sequence")]
    config = config_of(servers, 36)
    with monkeypatch.context() as patch, pytest.raises(ApplyError, match=r"seen\.above: not at the target, .* lost transactions"):
        losing(patch, Bootstrap, "_make_others", lambda: run_sql(servers.target, "DROP VIEW seen.above"))
        copied(spark, config, servers.source.target(), [table.at(500)], others)
    with caplog.at_level("WARNING"):
        copied(spark, config, servers.source.target(), [table.at(500), kept.at(501)], others)
    assert (
        "seen.kept is at the target and keeps its definition: it lacks the unique key (id) and it has of its own the unique key (v)"
        in caplog.text
    )
    assert "seen.theirs was at the target before the copy, and stays as it is" in caplog.text
    assert "the target refuses these views or sequences; create them there by hand: seen.by_hand" in caplog.text
    assert "seen.by_info: the definer `nobody`@`%` does not exist at the target: CURRENT_USER in its place" in caplog.text
    assert run_sql(servers.target, "SELECT * FROM seen.by_info") == [(1,)]
    ((recorded, lost),) = run_sql(servers.target, "SELECT job_id, losses FROM tidb_binlog.spark_ddl WHERE note = 'left out'")
    assert recorded == -513 and "seen.by_hand: the view is left out, and tried again" in lost
    ((lost,),) = run_sql(servers.target, "SELECT losses FROM tidb_binlog.spark_ddl WHERE job_id = -514 AND note = 'derived'")
    assert json.loads(lost) == ["seen.by_info: the definer `nobody`@`%` does not exist at the target: CURRENT_USER in its place"]
    run_sql(servers.target, "CREATE TABLE seen.by_hand AS SELECT 3 AS three")
    assert run_sql(servers.target, "SELECT w, two FROM seen.a_first, seen.theirs") == [(3, 2)]
    if MYSQLD:
        assert "seen.numbers: sequence left out, because MySQL has none" in caplog.text
    else:
        assert run_sql(servers.target, "SELECT NEXTVAL(seen.numbers)") == [(1005,)], "beyond what the upstream has given"
    run_sql(servers.source, "CREATE OR REPLACE VIEW seen.above AS SELECT v * 10 AS v FROM seen.base")
    run_sql(servers.source, "DROP SEQUENCE seen.numbers")
    run_sql(servers.target, "INSERT INTO seen.base VALUES (7, 7)")
    with (
        monkeypatch.context() as patch,
        pytest.raises(ApplyError, match=r"seen\.a_first is there, although it was dropped: .* lost transactions"),
    ):
        losing(patch, TargetTables, "drop", lambda: run_sql(servers.target, "CREATE VIEW seen.a_first AS SELECT 1 AS w"))
        copied(spark, config, servers.source.target(), [table.at(500), kept.at(501)], views, again=True)
    copied(spark, config, servers.source.target(), [table.at(500), kept.at(501)], views, again=True)
    assert run_sql(servers.target, "SELECT w, two FROM seen.a_first, seen.theirs") == [(21, 2)]
    assert run_sql(servers.target, "SELECT three FROM seen.by_hand") == [(3,)]
    there = [("a_first",), ("above",), ("base",), ("by_hand",), ("by_info",), ("kept",), ("theirs",)]
    assert sorted(run_sql(servers.target, "SHOW TABLES FROM seen")) == there
