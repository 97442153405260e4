"""Reparo: what it prints is the original's; ranges, files chosen, filters, names of DDLs, settings."""

import datetime
import gzip
import os
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import TargetConfig
from pyspark_tidb_binlog.jobs import replay
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter, record_of
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName
from pyspark_tidb_binlog.schemas.errors import ConfigError, Corruption
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.file.replayed import DdlParts, ReplayRange, binlogs_in, cell_text, ddl_name, ddl_parts, kept, selected_files
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import from_drainer


def written(directory: Path, payloads: list[bytes], max_bytes: int = 3000) -> Path:
    writer = BinlogWriter(directory, max_bytes)
    writer.append(payloads)
    writer.close()
    return directory


def at(*times: int) -> list[bytes]:
    """A DDL at each commit_ts."""
    return [pb.Binlog(tp=pb.DDL, commit_ts=ts, ddl_query=b"use `d`; DROP TABLE `t`;;").SerializeToString() for ts in times]


@pytest.mark.shows("Reparo: print")
@pytest.mark.parametrize("case", ["types", "keys", "txn", "ddl"])
def test_it_prints_what_reparo_prints(case: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The original read files of these messages and printed them (tests/golden/README.md)."""
    directory = written(tmp_path / "binlogs", from_drainer(case, "drainer.pb"))
    assert replay.main(["-data-dir", str(directory)]) == 0
    assert capfdbinary.readouterr().out == gzip.decompress((GOLDEN / case / "reparo.txt.gz").read_bytes())


@pytest.mark.parametrize(
    ("value", "tp", "text"),
    [
        (None, 15, b"<nil>"),
        (b"a\xff", 15, b"a\xff"),
        (b"ab", 252, b"[97 98]"),
        (b"", 253, b"[]"),
        (-7, 8, b"-7"),
        (1.5, 5, b"1.5"),
        (0.0, 5, b"0"),
        (999999.0, 5, b"999999"),
        (1000000.0, 5, b"1e+06"),
        (-1234567.5, 5, b"-1.2345675e+06"),
        (0.0001, 5, b"0.0001"),
        (0.00001, 5, b"1e-05"),
        (1e100, 5, b"1e+100"),
    ],
)
def test_values_as_go_prints_them(value: int | float | bytes | None, tp: int, text: bytes) -> None:
    assert cell_text(value, tp) == text


@pytest.mark.shows("Reparo: ranges")
def test_both_ends_of_a_range_are_in_it(tmp_path: Path) -> None:
    written(tmp_path, at(*range(10, 30)), max_bytes=150)

    def found(start: int, stop: int) -> list[int]:
        return [b.commit_ts for b in binlogs_in(tmp_path, ReplayRange(start, stop))]

    for start in (0, 9, 10, 17, 29, 30):
        for stop in (0, 9, 10, 20, 29, 99):
            assert found(start, stop) == [ts for ts in range(10, 30) if ts >= start and (ts <= stop or not stop)], (start, stop)


@pytest.mark.shows("Reparo: ranges")
def test_only_files_that_can_hold_the_range_are_read(tmp_path: Path) -> None:
    """The newest file is empty: the one before it had reached its size."""
    written(tmp_path, at(10, 11, 20, 21, 30, 31), max_bytes=90)

    def chosen(start: int, stop: int) -> list[int]:
        return [f.index for f in selected_files(tmp_path, ReplayRange(start, stop))]

    assert chosen(0, 0) == [0, 1, 2]
    assert chosen(20, 0) == chosen(25, 0) == [1, 2]
    assert (chosen(0, 15), chosen(11, 20), chosen(30, 0), chosen(99, 0)) == ([0], [0, 1], [2], [2])


def test_a_torn_tail_ends_the_replay_and_damage_fails_it(tmp_path: Path) -> None:
    written(tmp_path, at(*range(10, 20)), max_bytes=150)
    files = sorted(tmp_path.glob("binlog-*"))
    with files[-1].open("ab") as file:
        file.write(record_of(at(99)[0])[:30])
    assert [b.commit_ts for b in binlogs_in(tmp_path, ReplayRange())] == list(range(10, 20))
    os.truncate(files[0], files[0].stat().st_size - 1)
    with pytest.raises(Corruption, match=files[0].name):
        list(binlogs_in(tmp_path, ReplayRange()))


@pytest.mark.parametrize(
    ("query", "schema", "table"),
    [
        ("create database db1", "db1", ""),
        ("CREATE DATABASE IF NOT EXISTS `db1`;;", "db1", ""),
        ("drop schema if exists db1", "db1", ""),
        ("use db1; create table table1(id int)", "db1", "table1"),
        ("use `db1`; CREATE TABLE IF NOT EXISTS `db2`.`t``1` (`a` INT);;", "db2", "t`1"),
        ("create table table1(id int)", "", "table1"),
        ("create global temporary table t (a int) on commit delete rows", "", "t"),
        ("use db1; drop table if exists t1, t2", "db1", "t1"),
        ("use db1; alter table table1 drop column v1", "db1", "table1"),
        ("use db1; truncate table table1", "db1", "table1"),
        ("truncate t", "", "t"),
        ("use db1; create unique index idx on table1(id)", "db1", "table1"),
        ("use db1; drop index idx on db2.table1", "db2", "table1"),
        ("use db1;rename table table1 to table2", "db1", "table1"),
        ("use db1; CREATE OR REPLACE ALGORITHM = UNDEFINED DEFINER = `root`@`%` SQL SECURITY DEFINER VIEW `v` AS SELECT 1", "db1", "v"),
        ("use db1; drop view v", "db1", "v"),
        ("use db1; alter database db1 charset utf8", "db1", ""),
        ("use db1; CREATE SEQUENCE s", "db1", ""),
        ("", "", ""),
    ],
)
def test_the_table_that_a_ddl_names(query: str, schema: str, table: str) -> None:
    assert ddl_name(query) == QualifiedName(schema, table)


@pytest.mark.shows("Reparo: filters")
def test_filters_leave_out_events_and_ddls() -> None:
    events = [pb.Event(schema_name=s, table_name=t, tp=pb.Insert) for s, t in (("a", "x"), ("a", "y"), ("B", "x"))]
    dml = pb.Binlog(tp=pb.DML, commit_ts=1, dml_data=pb.DMLData(events=events))

    def left(rules: TableFilter) -> list[str]:
        found = kept(dml, rules)
        return [f"{e.schema_name}.{e.table_name}" for e in found.dml_data.events] if found else []

    assert left(TableFilter()) == ["a.x", "a.y", "B.x"]
    assert left(TableFilter(replicate_schemas=("b",))) == ["B.x"]
    assert left(TableFilter(replicate_schemas=("b",), replicate_tables=(("~^A", "y"),))) == ["a.y", "B.x"]
    assert left(TableFilter(replicate_schemas=("a", "b"), ignore_tables=(("~.", "x"),))) == ["a.y"]
    assert left(TableFilter(replicate_schemas=("a|x",))) == ["a.x", "a.y"] and left(TableFilter(replicate_schemas=("x|b",))) == ["B.x"]
    assert left(TableFilter(replicate_tables=(("a", "x|z"),))) == ["a.x"] and left(TableFilter(ignore_tables=(("~.", "y|z"),))) == [
        "a.x",
        "B.x",
    ]
    assert left(TableFilter(ignore_schemas=("A", "b"))) == [] and kept(dml, TableFilter(ignore_schemas=("~.",))) is None
    ddl = pb.Binlog(tp=pb.DDL, commit_ts=1, ddl_query=b"use `a`; ALTER TABLE `y` ADD COLUMN `z` INT;;")
    assert kept(ddl, TableFilter(replicate_tables=(("a", "y"),))) is ddl and kept(ddl, TableFilter(replicate_tables=(("a", "x"),))) is None
    with pytest.raises(ConfigError, match="regular expression"):
        TableFilter(replicate_schemas=("(",))


def run(argv: list[str]) -> list[int]:
    """The commit_ts of what a replay takes."""
    config = replay.replay_config(argv)
    out = BytesIO()
    replay.replay(config, partial(replay.print_all, out))
    assert sum(1 for _ in binlogs_in(Path(config.data_dir), config.wanted)) == out.getvalue().count(b"\n")
    return [b.commit_ts for b in binlogs_in(Path(config.data_dir), config.wanted)]


@pytest.mark.shows("Reparo: settings")
def test_settings_of_the_file_and_of_options(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 3, 4, 5, 6, 7)  # noqa: DTZ001 - local time
    first = tso(int(moment.timestamp()) * 1000)
    written(tmp_path / "b", at(first - 1, first, first + 1))
    config = tmp_path / "reparo.toml"
    config.write_text(
        f'data-dir = "{tmp_path / "b"}"\nstart-tso = 5\nstop-tso = {first}\n[[replicate-do-table]]\ndb-name = "d"\ntbl-name = "t"\n'
    )
    assert run(["-config", str(config)]) == [first - 1, first]
    assert run(["-config", str(config), "-start-tso", str(first)]) == [first]
    assert run(["-config", str(config), "-start-datetime", "2024-03-04 05:06:07", "-stop-tso", "0"]) == [first, first + 1]
    assert run(["--data-dir", str(tmp_path / "b"), "-stop-datetime", "2024-03-04 05:06:06"]) == []


def test_variables_stand_for_options_that_are_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "b", at(5, 6, 7))
    config = tmp_path / "reparo.toml"
    config.write_text('data-dir = "nowhere"\nstart-tso = 5\n')
    for name, value in (("CONFIG", str(config)), ("DATA_DIR", str(tmp_path / "b")), ("START_TSO", "6"), ("C", "0")):
        monkeypatch.setenv(f"Reparo_{name}", value)
    with pytest.raises(ConfigError, match="worker-count must be"):
        run([])
    assert run(["-c", "1"]) == [6, 7]
    assert run(["-worker-count", "1", "-start-tso", "7"]) == [7]


def test_variables_of_a_drainer_are_not_a_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both may be started from one environment."""
    written(tmp_path / "b", at(5))
    for name, value in (("DATA_DIR", "nowhere"), ("LOG_FILE", "/nowhere/log"), ("SYNCER__TXN_BATCH", "0"), ("TXN_BATCH", "0")):
        monkeypatch.setenv(f"TIDB_BINLOG__{name}", value)
    assert run(["-data-dir", str(tmp_path / "b")]) == [5]
    with pytest.raises(ConfigError, match="data-dir is not set"):
        run([])


def test_a_password_in_a_flag_is_told_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "b", at(5))
    run(["-data-dir", str(tmp_path / "b"), "--dest-db.password", "s3cret"])
    assert capsys.readouterr().err.endswith("the password in --dest-db.password: put it in the file of --config\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('data-dirr = "x"', "did you mean 'data-dir'"),
        ("data-dir = 5", "reparo.toml: data-dir: 5 is not a string"),
        ('data-dir = "."\ndest-type = "mysql"', r"the file of -config has no \[dest-db\]"),
        ('data-dir = "."\ndest-type = "memory"', "dest-type is 'memory'; this release can replay to: print, mysql"),
        ('data-dir = "."\ndest-type = "mysql"\n[dest-db]\nhots = "h"', r"unknown setting 'dest-db.hots'; did you mean 'dest-db.host'"),
        (
            'data-dir = "."\ndest-type = "mysql"\n[dest-db]\npassword = 12345',
            r"reparo.toml: dest-db.password: the value is not a string",
        ),
        ('data-dir = "."\ndest-type = "mysql"\n[dest-db]\nport = 70000', "dest-db.port: 70000 is not a port"),
        ('data-dir = "."\ntxn-batch = 0', "txn-batch must be at least 1"),
        ('data-dir = "."\nworker-count = 5000', "worker-count must be 1 to 1024"),
        ('data-dir = "."\nsafe-mode = 1', "safe-mode: 1 is not true or false"),
        ('data-dir = "absent"', "not a directory"),
        ("", "data-dir is not set"),
        ('data-dir = "."\nstart-datetime = "yesterday"', "YYYY-MM-DD"),
        ('[[replicate-do-table]]\ndb-name = "d"', "a db-name and a tbl-name"),
        (
            'data-dir = "."\nreplicate-ignore-db = ["("]',
            r"one of replicate-do-db, replicate-ignore-db, .*: '\(' is not a valid regular expression",
        ),
        ("x = ", "reparo.toml is not valid TOML"),
    ],
)
def test_wrong_settings_are_named(text: str, why: str, tmp_path: Path) -> None:
    config = tmp_path / "reparo.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=why):
        replay.main(["-config", str(config)])


