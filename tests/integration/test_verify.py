"""Differences of each kind are found, and nothing else; what is no copy by intent is named; DDLs, open spans and locks while reading."""

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import TableName, TableRoute
from pyspark_tidb_binlog.jobs import verify
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ConfigError, NotUsableYet, RetryableApplyError
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyHead, CopyKind, CopyRecord
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import TidbServer
from pyspark_tidb_binlog.sinks.delta.appended_table import found_at
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTable, to_json
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.verify import standing, table_comparison, table_pair, verification, verification_table
from pyspark_tidb_binlog.sinks.verify.repair import Kind
from pyspark_tidb_binlog.sinks.verify.verification import Begun, EqualRows, RoundDone, VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import VerificationTable, equal_upto
from tests.support.verify_site import MARKS, VerifySite, tables_of

pytestmark = pytest.mark.mysql


@pytest.fixture
def site(mariadb: PrivateMariaDB) -> Iterator[VerifySite]:
    made = VerifySite(mariadb)
    yield made
    made.close()


def kinds(table: VerifiedTable) -> list[tuple[Kind, str]]:
    return [(d.kind, "/".join(d.key.values())) for d in table.tally.listed]


def filled(site: VerifySite, rows: int = 5000) -> None:
    site.both(
        "CREATE TABLE {}.t (id BIGINT PRIMARY KEY, v VARCHAR(40), w INT)",
        f"INSERT INTO {{}}.t SELECT seq * 3, CONCAT('v', seq), seq FROM seq_1_to_{rows}",
    )


@pytest.mark.parametrize("size", [7, 100, 2000, 200_000])
def test_differences_are_found_wherever_they_are(site: VerifySite, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_comparison, "_FEW", 5)
    filled(site)
    site.sql(
        "UPDATE down.t SET v = 'V1' WHERE id = 3",
        "DELETE FROM down.t WHERE id = 7500",
        "INSERT INTO down.t VALUES (7502, 'x', 1), (99999, 'y', 2), (-5, 'z', 3)",
        "UPDATE down.t SET w = NULL WHERE id = 15000",
    )
    run = site.run()
    run.pace.size = size
    (found,) = tables_of(run)
    assert (found.tally.rows, found.tally.differing) == (5000, 6)
    assert kinds(found) == [
        (Kind.EXTRA, "-5"),
        (Kind.EXTRA, "7502"),
        (Kind.EXTRA, "99999"),
        (Kind.CHANGED, "3"),
        (Kind.CHANGED, "15000"),
        (Kind.MISSING, "7500"),
    ]
    assert site.repaired(found)[3:] == [
        "UPDATE `down`.`t` SET `v` = 'v1' WHERE `id` = 3",
        "UPDATE `down`.`t` SET `w` = 5000 WHERE `id` = 15000",
        "INSERT INTO `down`.`t` (`id`,`v`,`w`) VALUES (7500, 'v2500', 2500)",
    ]
    assert site.table().tally.differing == 0


@pytest.mark.parametrize("emptied", ["up", "down"])
def test_an_empty_side_is_listed_up_to_a_limit(site: VerifySite, emptied: str) -> None:
    filled(site)
    site.sql(f"TRUNCATE TABLE {emptied}.t")
    found = site.table()
    assert found.tally.differing == 5000 and table_comparison.MOST_LISTED <= len(found.tally.listed) < 2400


def test_empty_tables_are_equal(site: VerifySite) -> None:
    site.both("CREATE TABLE {}.t (id INT PRIMARY KEY)", "CREATE TABLE {}.x (v INT)")
    assert {name: (t.tally.rows, t.differs) for name, t in site.verified().items()} == {"t": (0, False), "x": (0, False)}


