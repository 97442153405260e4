"""The whole product over TLS, as an operator runs it: Pumps as processes, the drainer by its entry script, ``ctl``, and a target that lets nobody in
without TLS; what is in the clear, or of another authority, is refused.
"""

import contextlib
import re
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, NodeState
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed, write_binlog
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.encrypted import encrypted
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, fetch
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.arena import Arena, Cut
from tests.support.certificates import Authority
from tests.support.golden_case import GOLDEN
from tests.support.pump_writes import prewrite

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)  # the server may run as another user
        yield Path(made)


@pytest.fixture
def ca(place: Path) -> Authority:
    return Authority(place / "ca")


@pytest.fixture
def target(place: Path, ca: Authority) -> Iterator[PrivateMariaDB]:
    """It has another authority than the cluster, and refuses what comes over TCP without TLS."""
    theirs = Authority(place / "theirs")
    made = theirs.certify("target", "target", names=("127.0.0.1",))
    made.key.chmod(0o644)
    theirs.certify("drainer")
    options = {"ssl-ca": theirs.ca, "ssl-cert": str(made.cert), "ssl-key": str(made.key), "require-secure-transport": "ON"}
    with PrivateMariaDB(options=options) as server:
        yield server


def flags_of_target(place: Path, target: PrivateMariaDB) -> list[str]:
    theirs = place / "theirs"
    return [
        "--spark.socket=",
        "--syncer.to.host=127.0.0.1",
        f"--syncer.to.port={target.port}",
        "--syncer.to.password=wrong",
        f"--syncer.to.encrypted_password={encrypted(target.target().password, {})}",
        f"--syncer.to.security.ssl-ca={theirs / 'test-ca.pem'}",
        f"--syncer.to.security.ssl-cert={theirs / 'drainer.pem'}",
        f"--syncer.to.security.ssl-key={theirs / 'drainer.key'}",
        "--syncer.to.security.cert-allowed-cn=target",
        "--spark.ending-commit-ts=0",
        "--spark.wake-idle-pumps=200ms",
        "--node-id=d1",
    ]


