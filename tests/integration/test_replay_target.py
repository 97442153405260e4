"""Reparo with a database as its destination: files of a file sink, applied to a real MariaDB, are the upstream's tables."""

import contextlib
import datetime
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs import replay
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter
from pyspark_tidb_binlog.schemas.codec.datum import encode_bytes, encode_int, encode_uint
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, DdlRefused, LeaseHeld
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.replay.mysql_replay import MySQLReplay
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack
from tests.support.drainer_process import ROOT
from tests.support.golden_case import GOLDEN, compared
from tests.support.golden_messages import from_drainer
from tests.support.killed_fork import killed_at_each_statement
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql


class Destination:
    """A database to which files are replayed."""

    def __init__(self, server: PrivateMariaDB, directory: Path) -> None:
        self.server = server
        self.directory = directory

    def write(self, payloads: list[bytes]) -> None:
        writer = BinlogWriter(self.directory / "binlogs", 4000)
        writer.append(payloads)
        writer.close()

    def replay(self, *options: str) -> int:
        return replay.main(["-config", str(self.settings()), *options])

    def settings(self) -> Path:
        to = self.server.target()
        config = self.directory / "reparo.toml"
        config.write_text(
            f'data-dir = "{self.directory / "binlogs"}"\ndest-type = "mysql"\n[dest-db]\nhost = "{to.host}"\nport = {to.port}\nuser = "{to.user}"\n'
            f'password = "{to.password}"\nsocket = "{to.socket}"\n'
        )
        return config

    def process(self, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """In a process of its own, with the file of the last settings."""
        config = self.settings()
        command = [sys.executable, "-m", "pyspark_tidb_binlog.jobs.replay", "-config", str(config), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | env)

    def query(self, sql: str) -> tuple[tuple[object, ...], ...]:
        return tuple(run_sql(self.server, sql))


@pytest.fixture
def destination(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Destination]:
    found = Destination(mariadb, tmp_path)
    before = {name for (name,) in found.query("SHOW DATABASES")}
    yield found
    for (name,) in found.query("SHOW DATABASES"):
        if name not in before:
            found.query(f"DROP DATABASE `{name}`")


@pytest.fixture
def strict(destination: Destination) -> Iterator[None]:
    """The server's own defaults are not those of a Drainer."""
    ((mode, zone),) = destination.query("SELECT @@GLOBAL.sql_mode, @@GLOBAL.time_zone")
    destination.query(
        "SET GLOBAL sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_BACKSLASH_ESCAPES,ANSI_QUOTES', time_zone = '+09:00'"
    )
    yield
    destination.query(f"SET GLOBAL sql_mode = '{mode}', time_zone = '{zone}'")


@pytest.mark.shows("Reparo: mysql")
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("case", "name", "zone"),
    [
        ("types", "drainer.pb", "UTC"),
        ("types", "drainer-shanghai.pb", "Asia/Shanghai"),
        ("keys", "drainer.pb", "UTC"),
        ("txn", "drainer.pb", "UTC"),
    ],
)
def test_a_replay_into_an_empty_database_makes_the_upstreams_tables(
    case: str, name: str, zone: str, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the files of a real Drainer, which ours are to the byte."""
    monkeypatch.setenv("TZ", zone)
    destination.write(from_drainer(case, name))
    assert destination.replay() == 0
    assert compared(GOLDEN / case, destination.server.target()) == ""


CREATED = [
    (10, "CREATE DATABASE `rp`;;"),
    (11, "use `rp`; CREATE TABLE `t` (`id` BIGINT UNSIGNED PRIMARY KEY, `e` ENUM('a','b'), `n` VARCHAR(20));;"),
    (12, "use `rp`; CREATE TABLE `bag` (`n` INT);;"),
]


def ddl(commit_ts: int, query: str) -> bytes:
    return pb.Binlog(tp=pb.DDL, commit_ts=commit_ts, ddl_query=query.encode()).SerializeToString()


def column(name: str, tp: int, kind: str, value: bytes, changed: bytes = b"") -> bytes:
    return pb.column(name=name, tp=bytes((tp,)), mysql_type=kind, value=value, changed_value=changed).SerializeToString()


def of_t(op: int, number: int, to: int = 0) -> pb.Event:
    """A row of ``t``: inserted, deleted, or moved to another key."""
    new = (encode_uint(to), encode_uint(2), encode_bytes(b"moved")) if op == pb.Update else (b"", b"", b"")
    row = [
        column("id", 8, "bigint", encode_uint(number), new[0]),
        column("e", 247, "enum", encode_uint(1), new[1]),
        column("n", 15, "varchar", encode_bytes(b"n"), new[2]),
    ]
    return pb.Event(schema_name="rp", table_name="t", tp=op, row=row)


def of_bag(op: int, number: int) -> pb.Event:
    return pb.Event(schema_name="rp", table_name="bag", tp=op, row=[column("n", 3, "int", encode_int(number))])


def rows(commit_ts: int, *events: pb.Event) -> bytes:
    return pb.Binlog(tp=pb.DML, commit_ts=commit_ts, dml_data=pb.DMLData(events=events)).SerializeToString()


def story() -> list[bytes]:
    """Keys that move, equal rows of a table without a key, and a DDL in the middle."""
    out = [ddl(ts, query) for ts, query in CREATED]
    out += [rows(20 + n, of_t(pb.Insert, n), of_bag(pb.Insert, 7), of_bag(pb.Insert, n)) for n in range(40)]
    out += [rows(60 + n, of_t(pb.Update, n, n + 100)) for n in range(0, 40, 2)]
    out += [ddl(100, "use `rp`; ALTER TABLE `t` ADD COLUMN `more` INT DEFAULT 3;;")]
    return out + [rows(110 + n, of_t(pb.Delete, 2 * n + 1), of_bag(pb.Delete, 7)) for n in range(15)]


def state(destination: Destination) -> tuple[object, ...]:
    return destination.query("SELECT id, e + 0, n, more FROM rp.t ORDER BY id"), destination.query("SELECT n FROM rp.bag ORDER BY n")


def expected() -> tuple[object, ...]:
    moved = [(n + 100, 2, "moved", 3) for n in range(0, 40, 2)]
    left = [(n, 1, "n", 3) for n in range(31, 40, 2)]
    return tuple(left + moved), tuple((n,) for n in sorted([*range(40), *[7] * 25]))


def test_operations_reach_the_target_exactly(destination: Destination) -> None:
    destination.write(story())
    assert destination.replay("-c", "3", "-txn-batch", "4") == 0
    assert state(destination) == expected()
    with pytest.raises(
        ApplyError, match=r"stopped at the end of its range, 124 .*To continue: -start-tso 125, or this range with -safe-mode"
    ):
        destination.replay("-start-tso", "124")
    assert destination.replay("-start-tso", "125") == 0
    assert state(destination) == expected()


@pytest.mark.parametrize("ends_with", ["rows", "ddl"])
def test_killed_at_its_last_statements_it_applies_nothing_twice(ends_with: str, destination: Destination) -> None:
    """Started with the same options, it says that the range is finished, or from where it continues."""
    payloads = [*(ddl(ts, query) for ts, query in CREATED), rows(20, of_bag(pb.Insert, 1), of_bag(pb.Insert, 1))]
    destination.write([*payloads, ddl(30, "use `rp`; ALTER TABLE `bag` ADD COLUMN `m` INT;;")] if ends_with == "ddl" else payloads)

    def begin() -> None:
        destination.query("DROP DATABASE IF EXISTS rp")
        destination.query("DROP DATABASE IF EXISTS tidb_binlog")

    ways_on = set[str]()
    for number in killed_at_each_statement(begin, destination.replay, 14):
        with pytest.raises(ApplyError, match="an earlier replay stopped") as refused:
            destination.replay()
        (found,) = re.findall(r"To continue: -start-tso (\d+)", str(refused.value))
        ways_on.add(found)
        assert destination.replay("-start-tso", found) == 0
        assert destination.query("SELECT n FROM rp.bag") == ((1,), (1,)), f"killed at statement {number}"
        assert len(destination.query("SHOW COLUMNS FROM rp.bag")) == (2 if ends_with == "ddl" else 1)
    assert ways_on > ({"13", "21"} if ends_with == "rows" else {"21"})


@pytest.mark.shows("Reparo: mysql")
@pytest.mark.parametrize(("point", "safe"), [("before-rows-commit", False), ("after-rows-commit", True), ("after-ddl", False)])
def test_killed_in_the_middle_it_goes_on(point: str, safe: bool, destination: Destination, dies: "Dies") -> None:
    """Without safe mode exactly where it was, tables without a key included; with it, wherever it is begun again."""
    destination.write(story())
    passes = {"before-rows-commit": 9, "after-rows-commit": 7, "after-ddl": 4}[point]
    killed = destination.process("-c", "2", "-txn-batch", "5", env={"TIDB_BINLOG_DIE": f"{point}:{passes}"})
    assert killed.returncode == -9, killed.stderr
    ((begin, upto),) = destination.query("SELECT from_ts, to_ts FROM tidb_binlog.spark_state WHERE cluster_id = 0")
    go_on = str(int(str(begin)) + 1)
    if safe:
        assert (begin, upto) == (32, 33)
        with pytest.raises(ApplyError, match=rf"an earlier replay stopped within \({begin}, .* -start-tso {go_on}.* -safe-mode"):
            destination.replay("-start-tso", "30")
        with pytest.raises(ApplyError, match="this range begins only behind 65"):
            destination.replay("-start-tso", "66", "-safe-mode")
        assert destination.replay("-start-tso", "30", "-stop-tso", "31", "-safe-mode") == 0
        with pytest.raises(ApplyError, match=r"an earlier replay stopped within \(31, 33\].*-start-tso 32, and -safe-mode"):
            destination.replay("-start-tso", "32")
        with dies.at("after-rows-commit", 2):
            destination.replay("-start-tso", "32", "-safe-mode", "-c", "1", "-txn-batch", "5")
        with pytest.raises(ApplyError, match=r"an earlier replay stopped within \(32, 33\].*-start-tso 33, and -safe-mode"):
            destination.replay("-start-tso", "33")
        assert destination.replay("-start-tso", "33", "-safe-mode") == 0
        assert state(destination)[0] == expected()[0]
        assert destination.replay("-start-tso", "125") == 0
    else:
        if point != "after-ddl":
            assert destination.replay("-c", "3", "-start-tso", go_on, "-stop-tso", "65") == 0
            go_on = "66"
        assert destination.replay("-c", "3", "-start-tso", go_on) == 0
        assert state(destination) == expected()


def test_what_the_target_has_against_the_files_is_told_and_counted(destination: Destination, capsys: pytest.CaptureFixture[str]) -> None:
    """Never more rows are touched than the file has: of three equal rows one DELETE takes one."""
    destination.write(
        [*(ddl(ts, query) for ts, query in CREATED), rows(20, of_bag(pb.Insert, 1), of_bag(pb.Insert, 1), of_bag(pb.Insert, 1))]
    )
    assert destination.replay() == 0
    destination.query("INSERT INTO rp.t VALUES (1, 'a', 'mine'), (5, 'a', 'mine')")
    destination.write([rows(30, of_bag(pb.Delete, 1), of_bag(pb.Delete, 2), of_t(pb.Insert, 1), of_t(pb.Update, 9, 10))])
    assert destination.replay("-start-tso", "30") == 1
    assert "`rp`.`bag`: 1, `rp`.`t`: 2" in capsys.readouterr().err
    assert destination.query("SELECT COUNT(*) FROM rp.bag") == ((2,),)
    assert destination.query("SELECT id, n FROM rp.t ORDER BY id") == ((1, "n"), (5, "mine"), (10, "moved"))


def test_what_ends_a_replay_says_where_and_what_to_do(destination: Destination, capsys: pytest.CaptureFixture[str]) -> None:
    other = pb.Event(schema_name="rp", table_name="gone", tp=pb.Insert, row=[column("n", 3, "int", encode_int(1))])
    destination.write(
        [*(ddl(ts, query) for ts, query in CREATED), rows(20, of_t(pb.Insert, 1)), ddl(21, "use `rp`; CREATE TABLE `u` (`a` INT);;")]
    )
    destination.write([rows(30, other), rows(31, of_t(pb.Insert, 2))])
    with pytest.raises(
        ApplyError, match=r"rows of rp\.gone at commit_ts 30, but the target has no such table\. Create it .*replicate-ignore-table"
    ):
        destination.replay()
    assert "up to commit_ts 12 " in capsys.readouterr().err or destination.query("SELECT COUNT(*) FROM rp.t") == ((1,),)
    destination.query("CREATE TABLE rp.gone (n INT)")
    destination.write([ddl(40, "use `rp`; ALTER TABLE `t` ADD COLUMN `x` NO_SUCH_TYPE;;"), rows(41, of_t(pb.Insert, 3))])
    with pytest.raises(DdlRefused, match=r"refuses the DDL of commit_ts 40 .*-start-tso 41"):
        destination.replay("-start-tso", "22", "-safe-mode")
    assert destination.query("SELECT id FROM rp.t ORDER BY id") == ((1,), (2,))
    assert destination.replay("-start-tso", "41") == 0
    assert destination.query("SELECT id FROM rp.t ORDER BY id") == ((1,), (2,), (3,))
    destination.query("CREATE TRIGGER rp.no BEFORE INSERT ON rp.t FOR EACH ROW SIGNAL SQLSTATE '45000'")
    destination.write([rows(50, of_t(pb.Insert, 4))])
    with pytest.raises(ApplyError, match=r"commit_ts 50 .*-stop-tso 49, then -safe-mode -start-tso 51$"):
        destination.replay("-start-tso", "50")


class Dies:
    """Ends a replay in this process at the n-th pass of a failpoint."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    @contextlib.contextmanager
    def at(self, name: str, count: int) -> Iterator[None]:
        seen: Counter[str] = Counter()

        def point(passed: str) -> None:
            seen[passed] += 1
            if passed == name and seen[passed] == count:
                raise RuntimeError("killed")

        with self._patch.context() as patch, pytest.raises(RuntimeError, match="killed"):
            patch.setattr(failpoints, "point", point)
            yield


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Dies:
    return Dies(monkeypatch)


def plain(table: str, number: int) -> pb.Event:
    return pb.Event(schema_name="rp", table_name=table, tp=pb.Insert, row=[column("id", 3, "int", encode_int(number))])


EXCHANGED = [
    ddl(*CREATED[0]),
    ddl(11, "use `rp`; CREATE TABLE `p` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (10));;"),
    ddl(12, "use `rp`; CREATE TABLE `x` (`id` INT PRIMARY KEY);;"),
    rows(20, plain("x", 1)),
]
EXCHANGE = ddl(30, "use `rp`; ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `x`;;")


def test_a_transaction_that_was_stopped_in_goes_on_only_if_it_is_the_same(destination: Destination, dies: Dies) -> None:
    destination.write([*(ddl(ts, query) for ts, query in CREATED), rows(20, *(of_bag(pb.Insert, n % 3) for n in range(100)))])
    with dies.at("after-rows-commit", 3):
        destination.replay("-c", "2", "-txn-batch", "10")
    assert destination.query("SELECT COUNT(*) FROM rp.bag") == ((60,),)
    for path in (destination.directory / "binlogs").iterdir():
        path.unlink()
    destination.write([*(ddl(ts, query) for ts, query in CREATED), rows(20, *(of_bag(pb.Insert, n % 2) for n in range(100)))])
    with pytest.raises(ApplyError, match="this range does not continue from there"):
        destination.replay("-start-tso", "13")
    assert destination.query("SELECT COUNT(*) FROM rp.bag") == ((60,),)


@pytest.mark.parametrize("point", ["before-rows-commit", "after-rows-commit"])
def test_killed_at_any_chunk_of_a_transaction_each_row_is_there_once(point: str, destination: Destination) -> None:
    """A kill -9 in each life; the equal rows of the transactions before and behind it are there as often as they were written."""
    more = [of_bag(pb.Insert, n % 3) for n in range(40)] + [of_bag(pb.Delete, 1), of_bag(pb.Delete, 9)]
    destination.write([*(ddl(ts, query) for ts, query in CREATED), rows(20, of_bag(pb.Insert, 9), of_bag(pb.Insert, 1))])
    destination.write([rows(21, *more), rows(22, of_bag(pb.Insert, 1))])
    options, lives = ["-c", "1", "-txn-batch", "8"], 0
    while (killed := destination.process(*options, env={"TIDB_BINLOG_DIE": f"{point}:2"})).returncode == -9:
        ((begin,),) = destination.query("SELECT from_ts FROM tidb_binlog.spark_state WHERE cluster_id = 0")
        options[4:] = ["-start-tso", str(int(str(begin)) + 1)]
        lives += 1
    assert killed.returncode == 0, killed.stderr
    assert lives > 2
    assert destination.query("SELECT n, COUNT(*) FROM rp.bag GROUP BY n") == ((0, 14), (1, 14), (2, 13))


def test_killed_again_at_the_ddl_behind_a_transaction_that_was_done(destination: Destination, dies: Dies) -> None:
    destination.write([*(ddl(ts, query) for ts, query in CREATED), rows(20, of_bag(pb.Insert, 1))])
    destination.write([ddl(30, "use `rp`; ALTER TABLE `bag` ADD COLUMN `m` INT;;"), rows(40, of_bag(pb.Insert, 2))])
    with dies.at("after-rows-commit", 1):
        destination.replay()
    with dies.at("after-ddl", 1):
        destination.replay("-start-tso", "13")
    assert destination.replay("-start-tso", "21") == 0
    assert destination.query("SELECT n FROM rp.bag ORDER BY n") == ((1,), (2,))


@pytest.mark.shows("Reparo: mysql")
def test_a_ddl_is_executed_once(destination: Destination, dies: Dies, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where it stands twice in the files, the rows behind it fail, or nobody knows whether it was."""
    destination.write([*EXCHANGED, EXCHANGE, rows(20, plain("x", 1)), EXCHANGE, rows(40, plain("gone", 1), plain("x", 2))])
    with pytest.raises(ApplyError, match="no such table"):
        destination.replay()
    assert "To continue: -start-tso 21" in capsys.readouterr().err
    destination.query("CREATE TABLE rp.gone (id INT PRIMARY KEY)")
    with pytest.raises(ApplyError, match=r"stopped at the DDL of commit_ts 30 .*-start-tso 21,"):
        destination.replay("-start-tso", "15")
    assert capsys.readouterr().err.splitlines()[-1:] == ["nothing was applied"]
    assert destination.replay("-start-tso", "21") == 0
    assert (destination.query("SELECT id FROM rp.p"), destination.query("SELECT id FROM rp.x")) == (((1,),), ((2,),))

    destination.query("DROP DATABASE rp")
    swap = ddl(30, "use `rp`; RENAME TABLE `x` TO `tmp`, `p` TO `x`, `tmp` TO `p`;;")
    destination.write(
        [
            ddl(50, "CREATE DATABASE `rp`;;"),
            *(ddl(50 + n, f"use `rp`; CREATE TABLE `{t}` (`id` INT PRIMARY KEY);;") for n, t in enumerate("px", 1)),
        ]
    )
    destination.write(
        [rows(60, plain("x", 1)), pb.Binlog(tp=pb.DDL, commit_ts=70, ddl_query=pb.Binlog.FromString(swap).ddl_query).SerializeToString()]
    )
    destination.write([rows(80, plain("x", 2))])
    with dies.at("after-ddl-record", 4):
        destination.replay("-start-tso", "50")
    destination.query("DELETE FROM rp.p")
    with pytest.raises(DdlRefused, match="would undo it"):
        destination.replay("-start-tso", "50", "-safe-mode")
    destination.query("DELETE FROM rp.x")
    destination.query("INSERT INTO rp.p VALUES (1)")
    for options in (("-start-tso", "61"), ("-start-tso", "61", "-safe-mode")):
        with pytest.raises(DdlRefused, match="would undo it: RENAME TABLE .*-start-tso 71"):
            destination.replay(*options)
    assert destination.replay("-start-tso", "71") == 0
    assert (destination.query("SELECT id FROM rp.p"), destination.query("SELECT id FROM rp.x")) == (((1,),), ((2,),))


@pytest.mark.parametrize("point", ["after-ddl", "after-ddl-record"])
def test_an_early_ddl_has_the_commit_ts_of_the_transaction_before_it(point: str, destination: Destination, dies: Dies) -> None:
    more = [ddl(20, f"use `rp`; ALTER TABLE `t` ADD COLUMN `{name}` INT;;") for name in "abc"]
    destination.write([*(ddl(ts, query) for ts, query in CREATED), rows(20, of_bag(pb.Insert, 1)), *more, rows(21, of_bag(pb.Insert, 2))])
    with dies.at(point, 5):
        destination.replay()
    with pytest.raises(ApplyError, match=r"stopped at the DDL of commit_ts 20 .*To continue: -start-tso 20,"):
        destination.replay("-start-tso", "13")
    assert destination.replay("-start-tso", "20") == 0
    assert destination.query("SELECT n FROM rp.bag ORDER BY n") == ((1,), (2,))
    assert destination.query("SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'rp' AND TABLE_NAME = 't'") == ((6,),)


@pytest.mark.parametrize("point", ["after-ddl", "after-ddl-record"])
@pytest.mark.parametrize("killed", range(4))
def test_the_third_of_early_ddls_may_have_the_text_of_the_first(point: str, killed: int, destination: Destination, dies: Dies) -> None:
    early = [ddl(20, f"use `rp`; ALTER TABLE `t` {change};;") for change in ("ADD COLUMN `a` INT", "DROP COLUMN `a`", "ADD COLUMN `a` INT")]
    destination.write([*(ddl(ts, query) for ts, query in CREATED), rows(20, of_bag(pb.Insert, 1)), *early, rows(21, of_bag(pb.Insert, 2))])
    if killed:
        with dies.at(point, len(CREATED) + killed):
            destination.replay()
    assert destination.replay(*(("-start-tso", "20") if killed else ())) == 0
    assert destination.query("SELECT n FROM rp.bag ORDER BY n") == ((1,), (2,))
    assert [name for name, *_ in destination.query("SHOW COLUMNS FROM rp.t")] == ["id", "e", "n", "a"]


def test_the_ways_on_lead_on(destination: Destination, capsys: pytest.CaptureFixture[str]) -> None:
    destination.write([*(ddl(ts, query) for ts, query in CREATED), *(rows(20 + n, of_t(pb.Insert, n)) for n in range(5))])
    destination.write([ddl(40, "use `rp`; ALTER TABLE `t` ADD COLUMN `x` NO_SUCH_TYPE;;"), rows(50, of_t(pb.Insert, 5))])
    assert destination.replay("-stop-tso", "12") == 0
    destination.query("CREATE TRIGGER rp.no BEFORE INSERT ON rp.t FOR EACH ROW IF NEW.id = 3 THEN SIGNAL SQLSTATE '45000'; END IF")
    one_by_one = ("-c", "1", "-txn-batch", "1")
    with pytest.raises(ApplyError, match="-safe-mode -stop-tso 22, then -safe-mode -start-tso 24$"):
        destination.replay("-start-tso", "13", *one_by_one)
    capsys.readouterr()
    with pytest.raises(ApplyError, match="this range begins only behind 23.*-start-tso 22, .*-safe-mode from there"):
        destination.replay("-start-tso", "24", "-safe-mode")
    assert capsys.readouterr().err.splitlines()[-1:] == ["nothing was applied"]
    assert destination.replay("-stop-tso", "21", "-start-tso", "13", "-safe-mode") == 0
    with pytest.raises(
        ApplyError, match=r"stopped within \(21, 22\].*this range begins only behind 23.*begin behind the span, with -safe-mode"
    ):
        destination.replay("-start-tso", "24")
    # What is open goes beyond the DDL that is refused.
    destination.query("UPDATE tidb_binlog.spark_state SET to_ts = 60")
    with pytest.raises(DdlRefused, match="-start-tso 41"):
        destination.replay("-start-tso", "24", "-safe-mode")
    with pytest.raises(ApplyError, match=r"stopped within \(40, 60\].*-start-tso 41, and -safe-mode"):
        destination.replay("-start-tso", "41")
    assert destination.replay("-start-tso", "41", "-safe-mode") == 0
    assert destination.query("SELECT id FROM rp.t ORDER BY id") == tuple((n,) for n in (0, 1, 2, 4, 5))


@pytest.mark.shows("Reparo: mysql")
def test_a_ddl_of_which_a_part_is_there_is_refused(destination: Destination, dies: Dies, capsys: pytest.CaptureFixture[str]) -> None:
    both = ddl(30, "use `rp`; ALTER TABLE `t` ADD COLUMN `a` INT, ADD COLUMN `b` INT, ALGORITHM=INPLACE;;")
    event = of_t(pb.Insert, 5)
    event.row.append(column("b", 3, "int", encode_int(77)))
    destination.write([*(ddl(ts, query) for ts, query in CREATED), both, rows(40, event)])
    with dies.at("after-ddl", 4):
        destination.replay()
    destination.query("ALTER TABLE rp.t DROP COLUMN b")
    for _ in range(2):
        with pytest.raises(DdlRefused, match="Duplicate column.*several clauses.*-start-tso 31"):
            destination.replay("-start-tso", "13")
    assert destination.replay("-start-tso", "31") == 1
    assert "the target lacks these columns of the files: rp.t: b\n" in capsys.readouterr().err
    destination.query("ALTER TABLE rp.t ADD COLUMN b INT")
    assert destination.replay("-start-tso", "30", "-safe-mode") == 0, "each clause of it is so already"
    assert destination.query("SELECT id, b FROM rp.t") == ((5, 77),)


def test_nothing_behind_damage_is_applied(destination: Destination) -> None:
    destination.write(
        [*(ddl(ts, query) for ts, query in CREATED), rows(20, of_t(pb.Insert, 1)), ddl(21, "use `rp`; CREATE TABLE `u` (`a` INT);;")]
    )
    destination.write([rows(30, of_t(pb.Insert, 2)), rows(31, of_t(pb.Insert, 3))])
    (file,) = (destination.directory / "binlogs").glob("binlog-*")
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(size - 10)
        damaged.write(b"\xff\xff")
    with pytest.raises(Corruption, match=rf"{file.name}: the checksum of the record at offset \d+"):
        destination.replay()
    assert destination.query("SELECT id FROM rp.t ORDER BY id") == ((1,),)


def test_a_second_replay_is_refused_while_one_writes(destination: Destination) -> None:
    destination.write([ddl(*CREATED[0])])
    apply = ApplyConfig(lease_timeout=1.0, retry_seconds=0.0)
    first, second = (MySQLReplay(destination.server.target(), apply, 0, ReadBack(datetime.UTC)) for _ in range(2))

    def meanwhile() -> Iterator[pb.Binlog]:
        with pytest.raises(LeaseHeld, match="another replay writes to this target"):
            second.take_all([])
        yield pb.Binlog.FromString(ddl(*CREATED[0]))

    try:
        first.take_all(meanwhile())
    finally:
        first.close()
        second.close()
    assert destination.query("SHOW DATABASES LIKE 'rp'") == (("rp",),)


@pytest.mark.parametrize("charset", ["latin1", "gbk"])
@pytest.mark.parametrize("safe", [(), ("-safe-mode",)])
def test_deletes_find_rows_whose_key_has_a_text_of_another_charset(destination: Destination, charset: str, safe: tuple[str, ...]) -> None:
    """MariaDB finds none of them in a list of keys; a file does not tell the charset, the target does."""

    def item(op: int, number: int) -> pb.Event:
        row = [column("id", 3, "int", encode_int(number)), column("c", 15, "varchar", encode_bytes("éüè"[number].encode()))]
        return pb.Event(schema_name="rp", table_name="item", tp=op, row=row)

    made = f"use `rp`; CREATE TABLE `item` (`id` INT, `c` VARCHAR(20), PRIMARY KEY (`id`, `c`)) CHARSET {charset};;"
    changes = [rows(20, *(item(pb.Insert, n) for n in range(3))), rows(21, item(pb.Delete, 0), item(pb.Delete, 1))]
    destination.write([ddl(*CREATED[0]), ddl(11, made), *changes])
    assert destination.replay(*safe) == 0
    assert destination.query("SELECT id FROM rp.item") == ((2,),)


@pytest.mark.parametrize("key", ["", ", UNIQUE KEY (`s`)"])
def test_a_delete_finds_the_one_set_of_many_words(destination: Destination, key: str) -> None:
    """MySQL compares a SET with a number as DOUBLE, which has 53 bits: these two are equal in it."""
    words = ",".join(f"'w{n}'" for n in range(60))
    first, second = (1 << 58) | 2, (1 << 58) | 4

    def one(op: int, value: int) -> pb.Event:
        return pb.Event(schema_name="rp", table_name="sets", tp=op, row=[column("s", 248, "set", encode_uint(value))])

    made = f"use `rp`; CREATE TABLE `sets` (`s` SET({words}) NOT NULL{key});;"
    destination.write(
        [ddl(*CREATED[0]), ddl(11, made), rows(20, one(pb.Insert, first), one(pb.Insert, second)), rows(21, one(pb.Delete, second))]
    )
    assert destination.replay() == 0
    assert destination.query("SELECT s FROM rp.sets") == (("w1,w58",),)
