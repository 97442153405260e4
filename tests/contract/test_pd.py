"""What only PD's registry has: the bytes in etcd, compaction, broken keys, a leader that changes, TiDB's status ports."""

import base64
import json
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.gc_hold import GcHold
from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import tidb_status_ports
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from tests.support.eventually import eventually
from tests.support.registry_sites import PdSite

pytestmark = pytest.mark.grpc
LONG = 30.0
A, B = NodeStatus("a", "127.0.0.1:1"), NodeStatus("b", "127.0.0.1:2")
ROOT = b"/tidb-binlog/v1/pumps/"


@pytest.fixture
def registry(pd_site: PdSite) -> Iterator[PdRegistry]:
    made = PdRegistry(pd_site.pd.urls, tls=None)
    yield made
    made.close()


def test_keys_and_values_are_a_real_pumps(pd_site: PdSite, registry: PdRegistry) -> None:
    for state in (NodeState.ONLINE, NodeState.PAUSED):
        registry.put_status(PUMPS, NodeStatus("host:8250", "127.0.0.1:8250", state, 470604587006951425, 470604587124916225))
    (pair,) = pd_site.etcd.gateway("kv/range", key=b"/tidb-binlog/", range_end=b"/tidb-binlog0")["kvs"]
    assert base64.b64decode(pair["key"]) == ROOT + b"host:8250"
    assert base64.b64decode(pair["value"]) == (
        b'{"nodeId":"host:8250","host":"127.0.0.1:8250","state":"paused","isAlive":false,"score":0,"label":null,'
        b'"maxCommitTS":470604587006951425,"updateTS":470604587124916225}'
    )
    assert pair["version"] == "2" and "lease" not in pair


def test_compaction_loses_nothing(pd_site: PdSite, registry: PdRegistry) -> None:
    registry.put_status(PUMPS, A)
    known = registry.listing(PUMPS).revision
    for commit_ts in range(5):
        registry.put_status(PUMPS, NodeStatus("b", "h", max_commit_ts=commit_ts))
    newest = registry.listing(PUMPS)
    pd_site.etcd.gateway("kv/compaction", revision=newest.revision, physical=True)
    assert registry.changes(PUMPS, known, LONG) == registry.changes(PUMPS, known, 0)
    assert registry.changes(PUMPS, known, 0).nodes == (NodeStatus("b", "h", max_commit_ts=4),)
    assert registry.changes(PUMPS, newest.revision, 0).nodes == ()


