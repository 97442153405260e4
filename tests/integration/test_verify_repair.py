"""``verify --apply``: each difference is made right and nothing else is touched, while a writer, a person or a crash comes between."""

import dataclasses
import json
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.jobs import ctl, verify
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, table_json
from pyspark_tidb_binlog.jobs.lab.emulator.values import EVERY_TYPE, value_for
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, NotUsableYet
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaFindings
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.retry_policy import ONCE, RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.verify import repairing, standing, table_pair
from pyspark_tidb_binlog.sinks.verify.canonical import Form
from pyspark_tidb_binlog.sinks.verify.repair import Difference, Kind
from pyspark_tidb_binlog.sinks.verify.repairing import RepairedTable, Repairing
from pyspark_tidb_binlog.sinks.verify.standing import Readers
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from tests.support.eventually import eventually
from tests.support.killed_fork import killed_at_each_statement
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import rows_of
from tests.support.verify_site import MARKS, HeldSnapshots, VerifySite

pytestmark = pytest.mark.mysql


class PresentSnapshots(HeldSnapshots):
    """What is committed upstream when it is asked for: S, while the upstream stands still."""

    def _open_at(self, ts: int) -> Session:
        self.hold(ts, 1)
        return super()._open_at(ts)


@pytest.fixture
def site(mariadb: PrivateMariaDB) -> Iterator[VerifySite]:
    made = VerifySite(mariadb, {"parts": 1})
    made.source = PresentSnapshots(mariadb.target())
    yield made
    made.close()


def repaired(site: VerifySite, table: VerifiedTable) -> RepairedTable:
    return Repairing(Readers(site.config, 1, site.source, 1)).repair(table)


def lines(differences: list[Difference]) -> list[tuple[Kind, str]]:
    return [(d.kind, "/".join(d.key.values())) for d in differences]


def filled(site: VerifySite, rows: int = 20) -> None:
    site.both(
        "CREATE TABLE {}.t (id BIGINT PRIMARY KEY, v VARCHAR(40) COLLATE utf8mb4_general_ci, u INT UNIQUE)",
        f"INSERT INTO {{}}.t SELECT seq, CONCAT('v', seq), seq FROM seq_1_to_{rows}",
    )


def same(site: VerifySite, *names: str) -> bool:
    return all(rows_of(site.server, f"up.{name}") == rows_of(site.server, f"down.{name}") for name in names or ("t",))


def beside(site: VerifySite) -> Session:
    """Another connection."""
    return connect(site.config.target, site.config.apply)


# What is repaired.


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """LONGTEXT is compared as JSON: a MariaDB has JSON as a text, whose equal documents are different texts."""
    forms = table_pair.form_of_both
    monkeypatch.setattr(table_pair, "form_of_both", lambda one, other: Form.DOCUMENT if one.kind == "longtext" else forms(one, other))


@pytest.mark.usefixtures("documents")
def test_rows_with_a_key(site: VerifySite) -> None:
    site.both(
        "CREATE TABLE {}.t (id INT PRIMARY KEY, v VARCHAR(9), at TIMESTAMP(3) NULL ON UPDATE CURRENT_TIMESTAMP(3), d JSON)",
        "INSERT INTO {}.t SELECT seq, 'a', '2020-01-01', '{\"a\": 1, \"b\": 2}' FROM seq_1_to_9",
    )
    site.sql(
        "ALTER TABLE down.t ADD COLUMN mine INT DEFAULT 7",
        """UPDATE down.t SET mine = id, d = '{"b":2,"a":1.0}'""",
        "UPDATE down.t SET at = '2020-01-01'",
        "UPDATE down.t SET v = 'A', at = '2020-01-01' WHERE id = 1",
        "UPDATE down.t SET d = NULL, v = '', at = NULL WHERE id = 2",
        "DELETE FROM down.t WHERE id = 3",
        "INSERT INTO down.t VALUES (10, 'x', NULL, NULL, 10)",
    )
    done = repaired(site, site.table())
    assert lines(done.repaired) == [(Kind.EXTRA, "10"), (Kind.CHANGED, "1"), (Kind.CHANGED, "2"), (Kind.MISSING, "3")]
    assert (done.right, done.left, site.table().tally.differing) == (0, [], 0)
    kept = site.session.query("SELECT id, mine, d FROM down.t ORDER BY id")
    assert [mine for _, mine, _ in kept] == [1, 2, 7, *range(4, 10)], "the target's own column"
    assert [d for _, _, d in kept] == [
        '{"b":2,"a":1.0}',
        '{"a": 1, "b": 2}',
        '{"a": 1, "b": 2}',
        *['{"b":2,"a":1.0}'] * 6,
    ], "an equal document stays as it is written"


