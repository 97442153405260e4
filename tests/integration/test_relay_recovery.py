"""The relay log and recovery from it on a real MariaDB: kills in the middle of a span applied row by row, then without the upstream."""

import itertools
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import files_in, walk
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, Stopped
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from tests.support.recorded import PLACE
from tests.support.relay_process import RelayTask, recover, stream_until
from tests.support.row_sink_process import SCHEMA, RowPlace, empty_place, made, run, worlds
from tests.support.row_worlds import RowHistory

pytestmark = pytest.mark.mysql

SETTINGS: dict[str, Any] = {"worker_count": 4, "txn_batch": 3}
BATCHES = [2, 50, 30]
KEYED = ("c1", "c2", "k")


class Site(RowPlace):
    """A target and a relay log of one test."""

    def __init__(self, server: PrivateMariaDB, log_dir: Path) -> None:
        super().__init__(server)
        self.log_dir = log_dir
        self.create(*worlds())

    def task(self, seed: str, batches: list[int] | None = None, **settings: Any) -> RelayTask:
        return RelayTask(self.server.target(), seed, batches or BATCHES, SETTINGS | settings, str(self.log_dir))

    def all(self) -> dict[str, list[str]]:
        return self.rows(*worlds())

    def commit_ts(self) -> int:
        ((value,),) = self.query(f"SELECT JSON_VALUE(checkPoint, '$.commitTS') FROM {SCHEMA}.checkpoint")
        return int(value)


@pytest.fixture
def site(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Site]:
    with empty_place(mariadb) as server:
        yield Site(server, tmp_path / "relay")


def snapshot(seed: str, commit_ts: int) -> dict[str, list[str]]:
    """The upstream's rows once the batch that ends at ``commit_ts`` was committed."""
    history = RowHistory(worlds(), random.Random(seed))
    for transactions in BATCHES:
        history.batch(transactions)
        if history.ts == commit_ts:
            return history.expected()
    raise AssertionError(f"no batch ends at {commit_ts}")


def keyed(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: rows[name] for name in KEYED}


def killed_within(site: Site, seed: str, point: str) -> None:
    ended = run(site.task(seed), {failpoints.DIE: point})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert '"consistent":false' in site.checkpoint()


@pytest.mark.shows("syncer.relay.log-dir")
@pytest.mark.parametrize("number", [3, pytest.param(16, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.slow)])
def test_killed_in_lanes_then_without_the_upstream(site: Site, number: int) -> None:
    """The target becomes what the upstream held at the checkpoint that recovery saves, and goes on from there with the upstream."""
    seed = str(number)
    killed_within(site, seed, f"after-rows-commit:{number}")
    done = recover(site.task(seed))
    assert done is not None
    assert f'"consistent":true,"commitTS":{done.commit_ts},' in site.checkpoint()
    assert keyed(site.all()) == keyed(snapshot(seed, done.commit_ts))
    assert done.keyless <= {"d.x", "d.h"}
    assert site.query(f"SELECT COUNT(*) FROM {SCHEMA}.spark_state WHERE name <> 'ours'") == [(0,)]
    assert recover(site.task(seed)) is None
    stream_until(site.task(seed))
    assert keyed(site.all()) == keyed(made(seed, BATCHES)[0].expected())


