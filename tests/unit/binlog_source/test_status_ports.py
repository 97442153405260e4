"""Which status port is asked, when one of them is gone."""

import json
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.status_port import OwnCluster, StatusPorts
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import BinlogWatch
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import HttpAnswer


def test_a_port_that_failed_is_asked_last_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has vanished costs a time limit, which hundreds of orphans must not wait for each."""
    away, asked = {"a:1"}, []

    def answer(ports: StatusPorts, address: str, path: str) -> Any:
        asked.append(address)
        if address in away:
            raise TimeoutError("timed out")
        return {"value": {"info": {}}}

    monkeypatch.setattr(StatusPorts, "_json", answer)
    ports = StatusPorts(("a:1", "b:1", "c:1"), tls=None)
    for _ in range(3):
        ports.look_up(b"k")
    assert asked == ["a:1", "b:1", "b:1", "b:1"]
    away |= {"b:1", "c:1"}
    with pytest.raises(PumpUnavailable, match="b:1: timed out; c:1: timed out; a:1: timed out"):
        ports.look_up(b"k")


def test_one_that_does_not_speak_of_the_key_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"a:1": {"value": {"region_error": {"message": "epoch not match"}}}, "b:1": {"value": {"info": {}}}}
    monkeypatch.setattr(StatusPorts, "_json", lambda ports, address, path: answers[address])
    assert StatusPorts(("a:1", "b:1"), tls=None).look_up(b"k") == answers["b:1"]
    assert StatusPorts(("a:1", "b:1"), tls=None).ask(5, b"k").finding.value == "no trace"
    with pytest.raises(PumpUnavailable, match="epoch not match"):
        StatusPorts(("a:1",), tls=None).ask(5, b"k")


ABSENT, COMMITTED = {}, {"writes": [{"start_ts": 5, "commit_ts": 9}]}
OURS = OwnCluster(7, {"uuid-1": "10.0.0.1:10080"})


@pytest.mark.parametrize(
    ("pages", "cluster", "why"),
    [
        ({}, OwnCluster(), ""),
        ({}, OwnCluster(7), ""),
        ({"/cluster_id": {"cluster_id": 7}}, OwnCluster(7), ""),
        ({"/cluster_id": {"cluster_id": 99}}, OwnCluster(7), "it is of cluster 99, but this program serves cluster 7"),
        ({"/info": {"ddl_id": "uuid-1"}}, OURS, ""),
        ({"/info": {"ddl_id": "uuid-2"}}, OURS, "PD names 10.0.0.1:10080, but not the server uuid-2"),
        ({}, OURS, "it is no TiDB of this cluster"),
        ({"/info": []}, OwnCluster(7, {}), "PD names none"),
    ],
)
def test_only_the_clusters_own_port_proves_that_there_is_no_trace(
    monkeypatch: pytest.MonkeyPatch, pages: dict[str, Any], cluster: OwnCluster, why: str
) -> None:
    """TiDB of another cluster answers like this about each committed transaction."""

    def answer(ports: StatusPorts, address: str, path: str) -> HttpAnswer:
        found = {"value": {"info": info}} if path.startswith("/mvcc") else pages.get(path)
        return HttpAnswer(404 if found is None else 200, json.dumps(found).encode())

    monkeypatch.setattr(StatusPorts, "_answer", answer)
    info: dict[str, Any] = COMMITTED
    ports = StatusPorts(("http://tidb:10080",), cluster=lambda: cluster, tls=None)
    assert ports.ask(5, b"k").commit_ts == 9
    info = ABSENT
    if not why:
        assert ports.ask(5, b"k").finding.value == "no trace"
        return
    with pytest.raises(PumpUnavailable, match=f"http://tidb:10080: .*{why}"):
        ports.ask(5, b"k")


def test_a_port_that_pd_names_is_not_asked_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusPorts, "_json", lambda ports, address, path: {"value": {"info": {}}})
    assert StatusPorts(("10.0.0.1:10080",), cluster=lambda: OURS, tls=None).ask(5, b"k").finding.value == "no trace"


NOON = 1_790_000_000.0


def test_servers_that_write_no_binlogs_are_found_and_a_finding_says_from_when_until_when(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all are Off, because a stream wants the binlogs. Unknown is a server that has written nothing yet."""
    now = NOON
    watch = BinlogWatch("http://a:10080", None, lambda: now)

    def look(*statuses: str | None) -> list[str]:
        nonlocal now
        infos = {str(n): {"ip": "10.0.0.1", "listening_port": 4000 + n, "binlog_status": status} for n, status in enumerate(statuses)}
        monkeypatch.setattr(StatusPorts, "_json", lambda ports, address, path: {"all_servers_info": infos})
        watch.look()
        now += 30
        return [server.words for server in watch.servers]

    skips = "TiDB server 10.0.0.1:4001 writes no binlog (Skipping) since 2026-09-21 14:15:50 UTC"
    for harmless in (["On", "On"], ["On"], ["Unknown", "On"], ["On", None], ["Unknown", "Unknown"], []):
        assert look(*harmless) == []
    assert look("Unknown", "Skipping") == look("On", "Skipping") == [skips]
    monkeypatch.setattr(StatusPorts, "_json", lambda ports, address, path: {}[path])
    watch.look()
    assert [server.words for server in watch.servers] == [skips], "a port that does not answer says nothing"
    now += 30
    assert len(look("Off", "Skipping")) == 2
    assert [(finding.kind, finding.words) for finding in watch.findings()] == [
        ("lost", f"{skips}: what is written through it is lost to the stream"),
        (
            "lost",
            "TiDB server 10.0.0.1:4000 writes no binlog (Off) since 2026-09-21 14:16:50 UTC: what is written through it is lost to the stream",
        ),
    ]
    assert look("Off", "On") != [] and look("On") == []
    ended = "wrote no binlog ({}) from 2026-09-21 {} UTC until 2026-09-21 {} UTC: copy what was written through it"
    assert [finding.words for finding in watch.findings()] == [
        f"TiDB server 10.0.0.1:4001 {ended.format('Skipping', '14:15:50', '14:18:20')}",
        f"TiDB server 10.0.0.1:4000 {ended.format('Off', '14:16:50', '14:18:50')}",
    ]
    first = BinlogWatch("http://a:10080", None, lambda: NOON)
    look("Skipping")
    first.look()
    assert [server.since for server in first.servers] == ["before 2026-09-21 14:13:20 UTC"]