def test_a_wait_is_a_watch_and_no_polling(registry: PdRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.etcd._BROKEN_PAUSE", LONG)
    known = registry.listing(PUMPS).revision
    for status in (A, B):
        writing = threading.Timer(0.3, registry.put_status, [PUMPS, status])
        writing.start()
        begun = time.monotonic()
        news = registry.changes(PUMPS, known, LONG)
        writing.join()
        assert news.nodes == (status,) and time.monotonic() - begun < LONG / 2
        known = news.revision


def test_a_watch_that_compaction_overtakes_goes_on(pd_site: PdSite, registry: PdRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the watch another key is written and everything compacted; then the watch itself is refused."""
    original, refused = registry._etcd.wait_for_put, []

    def late(prefix: bytes, revision: int, seconds: float) -> None:
        if not refused:
            pd_site.etcd.gateway("kv/put", key=b"/other", value=b"x")
            newest = pd_site.etcd.gateway("kv/put", key=b"/other", value=b"y")["header"]["revision"]
            pd_site.etcd.gateway("kv/compaction", revision=newest, physical=True)
            begun = time.monotonic()
            original(prefix, revision, seconds)
            refused.append(time.monotonic() - begun)
            registry.put_status(PUMPS, A)
        else:
            original(prefix, revision, seconds)

    monkeypatch.setattr(registry._etcd, "wait_for_put", late)
    assert registry.changes(PUMPS, registry.listing(PUMPS).revision, LONG).nodes == (A,)
    assert refused[0] < LONG / 2


def test_deletions_are_no_news(pd_site: PdSite, registry: PdRegistry) -> None:
    registry.put_status(PUMPS, A)
    known = registry.listing(PUMPS).revision
    pd_site.etcd.gateway("kv/deleterange", key=ROOT + b"a")
    assert registry.changes(PUMPS, known, 0.3).nodes == ()
    registry.put_status(PUMPS, B)
    assert registry.changes(PUMPS, known, LONG).nodes == (B,)


def test_a_broken_key_is_left_out_and_told_once(pd_site: PdSite, registry: PdRegistry, caplog: pytest.LogCaptureFixture) -> None:
    known = registry.listing(PUMPS).revision
    registry.put_status(PUMPS, A)
    for key, value in ((b"b", b"{"), (b"b/sub", b'"text"'), (b"c", b'{"nodeId":"c","host":"h","state":"asleep"}')):
        pd_site.etcd.gateway("kv/put", key=ROOT + key, value=value)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert registry.listing(PUMPS).nodes == registry.changes(PUMPS, known, LONG).nodes == (A,)
    assert [record.message.split(" is left out")[0].rpartition("key ")[2] for record in caplog.records] == [
        (ROOT + key).decode() for key in (b"b", b"b/sub", b"c")
    ]
    assert registry.listing(PUMPS).unreadable == ("b", "c"), "they are there"
    known = registry.listing(PUMPS).revision
    pd_site.etcd.gateway("kv/put", key=ROOT + b"b", value=b"[]")
    assert registry.changes(PUMPS, known, 0.3).nodes == (), "a broken value wakes nobody"


def test_a_put_that_lost_the_race_is_tried_again(pd_site: PdSite, registry: PdRegistry) -> None:
    """Nodes that come and go while they are written: neither the creation nor the update may be lost."""
    stop = threading.Event()

    def delete() -> None:
        while not stop.is_set():
            pd_site.etcd.gateway("kv/deleterange", key=ROOT + b"a")

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        for commit_ts in range(200):
            registry.put_status(PUMPS, NodeStatus("a", "h", max_commit_ts=commit_ts))
    finally:
        stop.set()
        thread.join()
    registry.put_status(PUMPS, NodeStatus("a", "h", max_commit_ts=200))
    assert [node.max_commit_ts for node in registry.listing(PUMPS).nodes] == [200]


def test_timestamps_go_on_when_the_leader_changes(pd_site: PdSite, registry: PdRegistry) -> None:
    pd = pd_site.pd
    first, second = pd.members
    given = [registry.tso() for _ in range(3)]
    assert (first.asked, second.asked) == (3, 0), "one leader is asked, over one stream"
    pd.lead(second)
    given += [registry.tso(), registry.tso()]
    assert second.asked == 2
    second.break_streams()
    given += [registry.tso()]
    pd.leader = first  # nobody says so: the member that led refuses the next request
    given += [registry.tso()]
    first.stop()
    pd.lead(second)
    given += [registry.tso()]
    assert given == sorted(set(given))


def test_timestamps_wait_a_moment_for_a_leader(pd_site: PdSite, registry: PdRegistry) -> None:
    pd_site.pd.lead(None)
    threading.Timer(0.5, pd_site.pd.lead, [pd_site.pd.members[1]]).start()
    assert registry.tso() > 0


def test_a_pd_without_a_leader_is_told(pd_site: PdSite, registry: PdRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.pd.REQUEST_SECONDS", 0.3)
    pd_site.pd.lead(None)
    with pytest.raises(PumpUnavailable, match=f"{pd_site.pd.members[0].address}.*no leader"):
        registry.tso()


def test_the_gc_safe_point_is_the_leaders(pd_site: PdSite, registry: PdRegistry) -> None:
    pd_site.pd.safe_point = 470604587006951425
    assert registry.gc_safe_point() == 470604587006951425
    for member in reversed(pd_site.pd.members):
        pd_site.pd.lead(member)
        assert registry.gc_safe_point() == 470604587006951425
    pd_site.pd.lead(None)
    with pytest.raises(PumpUnavailable, match="not leader"):
        registry.gc_safe_point()
    pd_site.pd.lead(pd_site.pd.members[0])


def test_any_member_will_do(pd_site: PdSite, registry: PdRegistry) -> None:
    registry.put_status(PUMPS, A)
    for gone, left in (pd_site.pd.members, pd_site.pd.members[::-1]):
        gone.stop()
        pd_site.pd.lead(left)
        assert registry.listing(PUMPS).nodes == (A,)
        known = registry.listing(PUMPS).revision
        assert registry.changes(PUMPS, known, 0.1).nodes == ()
        assert registry.tso() > 0
        gone.start()


@pytest.mark.shows("spark.cluster-id")
def test_another_clusters_pd_is_refused(pd_site: PdSite, registry: PdRegistry) -> None:
    registry.tso()
    pd_site.pd.cluster_id += 1
    pd_site.pd.members[0].break_streams()
    with pytest.raises(ConfigError, match="one cluster"):
        registry.tso()


def test_the_status_ports_of_tidb(pd_site: PdSite, registry: PdRegistry, caplog: pytest.LogCaptureFixture) -> None:
    assert tidb_status_ports(registry) == ()
    servers = [{"ip": "10.0.0.2", "status_port": 10080}, {"ip": "10.0.0.1", "listening_port": 4000, "status_port": 10081}]
    servers += [{"ip": "10.0.0.2", "status_port": 10080}, {"ip": "fd00::1", "status_port": 10080}, {"version": "8"}]
    for number, info in enumerate(servers):
        pd_site.etcd.gateway("kv/put", key=f"/tidb/server/info/uuid-{number}".encode(), value=json.dumps(info).encode())
    with caplog.at_level(logging.WARNING):
        assert tidb_status_ports(registry) == ("10.0.0.1:10081", "10.0.0.2:10080", "[fd00::1]:10080")
    assert "uuid-4 is left out" in caplog.text


@pytest.mark.shows("GC safe point")
def test_gc_is_kept_behind_the_checkpoint(pd_site: PdSite, caplog: pytest.LogCaptureFixture) -> None:
    """Renewed with the checkpoint of the moment, over a PD that is away for a while, and ended at the stop."""
    pd, checkpoint = pd_site.pd, iter(range(1000, 100_000))
    pd.safe_point, pd.held, pd.holds = 900, {}, []
    hold = GcHold(PdRegistry(pd.urls, tls=None), lambda: next(checkpoint), every=0.05, pause=0.02)
    assert hold.service_id.startswith("drainer_") and pd.held == {hold.service_id: 1000}
    assert pd.holds[0] == (hold.service_id, 300, 1000)
    eventually(lambda: len(pd.holds) >= 3, seconds=LONG)
    pd.stop()
    eventually(lambda: "GC safe point: " in caplog.text, seconds=LONG)
    told = len(pd.holds)
    pd.start()
    eventually(lambda: len(pd.holds) > told, seconds=LONG)
    assert pd.held[hold.service_id] > 1000
    hold.stop()
    assert pd.held == {} and pd.holds[-1][1] == 0
    ended = len(pd.holds)
    time.sleep(0.2)
    assert len(pd.holds) == ended


@pytest.mark.shows("GC safe point")
def test_gc_that_is_ahead_of_the_checkpoint_is_told_once(pd_site: PdSite, caplog: pytest.LogCaptureFixture) -> None:
    pd = pd_site.pd
    pd.safe_point, pd.held, pd.holds = 2000, {}, []
    hold = GcHold(PdRegistry(pd.urls, tls=None), lambda: 1000, every=0.02)
    eventually(lambda: len(pd.holds) >= 4, seconds=LONG)
    hold.stop()
    assert pd.held == {} and caplog.text.count("PD does not keep GC back at the checkpoint 1000") == 1


def test_pd_that_refuses_to_keep_gc_back_is_quoted_and_asked_once(pd_site: PdSite, caplog: pytest.LogCaptureFixture) -> None:
    pd = pd_site.pd
    pd.bootstrapped, pd.holds = False, []
    hold = GcHold(PdRegistry(pd.urls, tls=None), lambda: 1000, pause=0.0)
    assert len(pd.holds) == 1, "the answer will be the same a second later"
    hold.stop()
    pd.bootstrapped = True
    assert f"PD {pd.urls} refuses UpdateServiceGCSafePoint: cluster is not bootstrapped" in caplog.text
    assert "does not answer" not in caplog.text
