"""What every registry promises (``binlog_source.cluster.registry.Registry``), asked of both, with and without TLS: the standalone one, and PD with a real etcd."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, Listing, NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from tests.support.registry_sites import CLUSTER, PdSite, Site

pytestmark = pytest.mark.grpc
LONG = 30.0
"""Seconds that no test waits for: a wait ends because something happens."""
A, B = NodeStatus("a", "127.0.0.1:1", max_commit_ts=5), NodeStatus("b", "127.0.0.1:2")


def waiting(ask: Callable[[], Listing]) -> "Future[Listing]":
    """``ask`` in a thread that has had the time to begin waiting."""
    answer: Future[Listing] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except PumpUnavailable as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    time.sleep(0.2)
    return answer


@pytest.mark.shows("spark.cluster-id")
def test_the_clusters_id(registry: Registry) -> None:
    assert registry.cluster_id() == CLUSTER


def test_timestamps_of_many_threads_never_meet(registry: Registry, open_client: Callable[[], Registry]) -> None:
    clients = [registry, registry, open_client(), open_client()]

    def take(place: int) -> list[range]:
        counts = (1, 7, 1, 100, 2) * 20
        return [range(first, first + count) for count in counts for first in (clients[place].tso(count),)]

    with ThreadPoolExecutor(len(clients)) as threads:
        taken = list(threads.map(take, range(len(clients))))
    for own in taken:
        assert all(before.stop <= after.start for before, after in zip(own, own[1:], strict=False))
    spans = sorted((span for own in taken for span in own), key=lambda span: span.start)
    assert all(before.stop <= after.start for before, after in zip(spans, spans[1:], strict=False))
    assert registry.tso() >= spans[-1].stop


def test_nothing_is_registered_at_first(registry: Registry) -> None:
    assert registry.listing(PUMPS).nodes == () == registry.listing(DRAINERS).nodes


def test_what_was_put_is_listed_by_id(registry: Registry, open_client: Callable[[], Registry]) -> None:
    full = NodeStatus("host:8250", "10.0.0.1:8250", NodeState.PAUSING, 470604587006951425, 470604587124916225, 3, {"zone": "z1"})
    for status in (full, B, A):
        registry.put_status(PUMPS, status)
    assert registry.listing(PUMPS).nodes == (A, B, full)
    assert open_client().listing(PUMPS) == registry.listing(PUMPS)


def test_the_last_writer_wins(registry: Registry, open_client: Callable[[], Registry]) -> None:
    registry.put_status(PUMPS, A)
    newer = NodeStatus("a", "127.0.0.1:9", NodeState.OFFLINE)
    open_client().put_status(PUMPS, newer)
    assert registry.listing(PUMPS).nodes == (newer,)


def test_what_a_node_registered_itself_is_known_behind_what_others_wrote(registry: Registry, site: Site) -> None:
    assert registry.own_state(PUMPS, "host:1") is None, "not there"

    def own(*entries: tuple[NodeState, int]) -> NodeState | None:
        for state, update_ts in entries:
            registry.put_status(PUMPS, NodeStatus("host:1", "127.0.0.1:1", state, update_ts=update_ts))
        return registry.own_state(PUMPS, "host:1")

    assert own((NodeState.OFFLINE, 1)) is NodeState.OFFLINE
    assert own((NodeState.ONLINE, 2), (NodeState.OFFLINE, 2), (NodeState.OFFLINE, 2)) is NodeState.ONLINE
    assert own((NodeState.PAUSED, 3), (NodeState.ONLINE, 3), (NodeState.OFFLINE, 3)) is NodeState.PAUSED
    site.down()
    site.up()
    assert registry.own_state(PUMPS, "host:1") is NodeState.PAUSED, "after a restart, too"
    assert own((NodeState.ONLINE, 4), (NodeState.OFFLINE, 5)) is NodeState.OFFLINE
    assert registry.own_state(DRAINERS, "host:1") is None
    if isinstance(site, PdSite):
        assert own((NodeState.OFFLINE, 5)) is NodeState.OFFLINE
        site.etcd.gateway("kv/compaction", revision=registry.listing(PUMPS).revision, physical=True)
        assert registry.own_state(PUMPS, "host:1") is None, "etcd has dropped it"


def test_writers_at_once_all_succeed(registry: Registry) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: registry.put_status(PUMPS, NodeStatus(f"p{n % 2}", f"h:{n}")), range(40)))
    assert [node.node_id for node in registry.listing(PUMPS).nodes] == ["p0", "p1"]


def test_pumps_and_drainers_are_apart(registry: Registry) -> None:
    before = registry.listing(DRAINERS)
    registry.put_status(PUMPS, A)
    assert registry.listing(DRAINERS).nodes == registry.changes(DRAINERS, before.revision, 0.1).nodes == ()
    registry.put_status(DRAINERS, B)
    assert (registry.listing(PUMPS).nodes, registry.listing(DRAINERS).nodes) == ((A,), (B,))


def test_whoever_is_behind_hears_at_once_and_only_of_news(registry: Registry) -> None:
    registry.put_status(PUMPS, A)
    known = registry.listing(PUMPS).revision
    for commit_ts in range(3):
        registry.put_status(PUMPS, NodeStatus("c", "h:3", max_commit_ts=commit_ts))
    registry.put_status(PUMPS, B)
    news = registry.changes(PUMPS, known, LONG)
    assert news.nodes == (B, NodeStatus("c", "h:3", max_commit_ts=2))
    assert news.revision > known
    assert registry.changes(PUMPS, news.revision, 0).nodes == ()
    assert registry.changes(PUMPS, 0, LONG).nodes == registry.listing(PUMPS).nodes


def test_a_wait_ends_empty_when_its_time_is_over(registry: Registry) -> None:
    registry.put_status(PUMPS, A)
    known = registry.listing(PUMPS).revision
    begun = time.monotonic()
    nothing = registry.changes(PUMPS, known, 0.3)
    assert nothing.nodes == () and nothing.revision >= known
    assert time.monotonic() - begun >= 0.3


def test_a_put_ends_a_wait_and_a_wait_holds_nobody_up(registry: Registry) -> None:
    registry.put_status(PUMPS, A)
    known = registry.listing(PUMPS).revision
    answers = [waiting(lambda: registry.changes(PUMPS, known, LONG)) for _ in range(3)]
    registry.tso()
    registry.put_status(DRAINERS, A)
    assert not any(answer.done() for answer in answers)
    registry.put_status(PUMPS, B)
    for answer in answers:
        assert answer.result(LONG / 2).nodes == (B,)


def test_nothing_is_missed_between_two_waits(registry: Registry, open_client: Callable[[], Registry]) -> None:
    last = 50
    revision, seen = registry.listing(PUMPS).revision, 0
    writer = threading.Thread(
        target=lambda: [open_client().put_status(PUMPS, NodeStatus("a", "h", max_commit_ts=n)) for n in range(1, last + 1)]
    )
    writer.start()
    while seen < last:
        news = registry.changes(PUMPS, revision, LONG)
        assert news.revision > revision and news.nodes[0].max_commit_ts > seen
        revision, seen = news.revision, news.nodes[0].max_commit_ts
    writer.join()


def test_a_revision_of_another_life_is_answered_with_all(registry: Registry) -> None:
    registry.put_status(PUMPS, A)
    known = registry.listing(PUMPS).revision
    assert registry.changes(PUMPS, known + 1_000_000, LONG) == registry.listing(PUMPS)


def test_a_restart_of_the_server_is_survived(site: Site, registry: Registry) -> None:
    registry.put_status(PUMPS, A)
    before, given = registry.listing(PUMPS), registry.tso()
    answer = waiting(lambda: registry.changes(PUMPS, before.revision, LONG))
    site.down()
    assert isinstance(answer.exception(LONG / 2), PumpUnavailable)
    for ask in (registry.tso, lambda: registry.listing(PUMPS), lambda: registry.put_status(PUMPS, B)):
        with pytest.raises(PumpUnavailable):
            ask()
    site.up()
    assert registry.tso() > given
    assert registry.listing(PUMPS).nodes == (A,)
    assert registry.changes(PUMPS, before.revision, 0).nodes == ()
    registry.put_status(PUMPS, B)
    assert registry.changes(PUMPS, before.revision, LONG).nodes == (B,)


def test_the_gc_safe_point_of_a_cluster_that_never_collected(registry: Registry) -> None:
    assert registry.gc_safe_point() == 0


def test_a_closed_client_ends_its_waits_and_opens_again(registry: Registry) -> None:
    registry.put_status(PUMPS, A)
    given, known = registry.tso(), registry.listing(PUMPS).revision
    answer = waiting(lambda: registry.changes(PUMPS, known, LONG))
    registry.close()
    assert isinstance(answer.exception(LONG / 2), PumpUnavailable)
    assert registry.tso() > given
    assert registry.listing(PUMPS).nodes == (A,)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "pd://127.0.0.1:1,127.0.0.1:2"])
def test_who_cannot_be_reached_is_named_soon(url: str) -> None:
    registry = open_registry(url, tls=None)
    questions: list[Callable[[], object]] = [
        registry.cluster_id,
        registry.tso,
        registry.gc_safe_point,
        lambda: registry.listing(PUMPS),
        lambda: registry.changes(PUMPS, 1, LONG),
        lambda: registry.put_status(PUMPS, A),
    ]
    for ask in questions:
        begun = time.monotonic()
        with pytest.raises(PumpUnavailable) as told:
            ask()
        assert time.monotonic() - begun < LONG / 2
        assert all(address.split("//")[-1] in str(told.value) for address in url.split(","))
    registry.close()


def test_what_answers_and_is_no_pd_is_told_at_once() -> None:
    service = ClusterService(Oracle(), CLUSTER).start()
    registry = open_registry(f"pd://{service.address}", tls=None)
    for ask in (registry.cluster_id, registry.tso, lambda: registry.listing(PUMPS)):
        with pytest.raises(ConfigError, match=f"{service.address} is not PD .* is named by its URL in spark.pumps: {service.url}"):
            ask()
    registry.close()
    service.stop()


@pytest.mark.parametrize("url", ["127.0.0.1:8250", "ftp://h:1", "pd://", "pd://h", "pd://h:1,http://h:2", "pd://h:99999", "http://"])
def test_what_is_no_registry_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port"):
        open_registry(url, tls=None)