@pytest.mark.shows("relay log")
@pytest.mark.parametrize("upstream_returns", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_recovery_is_killed_and_repeated(site: Site, upstream_returns: bool) -> None:
    """What it has begun is finished by itself, or by the stream."""
    seed = "again"
    killed_within(site, seed, "after-rows-commit:5")
    for number in (1, 2):
        ended = run(site.task(seed, recovers=7), {failpoints.DIE: f"after-rows-commit:{number}"})
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert '"consistent":false' in site.checkpoint()
        assert site.query("SELECT JSON_VALUE(value, '$.done') > 0 " + PLACE.format(SCHEMA)) == [(1,)]
    if not upstream_returns:
        done = recover(site.task(seed))
        assert done is not None and keyed(site.all()) == keyed(snapshot(seed, done.commit_ts))
    stream_until(site.task(seed))
    assert keyed(site.all()) == keyed(made(seed, BATCHES)[0].expected())
    assert '"consistent":true' in site.checkpoint()


def test_a_stop_request_ends_a_recovery_between_two_records(site: Site) -> None:
    """While it looks through the log, and while it applies it; the next one goes on."""
    seed = "stopped"
    killed_within(site, seed, "after-rows-commit:5")
    records = sum(1 for _ in walk(site.log_dir))
    for last in (0, records + records // 2):
        asked = itertools.count()

        def pause(seconds: float, asked: Iterator[int] = asked, last: int = last) -> None:
            if next(asked) == last:
                raise Stopped("asked to")

        with pytest.raises(Stopped):
            recover(site.task(seed), pause)
        assert '"consistent":false' in site.checkpoint()
    done = recover(site.task(seed))
    assert done is not None and keyed(site.all()) == keyed(snapshot(seed, done.commit_ts))


def test_each_operation_is_applied_once_over_all_lives_of_the_recovery(site: Site) -> None:
    """Rows without a key included, of a span of which nothing was in the target yet: nothing would repair them."""
    seed, batches = "once", [50]
    ended = run(site.task(seed, batches), {failpoints.DIE: "before-rows-commit:1"})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not any(site.all().values()) and '"consistent":false' in site.checkpoint()
    for point in ("after-rows-commit:3", "before-rows-commit:2", "after-rows-commit:5"):
        ended = run(site.task(seed, batches, recovers=11), {failpoints.DIE: point})
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert recover(site.task(seed, batches)) is not None
    assert site.all() == made(seed, batches)[0].expected()


def test_what_was_written_but_not_begun_is_written_once(site: Site) -> None:
    seed = "ahead"
    ended = run(site.task(seed), {failpoints.DIE: "after-relay-write:2"})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert '"consistent":true' in site.checkpoint()
    assert recover(site.task(seed)) is None
    stream_until(site.task(seed))
    stamps = [commit_ts_of(r.payload) for r in walk(site.log_dir)]
    assert stamps == sorted(set(stamps)) == sorted(set(made(seed, BATCHES)[1].column("commit_ts").to_pylist()))
    assert keyed(site.all()) == keyed(made(seed, BATCHES)[0].expected())


@pytest.mark.shows("syncer.relay.max-file-size")
def test_an_open_span_keeps_its_files(site: Site) -> None:
    seed = "open"
    ended = run(site.task(seed, max_file_bytes=2000), {failpoints.DIE: "after-rows-commit:9"})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(files_in(site.log_dir)) > 2
    done = recover(site.task(seed))
    assert done is not None and keyed(site.all()) == keyed(snapshot(seed, done.commit_ts))


def test_a_torn_tail_is_cut_and_damage_is_named(site: Site) -> None:
    killed_within(site, "torn", "after-rows-commit:5")
    (only,) = files_in(site.log_dir)
    path = site.log_dir / only.name
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    before = site.all()
    with pytest.raises(Corruption, match=rf"{only.name}: the checksum of the record at offset 0"):
        recover(site.task("torn"))
    assert site.all() == before
    path.write_bytes(whole + whole[:30])
    done = recover(site.task("torn"))
    assert done is not None and keyed(site.all()) == keyed(snapshot("torn", done.commit_ts))


def test_a_log_without_the_span_is_refused(site: Site) -> None:
    killed_within(site, "lost", "after-rows-commit:5")
    before = site.all()
    (site.log_dir / "relay.spark").unlink()
    with pytest.raises(ApplyError, match="does not hold all of them"):
        recover(site.task("lost"))
    assert site.all() == before


def test_a_full_disk_is_an_error_before_anything_is_applied(site: Site) -> None:
    """A limit on the size of files is what a full disk is to ``write``: EFBIG instead of ENOSPC."""
    ended = run(site.task("full", file_limit=4000), {})
    assert ended.returncode != 0 and "cannot write the relay log" in ended.stderr
    applied = site.all()
    assert keyed(applied) == keyed(snapshot("full", site.commit_ts()))
    assert '"consistent":true' in site.checkpoint()
    stream_until(site.task("full"))
    assert keyed(site.all()) == keyed(made("full", BATCHES)[0].expected())
