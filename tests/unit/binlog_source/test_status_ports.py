"""Which status port is asked, when one of them is gone."""

import json
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.own_cluster import OwnCluster
from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts
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
    ports = StatusPorts(("a:1", "b:1", "c:1"))
    for _ in range(3):
        ports.look_up(b"k")
    assert asked == ["a:1", "b:1", "b:1", "b:1"]
    away |= {"b:1", "c:1"}
    with pytest.raises(PumpUnavailable, match="b:1: timed out; c:1: timed out; a:1: timed out"):
        ports.look_up(b"k")


def test_one_that_does_not_speak_of_the_key_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"a:1": {"value": {"region_error": {"message": "epoch not match"}}}, "b:1": {"value": {"info": {}}}}
    monkeypatch.setattr(StatusPorts, "_json", lambda ports, address, path: answers[address])
    assert StatusPorts(("a:1", "b:1")).look_up(b"k") == answers["b:1"]
    assert StatusPorts(("a:1", "b:1")).ask(5, b"k").finding.value == "no trace"
    with pytest.raises(PumpUnavailable, match="epoch not match"):
        StatusPorts(("a:1",)).ask(5, b"k")


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
    ports = StatusPorts(("http://tidb:10080",), cluster=lambda: cluster)
    assert ports.ask(5, b"k").commit_ts == 9
    info = ABSENT
    if not why:
        assert ports.ask(5, b"k").finding.value == "no trace"
        return
    with pytest.raises(PumpUnavailable, match=f"http://tidb:10080: .*{why}"):
        ports.ask(5, b"k")


def test_a_port_that_pd_names_is_not_asked_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusPorts, "_json", lambda ports, address, path: {"value": {"info": {}}})
    assert StatusPorts(("10.0.0.1:10080",), cluster=lambda: OURS).ask(5, b"k").finding.value == "no trace"