@pytest.mark.usefixtures("documents")
def test_rows_without_a_key(site: VerifySite) -> None:
    site.both(
        "CREATE TABLE {}.t (a INT, b VARCHAR(9), c BLOB, d DOUBLE, e JSON)",
        "INSERT INTO {}.t SELECT seq MOD 5, 'x', NULL, 0.1, '{\"a\": 1, \"b\": 2}' FROM seq_1_to_50",
    )
    site.sql("""UPDATE down.t SET e = '{"b":2.0,"a":1}' WHERE a < 3 LIMIT 20""")
    assert not site.table().differs
    site.sql(
        "DELETE FROM down.t WHERE a = 3 LIMIT 2",
        "INSERT INTO down.t SELECT * FROM down.t WHERE a = 1 LIMIT 3",
        "UPDATE down.t SET b = NULL WHERE a = 0 LIMIT 1",
        "INSERT INTO down.t VALUES (NULL, '', '', NULL, NULL), (NULL, NULL, '', NULL, NULL)",
        """INSERT INTO down.t VALUES (2, 'x', NULL, 0.1, '{"b":2, "a":1}'), (2, 'x', NULL, 0.1, '{"b":2, "a":1.00}')""",
    )
    found = site.table()
    assert found.tally.differing == 2 + 3 + 2 + 2 + 2
    done = repaired(site, found)
    assert (sum(d.times for d in done.repaired), done.left, site.table().tally.differing) == (11, [], 0)
    kept = site.session.query("SELECT COUNT(*), CAST(SUM(e LIKE '%2.0%') AS SIGNED) FROM down.t WHERE a = 0")
    assert kept == [(10, 5)], "equal documents stay as they are written"