KEYS = {
    "two integers": ("a INT NOT NULL, b INT NOT NULL, v INT, PRIMARY KEY (a, b)", "seq DIV 7, seq MOD 7, seq"),
    "text": ("a VARCHAR(30) NOT NULL, v INT, UNIQUE KEY (a)", "CONCAT('k', seq), seq"),
    "text, then a number": ("a VARCHAR(30) NOT NULL, b INT NOT NULL, v INT, PRIMARY KEY (a, b)", "CONCAT('k', seq DIV 5), seq MOD 5, seq"),
    "times": ("a DATETIME(3) NOT NULL, v INT, PRIMARY KEY (a)", "'2024-01-01' + INTERVAL seq MINUTE, seq"),
    "bytes": ("a VARBINARY(8) NOT NULL, v INT, PRIMARY KEY (a)", "UNHEX(LPAD(HEX(seq), 6, '0')), seq"),
    "decimals": ("a DECIMAL(10,2) NOT NULL, v INT, PRIMARY KEY (a)", "seq / 4, seq"),
    "no order": ("a ENUM('b','a') NOT NULL, b INT NOT NULL, v INT, PRIMARY KEY (a, b)", "1 + seq MOD 2, seq, seq"),
    "null in it": ("a INT, v INT, UNIQUE KEY (a)", "seq, seq"),
    "prefix": ("a VARCHAR(30) NOT NULL, v INT, UNIQUE KEY (a(10))", "CONCAT(seq, 'k'), seq"),
}


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_all_kinds(site: VerifySite, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_comparison, "_FEW", 5)
    columns, values = KEYS[key]
    site.both(f"CREATE TABLE {{}}.t ({columns})", f"INSERT INTO {{}}.t SELECT {values} FROM seq_1_to_1000")
    run = site.run()
    run.pace.size = 50
    assert [(t.tally.rows, t.tally.differing) for t in tables_of(run)] == [(1000, 0)]
    site.sql("UPDATE down.t SET v = -1 WHERE v = 500", "DELETE FROM down.t WHERE v = 900")
    found = site.table()
    assert found.tally.differing == (2 if found.tally.listed[0].pair.key else 3)
    site.repaired(found)
    assert site.table().tally.differing == 0


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_nopad_bin", "utf8mb4_german2_ci"])
@pytest.mark.parametrize("by_ranges", [True, False], ids=["ranges", "as is"])
def test_servers_that_sort_a_key_differently(site: VerifySite, collation: str, by_ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges would find the same, in more time."""
    if by_ranges:
        monkeypatch.setattr(table_pair, "sort_alike", lambda one, other: True)
    monkeypatch.setattr(table_comparison, "_FEW", 5)
    for database, name in (("up", "utf8mb4_bin"), ("down", collation)):
        site.sql(f"CREATE TABLE {database}.t (a VARCHAR(30) CHARACTER SET utf8mb4 COLLATE {name} NOT NULL PRIMARY KEY, v INT)")
    site.both(
        "INSERT IGNORE INTO {}.t SELECT CONCAT(CHAR(48 + seq MOD 75 USING utf8mb4), ELT(1 + seq MOD 4, 'ä', 'Z', '_', '~'), seq), seq FROM seq_1_to_300"
    )
    site.sql(
        "DELETE FROM up.t WHERE CAST(a AS BINARY) NOT IN (SELECT CAST(a AS BINARY) FROM down.t)",
        "DELETE FROM down.t WHERE CAST(a AS BINARY) NOT IN (SELECT CAST(a AS BINARY) FROM up.t)",
    )
    ((rows,),) = site.session.query("SELECT COUNT(*) FROM down.t")
    for size in (10, 300):
        run = site.run()
        run.pace.size = size
        (found,) = tables_of(run)
        assert (found.tally.rows, found.tally.differing) == (rows, 0)
    site.sql("UPDATE down.t SET v = -1 WHERE v = 50", "DELETE FROM down.t WHERE v = 90", "INSERT INTO down.t VALUES ('zzz', 7)")
    found = site.table()
    if found.tally.listed[0].pair.key:
        assert sorted(kind for kind, _ in kinds(found)) == [Kind.CHANGED, Kind.MISSING, Kind.EXTRA]
    else:
        assert sorted(kind for kind, _ in kinds(found)) == [Kind.MISSING, Kind.MISSING, Kind.EXTRA, Kind.EXTRA]
    site.repaired(found)
    assert site.table().tally.differing == 0


def test_a_key_that_differs_in_case_alone(site: VerifySite) -> None:
    for database, name in (("up", "utf8mb4_bin"), ("down", "utf8mb4_general_ci")):
        site.sql(f"CREATE TABLE {database}.t (a VARCHAR(30) CHARACTER SET utf8mb4 COLLATE {name} NOT NULL PRIMARY KEY)")
    site.sql("INSERT INTO up.t VALUES ('a')", "INSERT INTO down.t VALUES ('A')")
    found = site.table()
    assert kinds(found) == [(Kind.EXTRA, "'A'"), (Kind.MISSING, "'a'")]
    site.repaired(found)
    assert site.table().tally.differing == 0


@pytest.mark.parametrize("columns", ["a INT, b VARCHAR(10), c BLOB", "a INT, b VARCHAR(10), c DOUBLE"])
def test_rows_without_a_key_are_counted(site: VerifySite, columns: str) -> None:
    site.both(f"CREATE TABLE {{}}.t ({columns})", "INSERT INTO {}.t SELECT seq MOD 10, 'x', NULL FROM seq_1_to_100")
    assert site.table().differs is False
    site.sql(
        "DELETE FROM down.t WHERE a = 3 LIMIT 1", "INSERT INTO down.t VALUES (4, 'x', NULL), (4, 'x', NULL), (NULL, 'X', ''), (5, '', 1)"
    )
    found = site.table()
    assert (found.tally.rows, found.tally.differing) == (100, 5)
    assert sorted((d.kind, d.times) for d in found.tally.listed) == [(Kind.MISSING, 1), (Kind.EXTRA, 1), (Kind.EXTRA, 1), (Kind.EXTRA, 2)]
    assert len(site.repaired(found)) == 5
    assert site.table().tally.differing == 0


def test_what_is_no_copy_by_intent_is_named(mariadb: PrivateMariaDB) -> None:
    routes = (
        TableRoute(db_name="up", to_db="down"),
        TableRoute(db_name="up", tbl_name="some_rows", to_tbl="rows_of_it", where="v > 1"),
        TableRoute(db_name="up", tbl_name="some_columns", columns=("id", "v")),
        TableRoute(db_name="up", tbl_name="renamed", to_tbl="other_name"),
    )
    site = VerifySite(mariadb, {"routes": routes, "ignore_table": (TableName("up", "ignored"),)})
    try:
        for name in ("some_rows", "some_columns", "renamed", "frozen", "ignored", "computed", "own_columns", "gone", "lacks"):
            site.sql(f"CREATE TABLE up.{name} (id INT PRIMARY KEY, v INT, w INT)", f"INSERT INTO up.{name} VALUES (1, 1, 1), (2, 2, 2)")
        site.sql("CREATE VIEW up.view AS SELECT 1 AS a")
        site.sql("CREATE TABLE down.some_columns (id INT PRIMARY KEY, v INT)", "INSERT INTO down.some_columns VALUES (1, 1), (2, 2)")
        site.sql("CREATE TABLE down.other_name LIKE up.renamed", "INSERT INTO down.other_name SELECT * FROM up.renamed")
        site.sql("CREATE TABLE down.frozen (id INT PRIMARY KEY)")
        site.sql(
            "CREATE TABLE down.computed (id INT PRIMARY KEY, v INT AS (id + 1), w INT)",
            "INSERT INTO down.computed (id, w) VALUES (1, 1), (2, 2)",
        )
        site.sql(
            "CREATE TABLE down.own_columns (id INT PRIMARY KEY, v INT, w INT, mine INT)",
            "INSERT INTO down.own_columns VALUES (1, 1, 1, 5), (2, 2, 2, 6)",
        )
        site.sql("CREATE TABLE down.lacks (id INT PRIMARY KEY, v INT)", "INSERT INTO down.lacks VALUES (1, 1), (2, 2)")
        site.record_ddl(7, "skipped", 90)
        site.session.execute(
            f"UPDATE {MARKS}.spark_ddl SET frozen = %s WHERE job_id = 7", [to_json({5: FrozenTable(7, "up", "frozen", {1: "id"})})]
        )
        found = site.verified()
        seen = {name: (t.tally and (t.tally.rows, t.tally.differing), t.differs) for name, t in found.items()}
        assert seen == {
            "some_rows": (None, False),
            "some_columns": ((2, 0), False),
            "renamed": ((2, 0), False),
            "frozen": (None, False),
            "computed": ((2, 0), False),
            "own_columns": ((2, 0), False),
            "gone": (None, True),
            "lacks": ((2, 0), True),
        }
        words = {name: [one.words for one in t.left_out] for name, t in found.items()}
        assert words["some_rows"] == ["its route replicates only rows with v > 1"] and words["gone"] == ["the target has no such table"]
        assert words["some_columns"] == ["w: its route leaves it out"] and words["lacks"] == ["column w missing"]
        assert words["computed"] == ["v: it is computed"] and "up.frozen is frozen since the DDL of job 7" in words["frozen"][0]
    finally:
        site.close()


# What happens while it reads.


def test_rows_written_behind_s_are_not_seen(site: VerifySite) -> None:
    filled(site, 1000)
    run = site.run()
    run.pace.size = 10
    seen: list[int] = []

    def write(done: RoundDone) -> None:
        rows = done.tally.rows
        seen.append(rows)
        site.sql(f"UPDATE up.t SET v = 'later' WHERE w = {rows + 1}", f"DELETE FROM down.t WHERE w = {rows + 15}")

    assert [(t.tally.rows, t.tally.differing) for t in tables_of(run, write)] == [(1000, 0)]
    assert len(seen) > 1


def test_a_ddl_does_not_wait_for_the_snapshot(site: VerifySite) -> None:
    filled(site, 200)
    run = site.run()
    run.pace.size = 20
    took: list[float] = []

    def alter(done: RoundDone) -> None:
        if not took:
            site.sql("SET SESSION lock_wait_timeout = 5")
            since = time.monotonic()
            site.sql("ALTER TABLE down.t ADD KEY (w)")
            took.append(time.monotonic() - since)

    (found,) = tables_of(run, alter)
    assert took[0] < 2 and (found.tally.rows, found.tally.differing) == (200, 0)


def test_a_table_whose_ddl_runs_meanwhile_is_read_again(site: VerifySite) -> None:
    """An instant DROP and ADD of a column raises no error, and an older snapshot shows the new column."""
    filled(site, 200)
    run = site.run()
    run.pace.size = 20
    altered: list[int] = []

    def alter(done: RoundDone) -> None:
        if not altered:
            altered.append(done.tally.rows)
            site.record_ddl(9, "intent", 110)
            site.both("ALTER TABLE {}.t DROP COLUMN w, ALGORITHM=INSTANT", "ALTER TABLE {}.t ADD COLUMN w INT DEFAULT 7, ALGORITHM=INSTANT")
            site.record_ddl(9, "done", 110)
            site.at(110)
            site.hold()

    (found,) = tables_of(run, alter)
    assert (found.ts, found.tally.rows, found.differs) == (110, 200, False)


def later_ddl(site: VerifySite, query: str = "") -> None:
    """A DDL has run that names no table, as ``RECOVER TABLE BY JOB`` does, or another one."""
    site.record_ddl(site.ts, "done", site.ts + 10, query=query)
    site.at(site.ts + 10)
    site.hold()


def test_ddls_between_rounds_do_not_keep_a_table_from_its_end(site: VerifySite) -> None:
    filled(site, 300)
    site.sql("UPDATE down.t SET v = 'x' WHERE id IN (6, 870)")
    run = site.run()
    run.pace.size = 20
    seen = list[int]()

    def ddl(done: RoundDone) -> None:
        later_ddl(site)
        run.pace.size = 20
        seen.append(done.tally.rows)

    (found,) = tables_of(run, ddl)
    assert (found.tally.rows, found.tally.differing) == (300, 2) and len(seen) > 5 and found.ts == 100 + 10 * len(seen)


def test_a_key_that_changes_meanwhile_is_read_from_its_begin(site: VerifySite) -> None:
    filled(site, 300)
    run = site.run()
    run.pace.size = 20
    seen = list[int]()

    def ddl(done: RoundDone) -> None:
        seen.append(done.tally.rows)
        if len(seen) == 2:
            site.both("ALTER TABLE {}.t DROP PRIMARY KEY, MODIFY id BIGINT NOT NULL, MODIFY v VARCHAR(40) NOT NULL, ADD PRIMARY KEY (v)")
            later_ddl(site)
            run.pace.size = 20

    (found,) = tables_of(run, ddl)
    assert (found.tally.rows, found.tally.differing) == (300, 0) and seen[2] <= seen[1]


@pytest.mark.parametrize("columns", ["v INT", "v INT PRIMARY KEY"])
@pytest.mark.parametrize(
    "query", ["ALTER TABLE other ADD COLUMN w INT", "ALTER TABLE pt EXCHANGE PARTITION p WITH TABLE `T`", "ALTER DATABASE up"]
)
def test_ddls_of_other_tables_do_not_keep_a_table_from_its_end(
    site: VerifySite, columns: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.both(f"CREATE TABLE {{}}.t ({columns})", "INSERT INTO {}.t SELECT seq FROM seq_1_to_20")
    reader = table_comparison.TableReader
    for method in (reader.compare_range, reader.compare_all):

        def ddl_behind(*given: Any, read: Any = method) -> None:
            read(*given)
            later_ddl(site, query)

        monkeypatch.setattr(reader, method.__name__, ddl_behind)
    monkeypatch.setattr(site, "settings", {"parts": 1})
    (found,) = tables_of(site.run())
    if "other" in query:
        assert (found.ts, found.differs, found.tally.rows) == (100, False, 20) and found.ddls[0] == 1
    else:
        assert found.tally is None and found.differs and "a DDL ran" in found.left_out[0].words


def test_a_table_that_never_stays_is_named(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site, 300)
    read = table_comparison.TableReader.compare_range

    def compare_range(reader: table_comparison.TableReader, *given: object) -> None:
        read(reader, *given)
        later_ddl(site)

    monkeypatch.setattr(table_comparison.TableReader, "compare_range", compare_range)
    monkeypatch.setattr(site, "settings", {"parts": 1})
    (found,) = tables_of(site.run())
    assert found.tally is None and found.differs and "a DDL ran while the table was read" in found.left_out[0].words


def copying(site: VerifySite) -> None:
    record = CopyRecord(site.session, 1, MARKS)
    record.ensure()
    record.begin(CopyHead(CopyKind.TABLES, 100), [])


@pytest.mark.parametrize(
    ("hinder", "words"),
    [
        (lambda site: site.at(100, consistent=False), "a span behind 100 is half applied"),
        (lambda site: copying(site), "tables are being copied"),
        (lambda site: site.record_ddl(3, "intent", 100), "the DDL of job 3 is under way"),
        (lambda site: site.record_ddl(3, "done", 130), "the DDL of job 3 is executed before its time"),
        (lambda site: site.record_ddl(3, "done", 90, early=1, version=5), "the DDL of job 3 is executed before its time"),
    ],
    ids=["open span", "copy", "ddl under way", "ddl beyond S", "early ddl"],
)
def test_it_waits_until_the_target_is_a_copy(site: VerifySite, hinder: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site, 20)
    assert callable(hinder)
    hinder(site)
    monkeypatch.setattr(standing, "SETTLE_SECONDS", 0.3)
    with pytest.raises(NotUsableYet, match=words):
        site.verified()
    monkeypatch.setattr(standing, "SETTLE_SECONDS", 30.0)
    run = site.run()

    def settle() -> None:
        with standing.connect(site.config.target, site.config.apply) as other:
            other.execute(f"DELETE FROM {MARKS}.spark_ddl")
            other.execute(f"DROP TABLE IF EXISTS {MARKS}.spark_bootstrap")
            other.execute(f"UPDATE {MARKS}.checkpoint SET checkPoint = REPLACE(checkPoint, 'false', 'true')")
            other.commit()

    later = threading.Timer(0.3, settle)
    later.start()
    assert [t.tally.differing for t in tables_of(run)] == [0]
    later.join()


def test_a_target_that_is_never_whole_has_the_drainer_rest(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch follows batch: only a rest makes it a copy."""
    filled(site, 20)
    site.at(100, consistent=False)
    asked = list[float]()

    def rest(seconds: float) -> str:
        asked.append(seconds)
        site.at(100, consistent=True)
        return ""

    monkeypatch.setattr(standing, "SETTLE_SECONDS", 0.2)
    run = site.run()
    run.readers._rest = rest
    assert [t.tally.differing for t in tables_of(run)] == [0] and asked == [standing.REST_SECONDS, 0.0]
    run = site.run()
    run.readers._rest = lambda seconds: "it does not answer"
    site.at(100, consistent=False)
    with pytest.raises(NotUsableYet, match="half applied.*asked to rest: it does not answer"):
        tables_of(run)


def test_a_refused_ddl_does_not_hinder(site: VerifySite) -> None:
    filled(site, 20)
    site.record_ddl(3, "refused", 130)
    assert site.table().tally.differing == 0


def test_it_waits_for_a_transaction_and_holds_up_none(site: VerifySite) -> None:
    filled(site, 20)
    with standing.connect(site.config.target, site.config.apply) as writer, standing.connect(site.config.target, site.config.apply) as part:
        writer.begin()
        lease.check(writer, site.lease)
        writer.execute("UPDATE down.t SET v = 'half' WHERE id = 3")
        run, found = site.run(), list[VerifiedTable]()
        reading = threading.Thread(target=lambda: found.extend(tables_of(run)))
        reading.start()
        time.sleep(0.3)
        since = time.monotonic()
        part.begin()
        lease.check(part, site.lease)
        part.commit()
        assert time.monotonic() - since < 0.5 and not found, "a part behind the lock need not wait"
        writer.rollback()
        reading.join(30)
    assert [t.tally.differing for t in found] == [0]


def test_a_promoted_target_and_one_without_a_drainer_are_refused(site: VerifySite) -> None:
    lease.promote(site.session, site.lease)
    with pytest.raises(ConfigError, match="promoted"):
        site.verified()
    site.sql(f"DELETE FROM {MARKS}.spark_lease")
    with pytest.raises(ConfigError, match="no Drainer of this project has written to it"):
        site.verified()


def test_a_server_that_is_restarted_is_waited_for(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site, 20)
    run = site.run()
    away, opened = [True, True, True], run.readers.standing

    def standing_again() -> contextlib.AbstractContextManager[standing.StandingReaders]:
        if away and away.pop():
            raise RetryableApplyError("cannot connect", 2003)
        return opened()

    monkeypatch.setattr(run.readers, "standing", standing_again)
    assert [t.tally.differing for t in tables_of(run)] == [0] and not away
    away += [True] * 9
    monkeypatch.setattr(verification, "_AWAY", RetryPolicy(2, pause=lambda seconds: None))
    with pytest.raises(RetryableApplyError, match="cannot connect"):
        tables_of(run)


def test_readers_are_replaced_by_younger_ones(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site, 200)
    run = site.run()
    run.pace.size = 20
    monkeypatch.setattr(verification, "MOST_SECONDS", 0.0)
    site.hold(30)

    def write(done: RoundDone) -> None:
        rows = done.tally.rows
        site.both(f"INSERT INTO {{}}.t VALUES ({-rows}, 'new', 1)", f"DELETE FROM {{}}.t WHERE w = {rows + 30}")
        site.at(site.ts + 1)
        site.hold(6)
        run.pace.size = 20

    (found,) = tables_of(run, write)
    assert found.ts > 101 and not found.differs


# A run that ends early.


def recorded(site: VerifySite, tmp_path: Path) -> VerificationTable:
    return VerificationTable(str(tmp_path / "delta-verification"), 3600.0, site.session.flavour, "all tables")


def test_a_run_that_was_ended_goes_on(site: VerifySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said at the end of the first run, as by a kill."""
    monkeypatch.setattr(verification_table, "_EVERY", 0.0)
    filled(site, 300)
    for name in ("a", "b", "c"):
        site.both(f"CREATE TABLE {{}}.{name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {{}}.{name} VALUES (1, 1), (2, 2)")
    site.sql(
        "UPDATE down.b SET v = 3 WHERE id = 2", "UPDATE down.t SET v = 'x' WHERE id = 810", "CREATE TABLE up.missing (id INT PRIMARY KEY)"
    )
    record, run = recorded(site, tmp_path), site.run()
    assert record.begin(afresh=False) == Begun()
    run.pace.size = 20
    for event in run.run():
        run.pace.size = 20
        if isinstance(event, VerifiedTable):
            record.note_table(event, [])
            continue
        record.note_part(event)
        if event.tally.rows >= 150:
            break
    assert not record.trouble
    again = recorded(site, tmp_path).begin(afresh=False)
    assert again.run and again.tables == {"up.a": (100, 2), "up.c": (100, 2)} and again.parts.keys() == {"up.t"}
    assert 150 <= again.parts["up.t"].rows < 270 and again.parts["up.t"].end == (str(3 * again.parts["up.t"].rows + 3).encode(),)
    run = site.run()
    found = {table.name: table for table in tables_of(run, begun=again)}
    assert found.keys() == {"up.b", "up.missing", "up.t"}, "what differs is read again"
    assert (found["up.t"].tally.rows, kinds(found["up.t"])) == (300, [(Kind.CHANGED, "810")])
    assert recorded(site, tmp_path).begin(afresh=True) == Begun()
    newest = recorded(site, tmp_path)
    assert newest.begin(afresh=False).tables == {}, "the run that was begun afresh is the one that is continued"
    newest.end()
    assert not recorded(site, tmp_path).begin(afresh=False).run
    other = VerificationTable(newest.uri, 3600.0, site.session.flavour, "shop.*")
    assert not other.begin(afresh=False).run


@pytest.mark.parametrize("key", ["", "{", "[]", "{}", '{"columns": 1, "end": "[]"}', '{"columns": ["a"], "end": "[1]"}'])
def test_a_record_that_cannot_be_read_has_the_run_begin_anew(site: VerifySite, tmp_path: Path, key: str) -> None:
    record = recorded(site, tmp_path)
    record.begin(afresh=False)
    record._write([{"kind": "part", "table": "up.t", "commit_ts": 100, "rows": 5, "key": key}])
    record.flush()
    begun = recorded(site, tmp_path).begin(afresh=False)
    assert (begun.run, begun.parts) == ("", {}) and "of kind part that no verify has written" in begun.unreadable
    assert not recorded(site, tmp_path).begin(afresh=False).unreadable


def test_old_rows_go_but_for_those_that_close_findings(site: VerifySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        site.both(f"CREATE TABLE {{}}.{name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {{}}.{name} VALUES (1, 1), (2, 2)")
    record = recorded(site, tmp_path)

    def run_at(ts: int) -> list[tuple[str, str, int]]:
        site.at(ts)
        record.begin(afresh=True)
        for event in tables_of(site.run()):
            record.note_table(event, [])
        record.end()
        rows = found_at(
            record.uri, "SELECT kind, target, commit_ts FROM t WHERE kind NOT IN ('begin', 'end') ORDER BY kind, target, commit_ts"
        )
        return [(row["kind"], row["target"].replace("`", ""), row["commit_ts"]) for row in rows]

    monkeypatch.setattr(record, "_kept", datetime.timedelta(days=1))
    assert run_at(100) == [("table", "down.a", 100), ("table", "down.b", 100)]
    site.sql("UPDATE down.b SET v = 3")
    run_at(110)
    monkeypatch.setattr(record, "_kept", datetime.timedelta(seconds=0.3))
    time.sleep(0.5)
    kept = [("changed", "down.b", 120)] * 2 + [
        ("table", "down.a", 120),
        ("table", "down.b", 100),
        ("table", "down.b", 110),
        ("table", "down.b", 120),
    ]
    assert run_at(120) == kept and not record.trouble
    assert equal_upto(record.uri) == {"`down`.`a`": 120, "`down`.`b`": 100}


def test_a_run_that_differs_behind_its_equal_rows_goes_on_before_them(site: VerifySite) -> None:
    filled(site, 300)
    site.sql("UPDATE down.t SET v = 'x' WHERE id = 90")
    run = site.run()
    run.pace.size = 20
    ends = list[EqualRows]()

    def between(done: RoundDone) -> None:
        assert done.equal is not None
        ends.append(done.equal)
        run.pace.size = 20

    tables_of(run, between)
    assert ends[-1].rows == 20 and ends[-1].end == (b"63",)


def test_a_table_that_only_the_target_has_is_named(site: VerifySite) -> None:
    site.both("CREATE TABLE {}.t (id INT PRIMARY KEY)")
    site.sql("CREATE TABLE down.left_over (id INT)", "CREATE VIEW down.seen AS SELECT 1")
    found = site.verified()
    (words,) = found.pop("down.left_over").left_out
    assert words.by_intent and "only the target has it" in words.words
    assert found.keys() == {"t"} and site.verified("up.*").keys() == {"t"}


def test_what_cannot_be_recorded_is_said(site: VerifySite, tmp_path: Path) -> None:
    (tmp_path / "delta-verification").write_text("in the way")
    record = recorded(site, tmp_path)
    record.begin(afresh=False)
    assert record.trouble


# The command.


def test_the_command_prints_what_differs(site: VerifySite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(site, 50)
    site.both("CREATE TABLE {}.other (id INT PRIMARY KEY)", "INSERT INTO {}.other VALUES (1)")
    site.sql("UPDATE down.t SET v = 'it''s' WHERE id = 6")
    file = site.written(tmp_path)
    site.hold()
    assert verify.main(["-config", str(file)], site.source) == 1
    said = capsys.readouterr().out
    assert "up.other: 1 rows at 100 (" in said and "up.t: 50 rows at 100 (" in said and "): 1 rows DIFFER" in said
    assert "  -- changed: id = 6 (v)\n     v: 'v2' upstream, 'it''s' at the target\n2 tables" in said and "UPDATE" not in said
    assert said.endswith("2 tables, 51 rows: 50 equal, 1 differing; 0 tables not compared\n")
    site.hold()
    assert verify.main(["-config", str(file), "--repair"], site.source) == 1
    assert "  -- changed: id = 6 (v)\n  UPDATE `down`.`t` SET `v` = 'v2' WHERE `id` = 6;\n" in capsys.readouterr().out
    site.hold()
    assert verify.main(["-config", str(file), "--json", "--tables", "up.t"], site.source) == 1
    table, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert (table["table"], table["rows"], table["equal"], table["differing"], table["commit_ts"]) == ("up.t", 50, 49, 1, 100)
    assert table["differences"] == [
        {"kind": "changed", "key": {"id": "6"}, "columns": ["v"], "times": 1, "sql": ["UPDATE `down`.`t` SET `v` = 'v2' WHERE `id` = 6"]}
    ]
    assert total == {"tables": 1, "rows": 50, "equal": 49, "differing": 1, "not_compared": 0, "definitions": 0, "repaired": 0}
    site.hold()
    assert verify.main(["-config", str(file), "--tables", "UP.other", "--rate", "1000"], site.source) == 0


def test_settings_that_have_nothing_to_compare_are_refused(site: VerifySite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = site.written(tmp_path)
    with pytest.raises(ConfigError, match="spark.upstream.host is empty"):
        verify.main(["-config", str(file)])
    with pytest.raises(ConfigError, match="--rate is -1"):
        verify.main(["-config", str(file), "--rate", "-1"], site.source)
    filled(site, 5)
    site.hold(3)
    with pytest.raises(ConfigError, match="--tables nothing,up.x: no table that is replicated has such a name"):
        verify.main(["-config", str(file), "--tables", "up.t,nothing,down.t,up.x"], site.source)
    with pytest.raises(ConfigError, match="--others-stopped says something about --apply"):
        verify.main(["-config", str(file), "--others-stopped"], site.source)
    site.sql("DROP TABLE up.t, down.t")
    assert verify.main(["-config", str(file)], site.source) == 1
    assert "no table was compared" in capsys.readouterr().out
    ring = tmp_path / "ring.toml"
    ring.write_text(file.read_text().replace("[syncer]\n", "[syncer]\nloopback-control = true\nchannel-id = 1\n"))
    with pytest.raises(ConfigError, match="in a ring"):
        verify.main(["-config", str(ring)], site.source)
    ring.write_text('[syncer]\ndb-type = "file"\n')
    with pytest.raises(ConfigError, match="has no tables on a server"):
        verify.main(["-config", str(ring)])


def test_an_upstream_of_another_cluster_is_refused(
    site: VerifySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(site, 5)
    known = {"another": "10.0.0.9:4000"}
    monkeypatch.setattr(site.source, "servers", lambda: (TidbServer("its own", "10.0.0.1:4000", "On"),))
    for name, value in {
        "upstream_of": lambda upstream: site.source,
        "with_collations": lambda config: config,
        "history_at": lambda *given: None,
        "ports_at": lambda history, tls: SimpleNamespace(servers=lambda: known),
    }.items():
        monkeypatch.setattr(verify, name, value)
    command = ["-config", str(site.written(tmp_path))]
    with pytest.raises(BootstrapRefused, match=r"servers 10\.0\.0\.1:4000 \(its own\); cluster 1 has 10\.0\.0\.9:4000 \(another\)"):
        verify.main(command)
    site.hold()
    known.clear()
    assert verify.main(command) == 0 and "not known whether spark.upstream" in capsys.readouterr().err


# Which table it is.


def twins(site: VerifySite, *names: str) -> None:
    for name in names:
        site.both(f"CREATE TABLE {{}}.{name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {{}}.{name} SELECT seq, seq FROM seq_1_to_20")


def test_a_table_that_is_renamed_meanwhile_is_compared_by_its_new_name(site: VerifySite) -> None:
    twins(site, "a", "b", "c")
    site.sql("UPDATE down.c SET v = -1 WHERE id = 7")
    found = dict[str, VerifiedTable]()
    for event in site.run().run():
        found[event.name] = event
        if event.name == "up.a":
            site.both("RENAME TABLE {}.c TO {}.aa")
            later_ddl(site)
    assert {name: table.tally and table.tally.differing for name, table in found.items()} == {
        "up.a": 0,
        "up.b": 0,
        "up.c": None,
        "up.aa": 1,
    }


def test_another_table_of_a_name_is_compared_again(site: VerifySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables swap their names after the first was compared: the second was not, whatever it is called."""
    twins(site, "a", "b")
    ids = {("up", "a"): 5, ("up", "b"): 6}
    monkeypatch.setattr(site.source, "table_ids", lambda session: ids)
    site.sql("UPDATE down.b SET v = -1 WHERE id = 7")
    record = recorded(site, tmp_path)
    record.begin(afresh=False)
    record.note_table(next(site.run().run()), [])
    record.flush()
    site.both("RENAME TABLE {}.a TO {}.x, {}.b TO {}.a, {}.x TO {}.b")
    ids |= {("up", "a"): 6, ("up", "b"): 5}
    later_ddl(site)
    begun = recorded(site, tmp_path).begin(afresh=False)
    assert begun.ids == {"up.a": 5}
    assert {table.name: table.tally.differing for table in tables_of(site.run(), begun=begun)} == {"up.a": 1, "up.b": 0}


def test_a_run_that_is_continued_with_another_column_compares_it_in_all_rows(site: VerifySite) -> None:
    filled(site, 300)
    site.sql("ALTER TABLE down.t DROP COLUMN w")
    run = site.run()
    run.pace.size = 20
    ends = list[EqualRows]()
    (found,) = tables_of(run, lambda done: ends.append(done.equal))
    assert "column w missing" in [one.words for one in found.left_out] and ends[-1].rows >= 100
    site.sql(found.left_out[0].mend)
    (found,) = tables_of(site.run(), begun=Begun(parts={"up.t": ends[-1]}))
    assert found.tally.differing == 300


@pytest.mark.parametrize("ddl", ["DROP COLUMN w", "MODIFY COLUMN w BIGINT", "RENAME TO down.other"])
def test_changed_rows_are_compared_again_after_a_ddl(site: VerifySite, ddl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it runs before the definitions are read, or after that."""
    filled(site, 20)
    run, pair = site.run(), verification.Verification._pair

    def altered(*given: Any) -> object:
        found = pair(*given)
        site.record_ddl(9, "intent", 105)
        site.sql(f"ALTER TABLE down.t {ddl}")
        return found

    run.at()
    monkeypatch.setattr(verification.Verification, "_pair", altered)
    with contextlib.closing(run), pytest.raises(verification.AGAIN):
        run.changed(("up", "t"), [{"id": 3}])
    monkeypatch.undo()
    site.record_ddl(9, "done", 95)
    site.hold()
    run._stand(afresh=True)
    site.record_ddl(10, "intent", 105)
    site.sql("DROP TABLE IF EXISTS down.t")
    with contextlib.closing(run), pytest.raises(verification.AGAIN, match="a DDL ran"):
        run.changed(("up", "t"), [{"id": 3}])
