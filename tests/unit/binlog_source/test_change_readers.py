"""What the readers of changes say about a checkpoint that they cannot use, and where a batch ends. Nothing is connected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.changes import change_readers
from pyspark_tidb_binlog.binlog_source.changes.change_readers import ChangeReader, ChangeStreamReader
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from tests.support.ddl_jobs import database

NOW = tso(1_800_000_000_000)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "history.json"
    path.write_text(json.dumps([database(1)]))
    return {"pumps": "127.0.0.1:1", "tidbStatus": str(path), "clusterId": "1", "pumpPatience": "1"}


def offset(ts: int, pump: str = "127.0.0.1:1", **more: Any) -> dict[str, Any]:
    mark = {"offset": ts, "suffix": 0}
    return {"clock_ts": 0, "delivery": "sorted", "floor": 5, "pumps": {pump: mark}, "resolved_ts": ts, "version": 2} | more


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (offset(10), offset(20, version=9)),
        (offset(10, delivery="raw"), offset(20, delivery="raw")),
        (offset(10), offset(9)),
        (offset(10, "127.0.0.1:2"), offset(20, "127.0.0.1:2")),
    ],
    ids=["of a later release", "of raw delivery", "backwards", "a Pump that is not listed"],
)
def test_a_query_of_changes_is_not_sent_to_a_target_that_it_does_not_have(
    options: dict[str, str], start: dict[str, Any], end: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigError, match=r"new checkpoint directory and startingCommitTs = (10|20), up to which everything was given"
    ) as found:
        ChangeStreamReader(options, None).partitions(start, end)
    assert "target" not in str(found.value) and "spark." not in str(found.value)


def test_a_batch_waits_for_an_end_that_is_near_and_refuses_one_that_is_not(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        ts = NOW
        now: Callable[..., int]
        close: Callable[..., None]

    clock, listed = Clock(), []
    clock.now, clock.close = lambda: clock.ts, lambda: None
    monkeypatch.setattr(change_readers, "discovery_of", lambda source: clock)
    monkeypatch.setattr(change_readers, "_pause", lambda seconds: setattr(clock, "ts", clock.ts + tso(700)))

    class Listing:
        def __init__(self, given: dict[str, str]) -> None:
            listed.append((clock.ts, int(given["endingcommitts"])))

        def partitions(self) -> list[Any]:
            return []

    monkeypatch.setattr(change_readers, "BinlogReader", Listing)
    for end in (NOW - 5, NOW + tso(1500), 0):
        ChangeReader({**options, "startingCommitTs": "0"} | ({"endingCommitTs": str(end)} if end else {}), None).partitions()
    present = NOW + tso(2100)
    assert listed == [(NOW, NOW - 5), (present, NOW + tso(1500)), (present, present)], "Pumps are listed when the end has come"
    with pytest.raises(ConfigError, match=r"endingTimestamp\) is .* \(2099-01-01.*the upstream's time is .*Remove the end"):
        ChangeReader({**options, "startingCommitTs": "0", "endingTimestamp": "2099-01-01"}, None).partitions()