def test_rows_that_are_in_the_way_of_others(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2 has the value of row 1, row 3 that of row 2, and so on: each is right only after the next. Rows that have swapped theirs are named."""
    monkeypatch.setattr(repairing, "_TOGETHER", 2)
    filled(site, 9)
    site.sql(
        "DELETE FROM down.t WHERE id = 1",
        *(f"UPDATE down.t SET u = {number - 1} WHERE id = {number}" for number in range(2, 7)),
        "UPDATE down.t SET u = NULL WHERE id = 8",
        "UPDATE down.t SET u = 8 WHERE id = 9",
        "UPDATE down.t SET u = 9 WHERE id = 8",
    )
    done = repaired(site, site.table())
    assert sorted(lines(done.repaired)) == [*((Kind.CHANGED, str(number)) for number in range(2, 7)), (Kind.MISSING, "1")]
    assert [(*lines([left.difference]), left.why) for left in done.left] == [
        ((Kind.CHANGED, "8"), "Duplicate entry '8' for key 'u'"),
        ((Kind.CHANGED, "9"), "Duplicate entry '9' for key 'u'"),
    ]
    assert lines(site.table().tally.listed) == [(Kind.CHANGED, "8"), (Kind.CHANGED, "9")]


def test_keys_that_a_collation_takes_for_one(site: VerifySite) -> None:
    site.both("CREATE TABLE {}.t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)", "INSERT INTO {}.t VALUES ('b', 1)")
    site.sql("INSERT INTO up.t VALUES ('a', 1)", "INSERT INTO down.t VALUES ('A', 1)")
    found = site.table()
    missing = found.tally.differences.pop((b"a",))
    done = repaired(site, found)
    assert (lines(done.repaired), done.right, done.left) == ([(Kind.EXTRA, "'A'")], 0, [])
    found.tally.differences = {(b"a",): missing}
    done = repaired(site, found)
    assert (lines(done.repaired), done.right, same(site)) == ([(Kind.MISSING, "'a'")], 0, True)


def test_a_row_that_the_target_makes_another_one_is_named_and_left(site: VerifySite) -> None:
    filled(site)
    site.sql(
        "CREATE TABLE down.log (id INT)",
        "CREATE TRIGGER down.odd BEFORE UPDATE ON down.t FOR EACH ROW SET NEW.v = IF(NEW.id MOD 2, 'odd', NEW.v)",
        "CREATE TRIGGER down.noted AFTER UPDATE ON down.t FOR EACH ROW INSERT INTO down.log VALUES (NEW.id)",
        "UPDATE down.t SET v = NULL WHERE id IN (4, 6)",
        "UPDATE down.t SET u = NULL WHERE id = 7",
        "DELETE FROM down.log",
    )
    before = site.session.query("SELECT * FROM down.t WHERE id = 7")
    done = repaired(site, site.table())
    assert (lines(done.repaired), [left.why for left in done.left]) == ([(Kind.CHANGED, "4"), (Kind.CHANGED, "6")], [repairing.ANOTHER_ROW])
    assert site.session.query("SELECT * FROM down.t WHERE id = 7") == before == [(7, "odd", None)]
    assert site.session.query("SELECT id FROM down.log ORDER BY id") == [(4,), (6,)]


# What happens between the comparison and the repair.


def test_what_is_there_now_counts(site: VerifySite) -> None:
    filled(site)
    site.both("CREATE TABLE {}.log (a INT)", "INSERT INTO {}.log VALUES (1), (2)")
    site.sql(
        "UPDATE down.t SET v = 'x' WHERE id IN (1, 2, 3)",
        "DELETE FROM down.t WHERE id IN (4, 5)",
        "INSERT INTO down.t VALUES (99, 'y', 99)",
    )
    site.sql("INSERT INTO down.log VALUES (1), (1), (7)", "DELETE FROM down.log WHERE a = 2")
    found = site.verified()
    # The stream changes row 1 and deletes row 2, a person makes others right or otherwise wrong.
    site.both("UPDATE {}.t SET v = 'new', u = 100 WHERE id = 1", "DELETE FROM {}.t WHERE id = 2")
    site.sql(
        "UPDATE down.t SET v = 'v3', u = 33 WHERE id = 3",
        "INSERT INTO down.t VALUES (4, 'v4', 4), (5, 'V5', 5)",
        "DELETE FROM down.t WHERE id = 99",
    )
    site.sql("INSERT INTO up.log VALUES (1), (7), (7)", "INSERT INTO down.log VALUES (2), (2)")
    site.at(110)
    done, of_log = repaired(site, found["t"]), repaired(site, found["log"])
    assert (done.ts, done.right, done.left) == (110, 4, [])
    assert [(d.kind, d.key["id"], d.changed) for d in done.repaired] == [(Kind.CHANGED, "3", ["u"]), (Kind.CHANGED, "5", ["v"])]
    assert (sorted((d.kind, d.times, *d.key.values()) for d in of_log.repaired), of_log.right) == (
        [(Kind.MISSING, 1, "7"), (Kind.EXTRA, 1, "1"), (Kind.EXTRA, 1, "2")],
        0,
    )
    assert same(site, "t", "log")


def test_the_upstream_is_read_at_the_records_s(site: VerifySite) -> None:
    """What is committed upstream behind S comes by the stream."""
    site.source = HeldSnapshots(site.server.target())
    filled(site)
    site.sql("UPDATE down.t SET v = 'x' WHERE id IN (1, 2)")
    found = site.table()
    site.both("UPDATE {}.t SET v = 'at 110' WHERE id = 1")
    site.at(110)
    site.hold()
    site.sql("UPDATE up.t SET v = 'at 120' WHERE id IN (1, 2)")
    done = repaired(site, found)
    assert (done.ts, done.right, lines(done.repaired)) == (110, 1, [(Kind.CHANGED, "2")])
    assert site.session.query("SELECT v FROM down.t WHERE id < 3 ORDER BY id") == [("at 110",), ("v2",)]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_it_waits_for_a_transaction_and_the_next_one_waits_for_it(site: VerifySite, keyed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    if not keyed:
        site.both("ALTER TABLE {}.t DROP PRIMARY KEY, DROP KEY u")
    site.sql("UPDATE down.t SET v = 'x' WHERE id = 1")
    found, done, stopped, go_on = site.table(), list[RepairedTable](), threading.Event(), threading.Event()
    committed = Session.commit

    def commit(session: Session) -> None:
        if threading.current_thread() is repairs:
            stopped.set()
            assert go_on.wait(30)
        committed(session)

    monkeypatch.setattr(Session, "commit", commit)
    repairs = threading.Thread(target=lambda: done.append(repaired(site, found)))
    with beside(site) as writer:
        writer.begin()
        lease.check(writer, site.lease)
        writer.execute("UPDATE down.t SET v = 'half' WHERE id = 1")
        repairs.start()
        assert not stopped.wait(0.5)
        writer.rollback()
        assert stopped.wait(30)
        writer.execute("SET SESSION innodb_lock_wait_timeout = 1")
        writer.begin()
        with pytest.raises(Exception, match="Lock wait timeout"):
            lease.check(writer, site.lease)
        writer.rollback()
        go_on.set()
        repairs.join(30)
        writer.begin()
        lease.check(writer, site.lease)
        assert writer.query("SELECT v FROM down.t WHERE id = 1") == [("v1",)]
    assert not done[0].left and same(site)


def test_a_row_that_somebody_else_has_locked_holds_up_the_stream_for_a_second(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "FEW", ONCE)
    filled(site)
    site.sql("UPDATE down.t SET v = 'x' WHERE id = 1")
    found, since = site.table(), time.monotonic()
    with beside(site) as other:
        other.begin()
        other.execute("UPDATE down.t SET v = 'y' WHERE id = 1")
        done = repaired(site, found)
        assert [left.why for left in done.left] == [repairing.LOCKED] and time.monotonic() - since < 10
        other.rollback()
    assert not repaired(site, found).left and same(site)


class Halting(PresentSnapshots):
    """An upstream that does not answer any more, from its first use, or from that for the rows."""

    server: PrivateMariaDB
    at_once = False
    halted = 0

    def _halt(self) -> None:
        self.halted += 1
        os.kill(self.server.pid, signal.SIGSTOP)

    @contextmanager
    def newest(self) -> Iterator[Session]:
        if self.at_once:
            self._halt()
        with super().newest() as session:
            yield session

    def _open_at(self, ts: int) -> Session:
        self._halt()
        return super()._open_at(ts)


@pytest.mark.parametrize("at_once", [True, False])
def test_an_upstream_that_does_not_answer_holds_up_the_stream_for_one_timeout(
    site: VerifySite, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "FEW", RetryPolicy(retries=2))
    filled(site)
    site.sql("UPDATE down.t SET v = 'x' WHERE id = 1")
    found, failed = site.table(), list[BaseException]()
    with RealMariaDB() as upstream:
        source = Halting(dataclasses.replace(upstream.target(), read_timeout=300.0))
        source.server, source.at_once = upstream, at_once
        config = dataclasses.replace(site.config, target=dataclasses.replace(site.config.target, read_timeout=1.0))

        def repair() -> None:
            try:
                Repairing(Readers(config, 1, source, 1)).repair(found)
            except ApplyError as error:
                failed.append(error)

        repairs = threading.Thread(target=repair)
        repairs.start()
        held = 0.0
        try:
            while repairs.is_alive() and held < 10:
                time.sleep(0.1)
                held += 0 if is_free(site) else 0.1
        finally:
            os.kill(upstream.pid, signal.SIGCONT)
        repairs.join(30)
    assert failed and "upstream TiDB" in str(failed[0])
    assert held <= (0 if at_once else 3)


def test_nothing_is_repaired_while_the_target_is_no_copy(site: VerifySite, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    site.sql("UPDATE down.t SET v = 'x' WHERE id = 1")
    found = site.table()
    site.at(110, consistent=False)
    monkeypatch.setattr(standing, "SETTLE_SECONDS", 0.3)
    with pytest.raises(NotUsableYet, match="a span behind 110 is half applied"):
        repaired(site, found)
    assert site.session.query("SELECT v FROM down.t WHERE id = 1") == [("x",)]
    monkeypatch.setattr(standing, "SETTLE_SECONDS", 30.0)
    later = threading.Timer(0.3, lambda: settled(site))
    later.start()
    assert (repaired(site, found).ts, same(site)) == (110, True)
    later.join()


def settled(site: VerifySite) -> None:
    with beside(site) as other:
        other.execute(f"UPDATE {MARKS}.checkpoint SET checkPoint = REPLACE(checkPoint, 'false', 'true')")
        other.commit()


def test_after_a_ddl_or_a_promotion_nothing_is_repaired(site: VerifySite) -> None:
    filled(site)
    site.sql("UPDATE down.t SET v = 'x' WHERE id IN (1, 2)")
    found = site.table()
    site.record_ddl(9, "done", 105)
    site.at(110)
    done = repaired(site, found)
    assert [left.why for left in done.left] == [repairing.DDL_RAN] * 2 and not done.repaired
    found = site.table()
    lease.promote(site.session, site.lease)
    with pytest.raises(ConfigError, match="promoted"):
        repaired(site, found)
    assert site.session.query("SELECT COUNT(*) FROM down.t WHERE v = 'x'") == [(2,)]


def is_free(site: VerifySite) -> bool:
    """Whether nobody holds the lease row."""
    try:
        return bool(site.session.query(f"SELECT life FROM {MARKS}.spark_lease FOR UPDATE NOWAIT"))
    except ApplyError:
        return False


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_a_crash_leaves_each_row_as_it_was_or_right(site: VerifySite, keyed: bool) -> None:
    filled(site)
    if not keyed:
        site.both("ALTER TABLE {}.t DROP PRIMARY KEY, DROP KEY u")
    good = rows_of(site.server, "down.t")
    spoil = (
        "UPDATE down.t SET v = 'x', u = u + 100 WHERE id = 1",
        "DELETE FROM down.t WHERE id = 2",
        "INSERT INTO down.t VALUES (99, 'y', 99)",
    )

    def begin() -> None:
        site.sql("DELETE FROM down.t", "INSERT INTO down.t SELECT * FROM up.t", *spoil)

    begin()
    found, bad, after = site.table(), rows_of(site.server, "down.t"), list[bool]()
    recorded = site.session.query(f"SELECT * FROM {MARKS}.checkpoint")
    for _ in killed_at_each_statement(begin, lambda: repaired(site, found), 30):
        eventually(lambda: is_free(site), what="the server to notice that the connection is gone")
        there = rows_of(site.server, "down.t")
        assert there in (good, bad)
        after.append(there == good)
    assert sorted(after) == after and len(set(after)) == 2
    assert site.session.query(f"SELECT * FROM {MARKS}.checkpoint") == recorded


# A thousand differences.

TYPES = Table(
    "types",
    (
        Column("id", "bigint"),
        *(Column(f"c{number}", kind) for number, kind in enumerate(EVERY_TYPE)),
        Column("ci", "varchar(30)", collate="utf8mb4_general_ci"),
    ),
    ("id",),
)


def another(kind: str, value: Any, chance: random.Random) -> Any:
    """The least other value, or NULL for an empty text and an empty text for NULL."""
    match kind.partition("(")[0].partition(" ")[0]:
        case "year":
            return 1999 if value is None else value - 1 if value > 1901 else value + 1
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "bit":
            return 0 if value is None else value ^ 1
        case "float":
            return 0.0 if value is None else value + 0.25
        case "double":
            return 0.0 if value is None else math.nextafter(value, math.inf)
        case "decimal":
            return "0" if value is None else f"{Decimal(value) + Decimal('1e-10'):.10f}"
        case "date":
            return "2020-02-02" if value is None else f"{value[:-2]}{int(value[-2:]) % 28 + 1:02d}"
        case "time" | "datetime" | "timestamp":
            return "2020-02-02 00:00:00" if value is None else f"{value[:-1]}{9 - int(value[-1])}"
        case "json":
            return {} if value is None else value | {"n": value["n"] ^ 1}
        case "enum":
            return "a" if value != "a" else "it's"
        case "set":
            words = {"x", "y", "z"} if value is None else set(value.split(",")) ^ {"y"}
            return ",".join(sorted(words - {""}))
        case "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob":
            return b"" if value is None else value[:-1] + bytes([value[-1] ^ 1]) if value else None
        case _ if not value:
            return "" if value is None else None
        case _:
            bit = value[:-1] + chr(ord(value[-1]) ^ 1)
            return chance.choice([other for other in (bit, value[:-1], value.swapcase()) if other.rstrip(" ") != value])


def stored(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


class Injected:
    """Differences at the target, and a trigger that counts each write of a row there."""

    def __init__(self, site: VerifySite, seed: int) -> None:
        self.site, self.chance = site, random.Random(seed)
        self.expected: dict[str, list[tuple[Kind, str]]] = {"types": [], "log": []}

    def fill(self, rows: int, keyless: int) -> None:
        site, columns = self.site, TableInfo.from_json(table_json(TYPES, 1)).columns
        shown = ", ".join(f"{c.name} {c.kind}{f' COLLATE {c.collate}' if c.collate else ''} NULL" for c in TYPES.columns[1:])
        site.both(f"CREATE TABLE {{}}.types (id BIGINT PRIMARY KEY, {shown})", "CREATE TABLE {}.log (a INT, b VARCHAR(9), c DOUBLE)")
        self.rows = [{c.name: value_for(c, self.chance) for c in columns} | {"id": number} for number in range(rows)]
        for row in self.rows:
            # Each text is there with something to cut, to change, and as NULL or ''.
            self.insert("up", row)
        site.sql(f"INSERT INTO up.log SELECT seq, 'x', seq / 3 FROM seq_1_to_{keyless}")
        site.sql(f"INSERT INTO up.log SELECT seq, 'x', seq / 3 FROM seq_1_to_{keyless}")
        site.sql("INSERT INTO down.types SELECT * FROM up.types", "INSERT INTO down.log SELECT * FROM up.log")
        site.sql("ALTER TABLE down.types ADD COLUMN mine INT", "UPDATE down.types SET mine = id")

    def insert(self, database: str, row: dict[str, Any]) -> None:
        places = ", ".join(["%s"] * len(row))
        self.site.session.execute(f"INSERT INTO {database}.types ({', '.join(row)}) VALUES ({places})", [*map(stored, row.values())])

    def inject(self, rows: int, keyless: int) -> None:
        columns = TYPES.columns[1:]
        for number, row in enumerate(self.chance.sample(self.rows, rows)):
            match number % 10:
                case 0:
                    self.site.sql(f"DELETE FROM down.types WHERE id = {row['id']}")
                    self.expected["types"].append((Kind.MISSING, str(row["id"])))
                case 1:
                    self.insert("down", row | {"id": row["id"] + 1_000_000})
                    self.expected["types"].append((Kind.EXTRA, str(row["id"] + 1_000_000)))
                case _:
                    column = columns[number % len(columns)]
                    value = stored(another(column.kind, row[column.name], self.chance))
                    changed = self.site.session.execute(f"UPDATE down.types SET {column.name} = %s WHERE id = {row['id']}", [value])
                    assert changed == 1, (column, row[column.name], value)
                    self.expected["types"].append((Kind.CHANGED, str(row["id"])))
        for number in range(1, keyless + 1):
            match number % 3:
                case 0:
                    self.site.sql(f"DELETE FROM down.log WHERE a = {number} LIMIT 1")
                    self.expected["log"].append((Kind.MISSING, str(number)))
                case 1:
                    self.site.sql(f"INSERT INTO down.log SELECT * FROM down.log WHERE a = {number} LIMIT 1")
                    self.expected["log"].append((Kind.EXTRA, str(number)))
                case 2:
                    self.site.sql(f"UPDATE down.log SET b = NULL WHERE a = {number} LIMIT 1")
                    self.expected["log"] += [(Kind.MISSING, str(number)), (Kind.EXTRA, str(number))]

    def watch(self) -> None:
        self.site.sql("CREATE TABLE down.writes (name VARCHAR(9), row_id BIGINT)")
        for name, column in (("types", "id"), ("log", "a")):
            for verb, side in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
                noted = f"INSERT INTO down.writes VALUES ('{name}', {side}.{column})"
                self.site.sql(f"CREATE TRIGGER down.{name}_{verb} AFTER {verb} ON down.{name} FOR EACH ROW {noted}")


def test_a_thousand_differences_are_found_and_repaired_and_nothing_else_is_touched(site: VerifySite) -> None:
    injected = Injected(site, 20)
    injected.fill(1200, 150)
    assert not any(table.differs for table in site.verified().values())
    injected.inject(850, 150)
    injected.watch()
    found = site.verified()
    for name, expected in injected.expected.items():
        listed = [(d.kind, d.key.get("id", d.key.get("a"))) for d in found[name].tally.listed]
        assert Counter(listed) == Counter(expected) and found[name].tally.unlisted == 0
        done = repaired(site, found[name])
        assert (sum(d.times for d in done.repaired), done.right, done.left) == (len(expected), 0, [])
        writes = site.session.query(f"SELECT row_id FROM down.writes WHERE name = '{name}'")
        assert Counter(str(row) for (row,) in writes) == Counter(key for _, key in expected), "each row is written once, and no other"
    assert len(injected.expected["types"]) + 150 == 1000
    missing = {int(key) for kind, key in injected.expected["types"] if kind is Kind.MISSING}
    assert {row for (row,) in site.session.query("SELECT id FROM down.types WHERE NOT mine <=> id")} == missing
    site.sql("ALTER TABLE down.types DROP COLUMN mine")
    assert same(site, "types", "log")
    assert not any(table.differs for table in site.verified("up.types", "up.log").values())


# The command.


@pytest.fixture
def file(site: VerifySite, tmp_path: Path) -> Path:
    return site.written(tmp_path)


def command(site: VerifySite, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = verify.main(argv, site.source)
    return code, capsys.readouterr().out


def test_apply_says_what_it_did(site: VerifySite, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(site)
    site.both("CREATE TABLE {}.equal (id INT PRIMARY KEY)")
    site.sql(
        "UPDATE down.t SET v = 'x' WHERE id = 1",
        "UPDATE down.t SET u = NULL WHERE id IN (2, 3)",
        "UPDATE down.t SET u = 3 WHERE id = 2",
        "UPDATE down.t SET u = 2 WHERE id = 3",
    )
    code, said = command(site, capsys, "-config", str(file), "--apply")
    assert code == 1 and "  UPDATE `down`.`t` SET `v` = 'v1' WHERE `id` = 1;\n" in said
    assert "  repaired at 100 (1970-01-01 00:00:00.000): 1 rows; 0 were right already\n" in said
    assert "  NOT repaired: changed: id = 2 (u): Duplicate entry '2' for key 'u'\n" in said
    site.sql("DELETE FROM down.t WHERE id IN (2, 3)")
    code, said = command(site, capsys, "-config", str(file), "--apply", "--json", "--tables", "up.t")
    table, _ = map(json.loads, said.splitlines())
    assert (code, table["repaired"], table["right_already"], table["not_repaired"]) == (0, 2, 0, [])
    assert same(site) and command(site, capsys, "-config", str(file))[0] == 0


def test_a_table_that_is_not_as_it_should_be_is_refused(site: VerifySite, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(site)
    site.sql("ALTER TABLE down.t DROP COLUMN u", "DELETE FROM down.t WHERE id = 1")
    code, said = command(site, capsys, "-config", str(file), "--apply")
    assert code == 1 and "NOT repaired: rows cannot be made right before the table is: column u missing\n" in said
    assert site.session.query("SELECT COUNT(*) FROM down.t") == [(19,)]


def test_findings_of_another_writer_refuse_a_repair_and_are_closed_by_it(
    site: VerifySite, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(site)
    site.sql("UPDATE down.t SET v = 'x' WHERE id IN (1, 2)")
    delta = file.parent / "delta"
    delta.mkdir()
    findings = [
        Finding(FindingKind.ROWS, "a row was missing", "`down`.`t`", 90, "id=1", 1, 0),
        Finding(FindingKind.VALUE, "cut", "`down`.`t`", 95, "id=7"),
        Finding(FindingKind.ROWS, "of another table", "`down`.`other`", 90, "id=1", 1, 0),
        Finding(FindingKind.ROWS, "behind S", "`down`.`t`", 101, "id=1", 1, 0),
    ]
    drainer = DeltaFindings(f"{delta}-findings", "app", 3600.0)
    drainer.append(drainer.lacking([CheckpointRow(1, 0, 101, findings=findings)]))

    def told() -> dict[str, bool]:
        assert ctl.main(["findings", "-config", str(file)]) == 0
        said = capsys.readouterr().out.splitlines()
        return {f.words: any(f.words in line and "(equal at 100, 1970" in line for line in said) for f in findings}

    assert not any(told().values())
    code, said = command(site, capsys, "-config", str(file), "--apply")
    assert code == 1 and "findings of this table: 2 rows, 1 value" in said
    assert "NOT repaired: 2 findings of kind rows say that something else writes to the table" in said and "add --others-stopped\n" in said
    assert site.session.query("SELECT COUNT(*) FROM down.t WHERE v = 'x'") == [(2,)]
    site.sql("CREATE TRIGGER down.odd BEFORE UPDATE ON down.t FOR EACH ROW SET NEW.v = IF(NEW.id = 2, 'odd', NEW.v)")
    assert command(site, capsys, "-config", str(file), "--apply", "--others-stopped")[0] == 1
    assert not any(told().values()), "a row still differs"
    site.sql("DROP TRIGGER down.odd")
    assert command(site, capsys, "-config", str(file), "--apply", "--others-stopped")[0] == 0 and same(site)
    assert told() == {"a row was missing": True, "cut": True, "of another table": False, "behind S": False}
    # The Drainer goes on recording, and an equal table closes what a repair could not.
    drainer.append(drainer.lacking([CheckpointRow(2, 101, 120, findings=[dataclasses.replace(findings[0], words="again", commit_ts=115)])]))
    site.at(110)
    assert command(site, capsys, "-config", str(file))[0] == 0
    ctl.main(["findings", "-config", str(file)])
    said = capsys.readouterr().out
    assert "behind S (equal at 110" in said and "again\n" in said
