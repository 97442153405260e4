"""The reader of the target's tables on a real server: what it says about columns and keys, and how many queries it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, is_absent, kinds_of, read_tables, read_whole
from pyspark_tidb_binlog.sinks.mysql.tables_there import KEPT_SECONDS, ConcernedTable, Known, TablesThere
from tests.support.plan_samples import column, table
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql


@pytest.fixture
def seen(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        session.execute("CREATE DATABASE looked_at")
        yield session
        session.execute("DROP DATABASE looked_at")


def queries(session: Session) -> int:
    return int(session.query("SHOW SESSION STATUS LIKE 'Com_select'")[0][1])


def test_columns_and_unique_keys_as_they_are(seen: Session) -> None:
    seen.execute(
        "CREATE TABLE looked_at.t (id INT AUTO_INCREMENT PRIMARY KEY, `a b` VARCHAR(9) NOT NULL DEFAULT 'it''s', n INT, must INT NOT NULL, "
        "e ENUM('x','y''z'), twice INT AS (n * 2) STORED, thrice INT AS (n * 3) VIRTUAL, at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), "
        "KEY k (n), UNIQUE KEY z (must, n), UNIQUE KEY part (`a b`(3)))"
    )
    found = read_tables(seen, [("looked_at", "t"), ("looked_at", "none"), ("nowhere", "t")])
    assert set(found) == {("looked_at", "t")}
    table = found["looked_at", "t"]
    assert [c.name for c in table.columns] == ["id", "a b", "n", "must", "e", "twice", "thrice", "at"]
    assert table.unique_keys == (
        TargetKey("PRIMARY", (("id", -1),)),
        TargetKey("part", (("a b", 3),)),
        TargetKey("z", (("must", -1), ("n", -1))),
    )
    assert [c.name for c in table.columns if c.collation] == ["a b", "e"]
    assert table.column("ID") == TargetColumn("id", "int" if MYSQLD else "int(11)", False, None, False, True)
    assert [c.name for c in table.columns if c.generated] == ["twice", "thrice"]
    e, text = table.column("e"), table.column("a b")
    assert e is not None and e.kind == "enum" and e.words == ("x", "y'z") and e.default is None
    assert text is not None and text.default == ("it's" if MYSQLD else "'it''s'")


def concerned(*names: str) -> list[ConcernedTable]:
    return [ConcernedTable(table([column("id")]), ("looked_at", name), 1, -1) for name in names]


def test_three_queries_for_many_tables_and_none_for_known_ones(seen: Session) -> None:
    names = [f"t{n}" for n in range(30)]
    for name in names:
        seen.execute(f"CREATE TABLE looked_at.{name} (id INT PRIMARY KEY)")
    tables, before = TablesThere(ApplyConfig()), queries(seen)
    assert len(tables.read(seen, concerned(*names))) == 30 and queries(seen) == before + 3
    assert tables.kept(concerned(*names[:3])) and tables.kept([]) is not None
    tables.forget()
    assert tables.kept(concerned(*names[:3])) is None


def test_what_is_kept_is_read_again_after_a_time(seen: Session) -> None:
    seen.execute("CREATE TABLE looked_at.t (id INT PRIMARY KEY)")
    now, here = [100.0], concerned("t")
    tables = TablesThere(ApplyConfig(), lambda: now[0])
    assert tables.kept(here) is None
    assert len(columns_of(tables.read(seen, here))) == 1
    seen.execute("ALTER TABLE looked_at.t ADD COLUMN v INT")
    now[0] += KEPT_SECONDS
    assert len(columns_of(tables.kept(here))) == 1
    now[0] += 1
    assert tables.kept(here) is None
    assert len(columns_of(tables.read(seen, here))) == 2


def columns_of(known: Known | None) -> Sequence[TargetColumn]:
    there = (known or {})["looked_at", "t"]
    assert there is not None
    return there.columns


def test_a_table_that_the_account_may_not_see_is_not_taken_for_missing(seen: Session, mariadb: PrivateMariaDB) -> None:
    seen.execute("CREATE TABLE looked_at.t (id INT PRIMARY KEY)")
    seen.execute("CREATE TABLE looked_at.open (id INT PRIMARY KEY)")
    seen.execute("DROP USER IF EXISTS 'half_blind'@'%'")
    seen.execute("CREATE USER 'half_blind'@'%' IDENTIFIED BY 'pw'")
    seen.execute("GRANT SELECT ON looked_at.open TO 'half_blind'@'%'")
    try:
        with connect(replace(mariadb.target(), user="half_blind", password="pw"), ApplyConfig()) as poor:
            assert set(read_tables(poor, [("looked_at", "t"), ("looked_at", "open")])) == {("looked_at", "open")}
            with pytest.raises(ApplyError, match="denied"):
                is_absent(poor, "looked_at", "t")
        assert is_absent(seen, "looked_at", "u") and is_absent(seen, "nowhere", "t") and not is_absent(seen, "looked_at", "t")
    finally:
        seen.execute("DROP USER 'half_blind'@'%'")


def test_partitions_and_options_are_read_with_the_rest(seen: Session) -> None:
    """A comment also with what rows need; a table without partitions has none."""
    seen.execute("CREATE TABLE looked_at.plain (id INT PRIMARY KEY) COMMENT 'layout é'")
    seen.execute(
        "CREATE TABLE looked_at.parted (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION p1 VALUES LESS THAN (10), PARTITION p0 VALUES LESS THAN MAXVALUE)"
    )
    seen.execute("CREATE TABLE looked_at.hashed (id INT PRIMARY KEY) PARTITION BY LINEAR HASH (id) PARTITIONS 2")
    assert read_tables(seen, [("looked_at", "plain")])["looked_at", "plain"].comment == "layout é"
    plain, parted, hashed = (read_whole(seen, "looked_at", name) for name in ("plain", "parted", "hashed"))
    assert plain and (plain.comment, plain.engine, plain.partition_method, plain.partitions) == ("layout é", "InnoDB", "", {})
    assert parted and (parted.partition_method, list(parted.partitions.items())) == ("RANGE", [("p1", "10"), ("p0", "MAXVALUE")])
    assert hashed and (hashed.partition_method, hashed.partitions) == ("LINEAR HASH", {"p0": "", "p1": ""})
    assert (kinds_of(seen, "looked_at", "plain"), kinds_of(seen, "looked_at", "none")) == (["BASE TABLE"], [])
