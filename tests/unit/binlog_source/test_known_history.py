"""Tables that no DDL job made, as a restore of KV data makes them: left out where they cannot be what is asked for, else an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.changes import known_history
from pyspark_tidb_binlog.binlog_source.changes.change_options import change_options_of
from pyspark_tidb_binlog.binlog_source.changes.known_history import KnownHistory
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from tests.support.ddl_jobs import database, job, table

RESTORED = 77


def jobs(*, seconds_later: int) -> list[dict[str, Any]]:
    """``d.t`` at version 2, and a job of version 3 so much later."""
    made = [database(1), job(2, 3, table(50, "t")), job(3, 3, table(51, "u"))]
    for number, one in enumerate(made):
        one["binlog"]["FinishedTS"] = tso(1_800_000_000_000 + (seconds_later * 1000 if number == 2 else number))
    return made


def history(directory: Path, *, seconds_later: int) -> KnownHistory:
    path = directory / "history.json"
    path.write_text(json.dumps(jobs(seconds_later=seconds_later)))
    return KnownHistory(HistoryFeed(str(path), None, None))


@pytest.mark.parametrize("asked", [{"table": "d.t"}, {"tables": "d.t, `d`.u"}, {"tables": "D.T"}])
def test_a_table_that_cannot_be_the_asked_one_is_left_out(tmp_path: Path, asked: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    known, version = history(tmp_path, seconds_later=600), 2
    if "u" in asked.get("tables", ""):
        with pytest.raises(SchemaMismatch, match="table id 77"):
            known.covering([version], {RESTORED: version}, change_options_of(asked))  # d.u is not there yet: this may be it
        return
    for _ in range(2):
        found = known.covering([version], {50: version, RESTORED: version}, change_options_of(asked))
        assert RESTORED not in found.tracks and 50 in found.tracks
    assert caplog.text.count("table id 77") == 1


@pytest.mark.parametrize(
    ("asked", "version", "seconds"),
    [({}, 2, 600), ({"tables": "d.*"}, 2, 600), ({"table": "d.t"}, 3, 600), ({"table": "d.t"}, 2, 100), ({"table": "d.x"}, 2, 600)],
    ids=["all tables", "a pattern", "its job may be missing", "the history was taken too early", "nobody has the name"],
)
def test_a_table_that_may_be_the_asked_one_is_an_error(tmp_path: Path, asked: dict[str, str], version: int, seconds: int) -> None:
    known = history(tmp_path, seconds_later=seconds)
    with pytest.raises(SchemaMismatch, match=rf"changes of table id 77, of schema version {version}.*names its tables without wildcards"):
        known.covering([version], {RESTORED: version}, change_options_of(asked))


def test_a_history_that_goes_on_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that gives the asked name to the unknown table comes late."""
    feed = history(tmp_path, seconds_later=100)._feed
    monkeypatch.setattr(HistoryFeed, "is_recorded", property(lambda self: False))
    monkeypatch.setattr(HistoryFeed, "refresh", HistoryFeed._reread_file)
    renamed = job(4, 14, table(RESTORED, "t"), version=2)
    monkeypatch.setattr(known_history, "_log", type("Log", (), {"warning": lambda *_: (tmp_path / "history.json").write_text(
        json.dumps([*jobs(seconds_later=100), renamed]))})())  # fmt: skip
    feed.lag = 0.0
    found = KnownHistory(feed).covering([2], {RESTORED: 2}, change_options_of({"table": "d.t"}))
    assert RESTORED in found.tracks