def test_settings_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG__SYNCER__TO__PASSWORD", "from the environment")
    config = tmp_path / "reparo.toml"
    config.write_text(f'data-dir = "{tmp_path}"\ndest-type = "mysql"\nworker-count = 4\n[dest-db]\nhost = "h"\nport = 4000\nuser = "u"\n')

    def settings(*argv: str) -> replay.ReplayConfig:
        return replay.replay_config(["-config", str(config), *argv])

    found = settings()
    assert found.destination == TargetConfig(host="h", port=4000, user="u", password="from the environment")
    assert (found.apply.worker_count, found.apply.txn_batch, found.apply.safe_mode) == (4, 20, False)
    given = settings("-c", "7", "-txn-batch=3", "-safe-mode").apply
    assert (given.worker_count, given.txn_batch, given.safe_mode) == (7, 3, True)
    assert settings("-safe-mode=false", "-dest-type", "print").dest_type == "print"
    config.write_text(f'data-dir = "{tmp_path}"\ndest-type = "mysql"\n[dest-db]\nport = 3306\nuser = "root"\n')
    assert settings().destination == TargetConfig(host="127.0.0.1", port=3306, user="root", password="from the environment")


def test_a_file_that_is_missing_ends_the_replay(tmp_path: Path) -> None:
    written(tmp_path, at(*range(10, 40)), max_bytes=150)
    sorted(tmp_path.glob("binlog-*"))[3].unlink()
    with pytest.raises(Corruption, match="files are missing"):
        list(binlogs_in(tmp_path, ReplayRange()))


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("use `a``b`; CREATE TABLE `t` (`a` INT);;", DdlParts("a`b", "CREATE TABLE `t` (`a` INT)")),
        ("CREATE DATABASE `use`;;", DdlParts("", "CREATE DATABASE `use`")),
        ("use d; drop database d;", DdlParts("d", "drop database d")),
        ("use d; alter table t comment 'a;b\\';;", DdlParts("d", "alter table t comment 'a;b\\'")),
    ],
)
def test_the_parts_of_a_ddl(query: str, parts: DdlParts) -> None:
    assert ddl_parts(query) == parts


def test_a_directory_without_binlogs_is_refused(tmp_path: Path) -> None:
    """A wrong path printed nothing, and ended well."""
    (tmp_path / "savepoint").write_text("commitTS = 5\n")
    with pytest.raises(ConfigError, match=rf"data-dir {tmp_path} holds no binlog files"):
        replay.main(["-data-dir", str(tmp_path)])