@pytest.mark.shows(
    "security.ssl-ca",
    "security.ssl-cert",
    "security.ssl-key",
    "pump security.ssl-ca",
    "pump security.ssl-cert",
    "pump security.ssl-key",
    "ctl -ssl-ca",
)
@pytest.mark.parametrize("delivery", ["raw", pytest.param("sorted", marks=pytest.mark.slow)])
def test_a_cluster_over_tls(
    place: Path, ca: Authority, target: PrivateMariaDB, tmp_path: Path, delivery: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = ca.settings("node", "node", ("node",))
    cut = Cut(step_bytes=300, max_bytes=2500, atomic_rows=1 if delivery == "raw" else 50_000)
    with Arena(load(GOLDEN / "txn"), target, tmp_path / "run", delivery, cut, tls=tls) as arena:
        as_ctl = [f"-registry={arena.service.url}", f"-ssl-ca={tls.ca}", f"-ssl-cert={tls.cert}", f"-ssl-key={tls.key}"]
        assert arena.service.url.startswith("https://")
        arena.write()
        with arena.drainer(flags=flags_of_target(place, target)) as drainer:
            drainer.until(lambda: reached(arena))
            (node,) = arena.service.nodes.listing(DRAINERS).nodes
            assert ctl.main(["status", *as_ctl]) == 0
            assert "Drainer d1 at 127.0.0.1" in capsys.readouterr().out
            for address in (node.host, *arena.addresses):
                only_for_the_cluster(address, ca, tls, place)
            for path in ("", "page.json", "docs/tls"):
                assert fetch(f"https://{node.host}/{path}", 30, tls=tls).ok
                with pytest.raises(FAILURES):
                    fetch(f"https://{node.host}/{path}", 30, tls=ca.settings("other", "other"))
            assert ctl.main(["pause-drainer", "-node-id=d1", *as_ctl]) == 0
            drainer.until(lambda: state(arena) is NodeState.PAUSED)
            assert ctl.main(["resume-drainer", "-node-id=d1", *as_ctl]) == 0
            drainer.until(lambda: state(arena) is NodeState.ONLINE)
            with pytest.raises(PumpUnavailable):
                ctl.main(["pause-drainer", "-node-id=d1", as_ctl[0], f"-ssl-ca={tls.ca}"])
            assert state(arena) is NodeState.ONLINE
            assert ctl.main(["offline-drainer", "-node-id=d1", *as_ctl]) == 0
            assert drainer.wait() == 0, drainer.output()
        assert state(arena) is NodeState.OFFLINE
        arena.compare()
    told = (tmp_path / "run" / "job-1.log").read_text()
    assert "refusing the TLS connection of client" in told, "who was refused is in the log"
    keys = ["".join(Path(key).read_text().splitlines()[1:-1])[:40] for key in (tls.key, place / "theirs" / "drainer.key")]
    for path in [path for path in (tmp_path / "run").rglob("*") if path.is_file()]:
        assert not [secret for secret in (target.target().password, *keys) if secret.encode() in path.read_bytes()], path


def reached(arena: Arena) -> bool:
    """Whether the target has the whole case; a fake binlog may have taken the checkpoint further."""
    found = re.search(r'"commitTS": ?(\d+)', arena.checkpoint())
    return found is not None and int(found[1]) >= arena.case.end_ts


def state(arena: Arena) -> NodeState:
    (node,) = arena.service.nodes.listing(DRAINERS).nodes
    return node.state


def only_for_the_cluster(address: str, ca: Authority, tls: TlsSettings, place: Path) -> None:
    """The node answers those with the cluster's certificate, and nobody else, with nothing."""
    assert fetch(f"https://{address}/status", 30, tls=tls).ok
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as plain:
        plain.sendall(b"PUT /state/d1/close HTTP/1.1\r\nHost: a\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(1).strip(b"\x15"), "an alert of TLS at most"
    strange = Authority(place / "stranger").settings("strange", "node")
    for who in (TlsSettings(ca.ca), TlsSettings(ca.ca, strange.cert, strange.key), ca.settings("other", "other")):
        with pytest.raises(FAILURES):
            fetch(f"https://{address}/state/d1/close", 30, "PUT", tls=who)
        with pytest.raises(WriteFailed):
            write_binlog(address, 1, prewrite(6), tls=who)
    with pytest.raises(ssl.SSLError):
        fetch(f"https://{address}/status", 30, tls=strange)


def test_the_pump_client_over_tls(ca: Authority, tmp_path: Path) -> None:
    tls = ca.settings("node", "node", ("node",))
    case = load(GOLDEN / "txn")
    with Arena(case, None, tmp_path / "run", "raw", tls=tls) as arena:
        with PumpClient.fixed(arena.addresses, case.cluster_id, PumpClientSettings(tls=tls)) as client:
            client.write(prewrite(5))
        with (
            PumpClient.fixed(arena.addresses, case.cluster_id, PumpClientSettings(1.0, tls=TlsSettings(ca.ca))) as stranger,
            pytest.raises(PumpUnavailable),
        ):
            stranger.write(prewrite(6))


@pytest.mark.parametrize(
    ("file", "why"),
    [
        pytest.param("/nowhere.pem", "security: ssl-ca cannot be read from /nowhere.pem", id="no file"),
        pytest.param("", "security: a server with ssl-ca also needs ssl-cert and ssl-key", id="no certificate"),
    ],
)
def test_what_cannot_be_used_ends_the_drainer_at_once(file: str, why: str, ca: Authority, spark: SparkSession, tmp_path: Path) -> None:
    """The file is named, also where there is no certificate to listen with; such an error is exit code 2."""
    with Arena(load(GOLDEN / "txn"), None, tmp_path / "run", "raw") as arena, pytest.raises(ConfigError, match=why):
        arena.drain(spark, ["--node-id=d1", f"--security.ssl-ca={file or ca.ca}"])
