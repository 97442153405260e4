"""DDL history and outcomes of orphans from the status ports that PD knows, on a real etcd: several, any may be away, they come and go."""

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.history_place import TidbServers, history_at
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry, tidb_status_ports
from pyspark_tidb_binlog.binlog_source.pairing.resolver import outcomes_of
from pyspark_tidb_binlog.binlog_source.pairing.transitions import MissingOutcome, Orphan
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.mvcc import Mvcc
from pyspark_tidb_binlog.jobs.lab.emulator.process import UpstreamProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError, HistoryUnavailable
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from tests.support.binlogs import payload
from tests.support.ddl_jobs import database, job, table
from tests.support.registry_sites import CLUSTER, PdSite

pytestmark = pytest.mark.grpc
JOBS = [database(1), job(2, 3, table(100, "t"))]
START = 10 << 18


class Tidb:
    """A cluster's TiDB servers: a status port each, registered in PD while they run."""

    def __init__(self, site: PdSite) -> None:
        self._site = site
        self.mvcc = Mvcc()
        self.jobs = list(JOBS)
        self.servers: dict[str, ClusterService] = {}
        self.asked: list[str] = []

    def start(self, name: str, addr: str = "127.0.0.1:0") -> str:
        server = ClusterService(Oracle(), CLUSTER, addr=addr, history=partial(self._history, name), mvcc=self.mvcc.look_up)
        self.servers[name] = server.start()
        host, _, port = server.address.rpartition(":")
        value = json.dumps({"ip": host, "listening_port": 4000, "status_port": int(port)})
        self._site.etcd.gateway("kv/put", key=f"/tidb/server/info/{name}".encode(), value=value.encode())
        return server.address

    def stop(self, name: str, *, registered: bool = False) -> None:
        """A server that is killed stays registered until its lease ends."""
        self.servers.pop(name).stop()
        if not registered:
            self._site.etcd.gateway("kv/deleterange", key=f"/tidb/server/info/{name}".encode())

    def _history(self, name: str) -> list[dict[str, object]]:
        self.asked.append(name)
        return self.jobs


@pytest.fixture
def tidb(pd_site: PdSite) -> Iterator[Tidb]:
    made = Tidb(pd_site)
    yield made
    for name in list(made.servers):
        made.stop(name)


