"""After a real run nothing that a person may read holds the target's password, nor the key of encrypted ones: logs, output, Spark's UI and event log, its checkpoint, its files, Delta's."""

import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.source.offset import PumpMark
from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, offers_raw
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.schemas.errors import ApplyError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from tests.support.arena import Arena, Cut
from tests.support.certificates import Authority
from tests.support.drainer_process import ROOT, environ_of
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

SECRET_KEY = "00c0ffee" * 8
PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
REST = ("environment", "executors", "jobs", "stages", "sql?details=true&planDescription=true&length=1000", "storage/rdd")


@pytest.mark.shows("syncer.to.password")
def test_a_run_leaves_no_trace_of_the_password(fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """The password comes in a flag, the way that is told most of; batches go in parts, so executors log in too."""
    secrets = fresh_mariadb.target().password, SECRET_KEY
    cut = Cut(step_bytes=300, max_bytes=2500, atomic_rows=1)
    with Arena(load(GOLDEN / "txn"), fresh_mariadb, tmp_path / "run", "raw", cut) as arena:
        arena.write()
        with running(arena, tmp_path, secrets[0]) as ui:
            wait_for_parts(fresh_mariadb, arena.case.end_ts)
            seen = dict(pages(ui))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "target" not in path.parts]
    assert any("eventlog" in path.parts and path.stat().st_size for path in files)
    assert any("local" in path.parts for path in files), "Spark's own files, as a kill leaves them"
    assert sum(len(text) for text in seen.values()) > 100_000
    found = [name for name, text in seen.items() for secret in secrets if secret in text]
    found += [str(path) for path in files for secret in secrets if secret.encode() in path.read_bytes()]
    assert found == []


def test_a_wrong_password_is_not_told(
    spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = "hard-to-guess"
    with Arena(load(GOLDEN / "txn"), mariadb, tmp_path, "sorted") as arena:
        arena.write()
        with pytest.raises(ApplyError, match="Access denied") as refused:
            arena.drain(spark, [f"--syncer.to.password={wrong}", "--log-level=debug"])
    assert caplog.text and wrong not in "".join([*traceback.format_exception(refused.value), caplog.text, *capfd.readouterr()])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and wrong.encode() in path.read_bytes()]


def test_what_is_shipped_and_stored_holds_no_key_of_a_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Executors get paths; offsets and what is logged when a file cannot be used do not even have the file's content."""
    tls = Authority(tmp_path).settings(allowed_cn=("node",))
    body = "".join(Path(tls.key).read_text().splitlines()[1:-1])
    endpoint = Endpoint("p", "127.0.0.1:1", 7, tls)
    mark = PumpMark(Position(0, 5), seen_ts=5)
    part = BinlogPartition(endpoint, Delivery.SORTED, 1, 5, Position(0, 0), Position(0, 5), 1)
    Path(tls.cert).write_text("no certificate")
    with caplog.at_level(logging.DEBUG), pytest.raises(PumpUnavailable, match="security: ssl-cert and ssl-key cannot be read") as failed:
        offers_raw(endpoint, 0)
    for made in (pickle.dumps((endpoint, part)), repr((endpoint, part, mark)).encode(), caplog.text.encode(), str(failed.value).encode()):
        assert body[:40].encode() not in made
    assert tls.key.encode() in pickle.dumps(part)


@contextlib.contextmanager
def running(arena: Arena, work_dir: Path, password: str) -> Iterator[str]:
    """The drainer by its entry script, killed at the end so that it cleans nothing up; gives the address of its UI."""
    run = arena.work_dir
    (run / "eventlog").mkdir()
    port = free_port()
    spark = {
        "spark.ui.enabled": "true",
        "spark.ui.port": port,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{run / 'eventlog'}",
        "spark.local.dir": run / "local",
    }
    conf = [word for name, value in spark.items() for word in ("--conf", f"{name}={value}")]
    flags = arena.flags() | {"syncer.to.password": password, "spark.ending-commit-ts": 0, "log-level": "debug"}
    command = [str(ROOT / "spark-submit.sh"), *conf, "drainer", *(f"--{name}={value}" for name, value in flags.items())]
    environ = environ_of(arena.target, run / "job.log")
    del environ["TIDB_BINLOG__SYNCER__TO__PASSWORD"]
    environ["BINLOG_SECRET_KEY"] = SECRET_KEY
    with (run / "out.txt").open("wb") as out:
        process = subprocess.Popen(command, env=environ, cwd=work_dir, stdout=out, stderr=out, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_parts(target: PrivateMariaDB, end_ts: int) -> None:
    """Until everything is there; every batch of it went in parts."""

    def there() -> bool:
        with contextlib.suppress(Exception), target.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            return bool(json.loads(cursor.fetchall()[0][0])["commitTS"] >= end_ts)
        return False

    eventually(there, seconds=300, what="the drainer gets to the end", pause=0.2)


def pages(ui: str) -> Iterator[tuple[str, str]]:
    """What the UI shows, as pages and by its REST interface."""
    for page in PAGES:
        yield page, fetched(f"{ui}/{page}")
    (application,) = json.loads(fetched(f"{ui}/api/v1/applications"))
    for name in REST:
        yield name, fetched(f"{ui}/api/v1/applications/{application['id']}/{name}")


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())
