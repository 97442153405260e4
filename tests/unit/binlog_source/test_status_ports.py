"""Which status port is asked, when one of them is gone."""

from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable


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