@pytest.fixture
def feed(pd_site: PdSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[HistoryFeed]:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.history_place.ASK_EVERY", 0.0)
    with contextlib.closing(open_registry(pd_site.url, tls=None)) as registry:
        yield HistoryFeed(TidbServers(partial(tidb_status_ports, registry)).urls, None, None)


@pytest.mark.shows("spark.tidb-status")
def test_the_history_is_read_from_any_server(tidb: Tidb, feed: HistoryFeed) -> None:
    tidb.start("one")
    tidb.start("two")
    assert len(feed.snapshot()) == 2 and not feed.is_recorded
    first = tidb.asked[0]
    tidb.stop(first, registered=True)
    tidb.jobs.append(job(3, 3, table(101, "u")))
    assert feed.wait_for_job(3).id == 3
    (left,) = tidb.servers
    assert tidb.asked[-1] == left


def test_a_server_that_is_added_is_asked(tidb: Tidb, feed: HistoryFeed) -> None:
    tidb.start("one")
    feed.snapshot()
    tidb.stop("one")
    tidb.start("two")
    tidb.jobs.append(job(3, 3, table(101, "u")))
    assert feed.wait_for_job(3).id == 3 and tidb.asked[-1] == "two"


def test_servers_that_are_all_away_are_named(tidb: Tidb, feed: HistoryFeed) -> None:
    with pytest.raises(HistoryUnavailable, match="names no running TiDB server.*tidb-status"):
        feed.snapshot()
    address = tidb.start("one")
    feed.snapshot()
    tidb.stop("one")
    with pytest.raises(HistoryUnavailable, match=f"cannot read http://{address}/ddl/history"):
        feed.refresh()
    tidb.start("one", address)
    assert len(feed.refresh()) == 2


def test_a_pd_that_is_away_is_named(pd_site: PdSite, feed: HistoryFeed) -> None:
    pd_site.pd.stop()
    with pytest.raises(
        HistoryUnavailable, match=r"cannot read the DDL history, because no status port of TiDB is known: PD .* does not answer"
    ):
        feed.snapshot()


def test_a_standalone_registry_serves_the_history_itself(tmp_path: Path) -> None:
    (file := tmp_path / "history.json").write_text(json.dumps(JOBS))
    with contextlib.ExitStack() as stack:
        for name, served, said in (("with", file, ""), ("without", None, "answered 404: .*start the registry with --history")):
            process = stack.enter_context(UpstreamProcess(tmp_path / name, CLUSTER, history=served))
            assert isinstance(process, UpstreamProcess)
            feed = HistoryFeed(history_at(SourceConfig(pumps=process.url), None), None, None)
            with pytest.raises(HistoryUnavailable, match=said) if said else contextlib.nullcontext():
                assert len(feed.snapshot()) == 2
    with pytest.raises(ConfigError, match=r"tidb-status is not set: name TiDB's status port"):
        history_at(SourceConfig(pumps="10.0.0.1:8250"), None)


@pytest.mark.parametrize("named", ["", "history.json.gz"], ids=["nothing named", "a recorded history"])
def test_orphans_are_resolved_by_any_server(pd_site: PdSite, tidb: Tidb, named: str) -> None:
    source = SourceConfig(pumps=pd_site.url, tidb_status=named)
    orphan = Orphan("p1", START, payload(0, START, prewrite_key=b"k", prewrite_value=b""), 5000)
    resolve: Callable[[], object] = lambda: outcomes_of([orphan], lambda ts: 0, source).settled  # noqa: E731
    tidb.mvcc.commit(b"k", START, START + 5)
    assert resolve() == (), "no server is running: the Prewrite waits"
    tidb.start("one")
    tidb.start("two")
    for gone in ("one", "two"):
        tidb.stop(gone, registered=True)
        assert resolve() == (MissingOutcome("p1", START, START + 5),)
        tidb.start(gone)


def test_a_pd_that_is_away_leaves_the_orphan_waiting(pd_site: PdSite, tidb: Tidb, caplog: pytest.LogCaptureFixture) -> None:
    tidb.start("one")
    pd_site.pd.stop()
    orphan = Orphan("p1", START, payload(0, START, prewrite_key=b"k", prewrite_value=b""), 5000)
    assert outcomes_of([orphan], lambda ts: 0, SourceConfig(pumps=pd_site.url)).settled == ()
    assert "PD does not name the status ports of TiDB" in caplog.text


def test_without_orphans_pd_is_not_asked(pd_site: PdSite) -> None:
    pd_site.pd.stop()
    assert outcomes_of([], lambda ts: 0, SourceConfig(pumps=pd_site.url)).settled == ()


def test_a_tidb_of_another_cluster_settles_nothing_as_rolled_back(pd_site: PdSite, tidb: Tidb, caplog: pytest.LogCaptureFixture) -> None:
    orphan = Orphan("p1", START, payload(0, START, prewrite_key=b"k", prewrite_value=b""), 5000)
    strange = ClusterService(Oracle(), CLUSTER + 1).start()
    own = tidb.start("one")

    def settled(port: str) -> object:
        return outcomes_of([orphan], lambda ts: 10**9, SourceConfig(pumps=pd_site.url, tidb_status=f"http://{port}")).settled

    try:
        assert (
            settled(strange.address) == () and f"it is of cluster {CLUSTER + 1}, but this program serves cluster {CLUSTER}" in caplog.text
        )
    finally:
        strange.stop()
    assert settled(own) == (MissingOutcome("p1", START, 0),)
