"""``source.stream_end`` and the reader over it: who made the stop file learns whether a batch may be running."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.outage import Outage
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.source.stream_end import StreamEnd, asking_file
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.events import Delivery


def test_while_spark_asks_there_is_a_file_and_none_once_a_batch_is_given(tmp_path: Path) -> None:
    end = StreamEnd(0, str(tmp_path / "stop"), Outage(1.0))
    end.note_given()
    assert not asking_file(tmp_path / "stop").exists()
    end.note_asking()
    assert asking_file(tmp_path / "stop").exists()
    end.note_given()
    assert not asking_file(tmp_path / "stop").exists()


def test_what_cannot_be_noted_ends_nothing(tmp_path: Path) -> None:
    for stop_file in ("", str(tmp_path / ("s" * 255))):
        end = StreamEnd(0, stop_file, Outage(1.0))
        end.note_asking()
        end.note_given()
        assert not end.stopping()


def test_while_the_directory_of_the_stop_file_is_missing_nobody_can_tell_and_no_batch_is_returned(tmp_path: Path) -> None:
    end = StreamEnd(0, str(tmp_path / "gone" / "stop"), Outage(1.0))
    end.note_asking()
    end.note_given()
    assert end.stopping()
    (tmp_path / "gone").mkdir()
    assert not end.stopping()


@pytest.mark.parametrize("fresh", [True, False])
def test_the_first_answer_of_a_new_stream_makes_a_batch_even_if_it_is_empty(tmp_path: Path, fresh: bool) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    source = SourceConfig("127.0.0.1:1", 7, str(Delivery.SORTED), 5)
    reader = BinlogStreamReader(options_of(source, StreamOptions(stop_file=str(stop))))
    start = reader.initialOffset() if fresh else BinlogOffset(Delivery.SORTED, 5, 5, {}).to_json()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    assert asking_file(stop).exists() is not fresh
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    assert asking_file(stop).exists()
    reader.stop()


def test_a_batch_that_was_being_planned_when_the_file_was_made_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning may wait for a registry that is slow; who made the file does not expect a batch by then."""
    stop = tmp_path / "stop"
    source = SourceConfig("127.0.0.1:1", 7, str(Delivery.SORTED), 5)
    reader = BinlogStreamReader(options_of(source, StreamOptions(stop_file=str(stop))))
    start, later = BinlogOffset(Delivery.SORTED, 5, 5, {}), BinlogOffset(Delivery.SORTED, 9, 5, {})

    def plan(*_: object) -> BinlogOffset:
        stop.touch()
        return later

    monkeypatch.setattr(reader, "_end_after", plan)
    assert reader.latestOffset(start.to_json(), reader.getDefaultReadLimit()) == start.to_json()
    assert asking_file(stop).exists()
    monkeypatch.setattr(reader, "_end_after", lambda *_: later)
    stop.unlink()
    assert reader.latestOffset(start.to_json(), reader.getDefaultReadLimit()) == later.to_json()
    assert not asking_file(stop).exists()
    reader.stop()
