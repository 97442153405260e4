"""A lake in an object store: S3 as an emulator plays it, with conditional writes, in a process of its own."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.schemas.errors import LeaseHeld, LeaseLost
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaCheckpoint, DeltaFindings, DeltaRows, places
from pyspark_tidb_binlog.sinks.lake.moments import MIRRORED
from tests.support.bank_states import TOTAL
from tests.support.eventually import eventually
from tests.support.golden_messages import case_steps
from tests.support.lake_lives import BUSY_UPKEEP, replicate, sink_of
from tests.support.lake_rows import ledger_of
from tests.support.mirror_rows import assert_mirrored, by_delta, published, totals

pytestmark = pytest.mark.grpc
EMULATOR = """
import sys
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), request_handler=MotoRequestHandler)
"""
"""One request at a time: moto looks whether a key is there, and then writes it, so that of two threads both may."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An empty bucket; the environment says how to reach it, as for a real one."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-c", EMULATOR, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server, pytest.MonkeyPatch.context() as environ:
        try:
            eventually(lambda: made(f"{url}/lakes") or server.poll() is not None, what="the emulator serves", pause=0.1)
            assert server.poll() is None
            for name, value in {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}.items():
                environ.setenv(name, value)
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                environ.setenv(name, "any")
            yield "s3://lakes"
        finally:
            server.terminate()


def made(bucket: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(urllib.request.Request(bucket, method="PUT")) as answer:
        return bool(answer.status == 200)
    return False


def live(lake: Path | str, case: str, upto: int = 1 << 62, lease_timeout: float = 1.0) -> None:
    sink = sink_of(lake, lease_timeout, mirrors=True)
    try:
        replicate(sink, case=case, upto=upto)
    finally:
        sink.close()


@pytest.mark.parametrize("parts", [pytest.param((6, 3), id="a-third"), pytest.param((2, 0), id="whole", marks=pytest.mark.slow)])
def test_a_lake_in_a_store_is_as_one_in_a_directory(
    parts: tuple[int, ...], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a restart, with compactions and a log that is shortened meanwhile."""
    for (module, name), value in BUSY_UPKEEP.items():
        monkeypatch.setattr(module, name, value)
    _, rows, _ = case_steps("ddl")
    times = sorted(rows["commit_ts"].to_pylist())
    store = f"{bucket}/up-to-{parts[-1]}"
    for lake in (store, tmp_path):
        for part in parts:
            live(lake, "ddl", times[len(times) // part] if part else 1 << 62)
        if not parts[-1]:
            assert_mirrored("ddl", lake)
    assert ledger_of(store) == ledger_of(tmp_path)
    there, here = published(store), published(tmp_path)
    assert there.keys() == here.keys() and {state.state for state in there.values()} == {MIRRORED}
    for name in here:
        assert sorted(by_delta(store, there[name]), key=repr) == sorted(by_delta(tmp_path, here[name]), key=repr)


def test_writers_that_take_the_lease_from_each_other_leave_the_recorded_tables(bucket: str) -> None:
    lake = f"{bucket}/two"

    def lives() -> int:
        for lost in range(1000):
            try:
                live(lake, "bank", lease_timeout=0.02)
            except (LeaseLost, LeaseHeld):
                continue
            return lost
        raise AssertionError("it never comes to the end")

    with ThreadPoolExecutor(2) as pool:
        lost = [one.result() for one in [pool.submit(lives) for _ in range(2)]]
    assert sum(lost) > 0
    rows = ledger_of(lake)
    places = [(row["commit_ts"], row["seq"]) for row in rows if row["op"] != "ddl"]
    assert len(set(places)) == len(places) == len(case_steps("bank")[1])
    assert_mirrored("bank", lake)
    assert set(totals(lake)) - {0} == {TOTAL}


def test_the_delta_tables_of_a_stream_in_a_store(bucket: str) -> None:
    """Over a restart that brings a batch again."""
    uri, finding = f"{bucket}/delta", Finding(FindingKind.LOST, "gone")
    assert places(uri, "target") == (None, None)
    for batches in ((0, 1), (1, 2)):
        writer = DeltaCheckpoint(DeltaRows(uri, "query", "target", 3600.0), DeltaFindings(f"{uri}-findings", "query", 3600.0))
        for batch_id in batches:
            writer.record(CheckpointRow(batch_id, 10 * batch_id, 10 * batch_id + 10, findings=(finding,)))
        writer.close()
    assert places(uri, "target") == (30, None)
    for table in (uri, f"{uri}-findings"):
        assert sorted(DeltaTable(table).to_pyarrow_table()["batch_id"].to_pylist()) == [0, 1, 2]
