"""A real Drainer's checkpoint that is not in the target: in a file, or on a server under another account. Exactly once all the same.

Equal rows without a key show whether anything was applied twice, or not at all.
"""

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig, DrainerConfig, RelayConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.jobs.stream.recovery import replayed
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, Corruption, LeaseHeld
from pyspark_tidb_binlog.sinks.mysql import elsewhere
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from tests.support.ddl_target import dying
from tests.support.emulated_stream import EmulatedStream
from tests.support.target_rows import Query, asking

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

MARKS = "apart_marks"
KEYED = Table("k", (Column("id", "bigint"), Column("v", "int")), ("id",))
LOG = Table("l", (Column("a", "int"),))
Make = Callable[..., "Place"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real checkpoint is written after every commit."""
    monkeypatch.setattr(elsewhere, "SAVE_SECONDS", 0.0)


@pytest.fixture
def query(mariadb: PrivateMariaDB) -> Iterator[Query]:
    with asking(mariadb, "d", MARKS) as query:
        yield query
        query("DROP USER IF EXISTS keeper@'%'")


class Place:
    """A stream with a separate checkpoint, and what that says."""

    def __init__(self, stream: EmulatedStream, config: DrainerConfig, query: Query) -> None:
        self.stream = stream
        self.config = config
        self.query = query
        self.in_file = config.checkpoint.type == "file"
        self.file = Path(config.data_dir) / "savepoint"
        stream.create("d", KEYED, LOG)
        stream.apply()

    def add(self, number: int) -> None:
        """One transaction of the upstream."""

        def work(txn: Any) -> None:
            txn.insert("d.k", {"id": number, "v": 0})
            for _ in range(2):
                txn.insert("d.l", {"a": 1})

        self.stream.change(work)

    def applied(self, *numbers: int) -> None:
        """Adds each and applies it; the target is as upstream then."""
        for number in numbers:
            self.add(number)
            self.stream.apply()
        self.assert_equal()

    def restarted_with(self, **more: Any) -> None:
        """Another life, with other settings."""
        self.stream.restart(dataclasses.replace(self.config, **more))

    def lose_real(self) -> None:
        """The real checkpoint is removed."""
        if self.in_file:
            self.file.unlink()
        else:
            self.query(f"DELETE FROM {MARKS}.checkpoint")

    def real(self) -> dict[str, Any]:
        """The real checkpoint."""
        if self.in_file:
            lines = self.file.read_text().splitlines()
            return {k: json.loads(v) for k, v in (line.split(" = ") for line in lines if not line.startswith("#"))}
        ((value,),) = self.query(f"SELECT checkPoint FROM {MARKS}.checkpoint WHERE clusterID = 7")
        return dict(json.loads(value))

    def ours(self) -> dict[str, Any]:
        """The record in the target."""
        ((value,),) = self.query(f"SELECT checkPoint FROM {MARKS}.spark_checkpoint WHERE clusterID = 7")
        return dict(json.loads(value))

    def set_real(self, commit_ts: int, *, consistent: bool) -> None:
        """By hand, or by a real Drainer."""
        flag, version = str(consistent).lower(), self.stream.upstream.schema_version
        if self.in_file:
            self.file.write_text(f"consistent = {flag}\ncommitTS = {commit_ts}\nschema-version = {version}\n")
        else:
            value = f'{{"consistent":{flag},"commitTS":{commit_ts},"ts-map":{{}},"schema-version":{version}}}'
            self.query(f"REPLACE INTO {MARKS}.checkpoint VALUES (7, '{value}')")

    def assert_equal(self) -> None:
        """The target is as upstream."""
        for name in ("d.k", "d.l"):
            wanted = sorted(tuple(row.values()) for row in self.stream.upstream.rows(name).values())
            assert sorted(self.query(f"SELECT * FROM {name}")) == wanted


@pytest.fixture
def place(spark: SparkSession, mariadb: PrivateMariaDB, query: Query, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as lives:

        def make(kind: str) -> Place:
            target = mariadb.target()
            if kind == "account":
                query("CREATE USER keeper@'%' IDENTIFIED BY 'hush'")
                query(f"GRANT ALL ON {MARKS}.* TO keeper@'%'")
            asked = CheckpointConfig(type="file") if kind == "file" else CheckpointConfig(type="mysql", user="keeper", password="hush")
            apply = ApplyConfig(checkpoint_schema=MARKS, on_finding="stop")
            config = DrainerConfig(target=target, apply=apply, checkpoint=asked, data_dir=str(tmp_path / "data"))
            return Place(lives.enter_context(EmulatedStream(spark, config)), config, query)

        yield make


KINDS = pytest.mark.parametrize("kind", ["file", pytest.param("account", marks=pytest.mark.slow)])


@pytest.mark.shows(
    "syncer.to.checkpoint.type",
    "syncer.to.checkpoint.host",
    "syncer.to.checkpoint.port",
    "syncer.to.checkpoint.user",
    "savepoint of files and topics",
)
@KINDS
def test_it_follows_ours_and_is_consistent_after_a_clean_stop(kind: str, place: Make) -> None:
    here = place(kind)
    here.applied(1)
    assert here.real()["commitTS"] == here.ours()["commitTS"] and here.real()["consistent"] is False
    here.stream.restart()
    assert here.real()["consistent"] is True and here.real()["commitTS"] == here.ours()["commitTS"]
    assert here.real()["schema-version"] == here.stream.upstream.schema_version
    assert set(here.real()) <= {"consistent", "commitTS", "ts-map", "schema-version", "spark-written"}
    here.applied(2)


def test_nothing_is_called_clean_while_a_step_is_not_over(place: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here = place("file")
    here.applied(1)
    sink = here.stream.sink
    assert isinstance(sink, MySQLSink)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.target_record._CLOSE_SECONDS", 0.1)
    held, over = threading.Event(), threading.Event()

    def step() -> None:
        with sink._record.one_at_a_time:
            held.set()
            over.wait(30)

    running = threading.Thread(target=step)
    running.start()
    held.wait()
    try:
        here.stream.restart()
    finally:
        over.set()
        running.join()
    assert here.real()["consistent"] is False


@KINDS
@pytest.mark.parametrize(
    "point", ["before-downstream-commit", "after-downstream-commit", "before-checkpoint-elsewhere", "after-checkpoint-elsewhere"]
)
def test_a_kill_between_the_two_writes_changes_nothing(
    kind: str, point: str, place: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = place(kind)
    for number in (1, 2):
        here.add(number)
        with dying(point):
            here.stream.apply()
        killed(here, monkeypatch)
    with caplog.at_level(logging.INFO):
        here.applied(3)
    assert "safe mode" not in caplog.text and "counts" not in caplog.text
    assert here.real()["commitTS"] == here.ours()["commitTS"]


def killed(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The life ends without its last words."""
    with monkeypatch.context() as patch:
        patch.setattr("pyspark_tidb_binlog.sinks.mysql.target_record.TargetRecord._save_last", lambda record: record._real.close())
        here.stream.restart()


@KINDS
def test_a_real_drainer_that_went_on_counts(kind: str, place: Make, caplog: pytest.LogCaptureFixture) -> None:
    here = place(kind)
    here.stream.restart()
    here.add(1)
    here.query("INSERT INTO d.k VALUES (1, 0)")
    here.query("INSERT INTO d.l VALUES (1), (1)")
    here.set_real(here.stream.upstream.oracle.next(), consistent=True)
    with caplog.at_level(logging.INFO):
        here.applied(2)
    assert "went on. It counts" in caplog.text and "safe mode" not in caplog.text


@KINDS
def test_one_that_was_set_back_is_meant_and_applied_again_in_safe_mode(kind: str, place: Make, caplog: pytest.LogCaptureFixture) -> None:
    here = place(kind)
    back = here.ours()["commitTS"]
    here.applied(1, 2)
    here.stream.restart()
    here.query("DELETE FROM d.k WHERE id = 1")
    here.set_real(back + 1, consistent=True)
    with caplog.at_level(logging.INFO):
        here.stream.apply()
    assert sorted(here.query("SELECT id FROM d.k")) == [(1,), (2,)]
    assert "set it back. It counts" in caplog.text and "safe mode from" in caplog.text and "d.l has no unique key" in caplog.text


@KINDS
@pytest.mark.parametrize("rebuilt", [False, True], ids=["restored", "rebuilt"])
def test_a_target_that_was_restored_or_rebuilt_is_not_taken_for_caught_up(kind: str, rebuilt: bool, place: Make) -> None:
    """The checkpoint elsewhere is as new as before, and it is ours: what the target has lost would never come again."""
    here = place(kind)
    here.applied(1)
    here.stream.restart()
    ((saved,),) = here.query(f"SELECT checkPoint FROM {MARKS}.spark_checkpoint WHERE clusterID = 7")
    here.applied(2)
    here.stream.restart()
    here.query(f"DELETE FROM {MARKS}.spark_state")
    if rebuilt:
        for table in ("spark_checkpoint", "spark_ddl", "spark_lease"):
            here.query(f"DROP TABLE {MARKS}.{table}")
        here.query("DROP DATABASE d")
    else:
        here.query(f"UPDATE {MARKS}.spark_checkpoint SET checkPoint = '{saved}'")
        here.query("DELETE FROM d.k WHERE id = 2")
        here.query("DELETE FROM d.l LIMIT 2")
    with pytest.raises(ConfigError, match="This target was restored from a backup, was rebuilt, .* remove the checkpoint"):
        here.stream.apply()
    here.stream.restart()
    here.lose_real()
    here.applied(3)
    assert here.real()["commitTS"] == here.ours()["commitTS"]


@KINDS
def test_one_that_is_gone_is_written_again(kind: str, place: Make, caplog: pytest.LogCaptureFixture) -> None:
    here = place(kind)
    here.applied(1)
    here.stream.restart()
    if here.in_file:
        here.file.write_text("")
    else:
        here.lose_real()
    with caplog.at_level(logging.INFO):
        here.applied(2)
    assert "the target's own record counts" in caplog.text and here.real()["commitTS"] == here.ours()["commitTS"]


def test_a_damaged_file_is_an_error_that_says_what_to_do(place: Make) -> None:
    here = place("file")
    here.stream.restart()
    here.file.write_text("commitTS = ")
    with pytest.raises(ApplyError, match="is not a Drainer's savepoint.*Restore it. Or remove it"):
        _ = here.stream.sink
    here.lose_real()
    here.stream.restart()
    here.stream.apply()
    here.assert_equal()


def test_a_server_that_is_away_is_an_error_at_the_start_and_a_warning_later(place: Make, caplog: pytest.LogCaptureFixture) -> None:
    here = place("account")
    here.query("ALTER USER keeper@'%' IDENTIFIED BY 'another'")
    with caplog.at_level(logging.INFO):
        here.applied(1)
    assert "cannot be written, and stays behind" in caplog.text
    here.stream.restart()
    here.restarted_with(checkpoint=dataclasses.replace(here.config.checkpoint, host="127.0.0.1", port=free_port()))
    with pytest.raises(ApplyError, match="cannot connect"):
        _ = here.stream.sink
    here.query("ALTER USER keeper@'%' IDENTIFIED BY 'hush'")
    here.restarted_with()
    here.applied(2)
    assert here.real()["commitTS"] == here.ours()["commitTS"]


def test_two_drainers_with_one_file(place: Make, spark: SparkSession, query: Query) -> None:
    """They write to different targets, so that no lease tells them apart."""
    here = place("file")
    _ = here.stream.sink
    apply = dataclasses.replace(here.config.apply, checkpoint_schema=f"{MARKS}2")
    with EmulatedStream(spark, dataclasses.replace(here.config, apply=apply)) as other, pytest.raises(LeaseHeld, match="savepoint.lock"):
        _ = other.sink
    query(f"DROP DATABASE {MARKS}2")


@pytest.mark.shows("syncer.to.checkpoint.table")
def test_another_name_of_the_table_is_in_the_datas_transaction(spark: SparkSession, mariadb: PrivateMariaDB, query: Query) -> None:
    apply = ApplyConfig(checkpoint_schema=MARKS, on_finding="stop")
    config = DrainerConfig(target=mariadb.target(), apply=apply, checkpoint=CheckpointConfig(type="tidb", table="mine"))
    with EmulatedStream(spark, config) as stream:
        stream.create("d", KEYED)
        stream.change(lambda txn: txn.insert("d.k", {"id": 1, "v": 1}))
        stream.apply()
        stream.restart()
        stream.apply()
        ((value,),) = query(f"SELECT checkPoint FROM {MARKS}.mine WHERE clusterID = 7")
        assert json.loads(value)["commitTS"] == stream.sink.commit_ts and json.loads(value)["consistent"] is True
    assert query(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{MARKS}' AND table_name LIKE '%checkpoint'") == []


def test_a_recovery_that_is_refused_leaves_the_crashed_ones_checkpoint_not_consistent(place: Make, tmp_path: Path) -> None:
    """Otherwise no later start would know that a part of what follows is applied."""
    here = place("file")
    here.applied(1)
    here.stream.restart()
    back, version = here.real()["commitTS"], here.real()["schema-version"]
    here.query(f"DROP DATABASE {MARKS}")
    here.set_real(back, consistent=False)
    here.add(2)
    here.query("INSERT INTO d.k VALUES (2, 0)")
    log_dir = tmp_path / "relay"
    log_dir.mkdir()
    (log_dir / "binlog-0000000000000000-20261123000000").write_bytes(b"no record of a relay log at all")
    config = dataclasses.replace(here.config, relay=RelayConfig(str(log_dir)))
    for _ in range(2):
        with pytest.raises(Corruption):
            replayed(config, 7, threading.Event())
        assert (here.real()["consistent"], here.real()["commitTS"]) == (False, back)
        assert (here.ours()["consistent"], here.ours()["commitTS"], here.ours()["schema-version"]) == (False, back, version)
    here.stream.apply()
    assert sorted(here.query("SELECT id FROM d.k")) == [(1,), (2,)]


def test_one_that_was_set_back_under_an_open_span_is_applied_again_up_to_the_end_of_that(
    place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the copy of a clean stop: what the target says of its span is not what that copy says."""
    here = place("file")
    here.applied(1)
    back = here.ours()["commitTS"]
    here.applied(2)
    here.restarted_with(apply=dataclasses.replace(here.config.apply, atomic_rows=1, parts=2))
    for number in range(3, 12):
        here.add(number)
    with dying("before-downstream-commit"):
        here.stream.apply()
    killed(here, monkeypatch)
    assert here.query(f"SELECT 1 FROM {MARKS}.spark_state WHERE name = 'open'")
    begun = here.ours()["commitTS"]
    here.set_real(back, consistent=True)
    here.stream.apply(begun)
    here.stream.apply()
    assert sorted(here.query("SELECT id FROM d.k")) == [(n,) for n in range(1, 12)]


def test_the_newest_record_counts_where_the_checkpoint_is_asked_for_somewhere_else(place: Make, caplog: pytest.LogCaptureFixture) -> None:
    """To the file, back, and to the file again: each time what lies there is older than what the target has."""
    here = place("file")
    in_target = dataclasses.replace(here.config, checkpoint=CheckpointConfig(type="mysql"))
    number = 0
    with caplog.at_level(logging.INFO):
        for config in (here.config, in_target, here.config, here.config, in_target, here.config):
            here.stream.restart(config)
            here.applied(number + 1, number + 2)
            number += 2
            assert len(here.query(f"SELECT 1 FROM {MARKS}.spark_checkpoint")) == (config is here.config)
    assert here.real()["commitTS"] == here.ours()["commitTS"]
    assert caplog.text.count("the record moves") == 4 and "safe mode" not in caplog.text
    # set back by hand, it is meant; what the other setting has left in the target is older than what came since
    ((left,),) = here.query(f"SELECT checkPoint FROM {MARKS}.checkpoint WHERE clusterID = 7")
    here.stream.restart()
    here.set_real(json.loads(left)["commitTS"] - 1, consistent=True)
    here.stream.apply(json.loads(left)["commitTS"] - 1)
    here.stream.restart()
    assert here.ours()["commitTS"] < json.loads(left)["commitTS"]
    here.stream.apply()
    assert "set it back. It counts" in caplog.text and caplog.text.count("the record moves") == 4
    assert here.ours()["beside"] == json.loads(left)["commitTS"]


def test_a_file_by_which_another_drainer_went_on_is_never_passed_over(place: Make) -> None:
    here = place("file")
    here.applied(1)
    here.restarted_with(checkpoint=CheckpointConfig())
    here.set_real(here.stream.upstream.oracle.next(), consistent=True)
    with pytest.raises(ConfigError, match="savepoint is a checkpoint at .* Which of the two counts"):
        _ = here.stream.sink
    here.stream.restart()
    here.lose_real()
    here.applied(2)
