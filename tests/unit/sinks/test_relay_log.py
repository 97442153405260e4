"""The relay log's files and what is kept of them at a start, by what the target's checkpoint says."""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.binlogfile import FilePosition, files_in, record_of, walk
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, LeaseHeld
from pyspark_tidb_binlog.sinks.relay.relay_log import COVER, Cover, Extent, RelayLog, RelayStream, Standing, read_cover, standing
from pyspark_tidb_binlog.sinks.sink import TargetProgress, UnfinishedSpan
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Message
from tests.support.golden_messages import from_drainer, ours

STREAM = RelayStream(7, "all", frozenset({13}))
EXTENT = Extent({2: 70, 3: 100}, 50, FilePosition(3, 100))
CLEAN = TargetProgress(30, True, 5, None)
OPEN = TargetProgress(30, False, 5, UnfinishedSpan(30, 40, 2, frozenset()))
FOREIGN = TargetProgress(30, False, 5, None)
COVERED = Cover(STREAM, 30, 40, FilePosition(2, 10), FilePosition(3, 100))
DDL = SecondaryBinlogs()


def messages(*stamps: int) -> list[Message]:
    return [Message(ts, DDL.ddl(ts, QualifiedName("d", "t"), f"-- {ts}"), 0) for ts in stamps]


def made(directory: Path, max_bytes: int = 10 << 20, stream: RelayStream = STREAM) -> RelayLog:
    return RelayLog(directory, max_bytes, stream, lambda: datetime.datetime(2018, 10, 10, 10, 10, 10))


def begun(directory: Path, max_bytes: int = 10 << 20) -> RelayLog:
    log = made(directory, max_bytes)
    log.begin(CLEAN)
    return log


def written(directory: Path, *spans: tuple[int, ...], progress: TargetProgress = CLEAN, max_bytes: int = 10 << 20) -> None:
    """One life. A span: its two ends, and the transactions that it brings."""
    log = made(directory, max_bytes)
    log.begin(progress)
    for after_ts, upto_ts, *stamps in spans:
        log.write(after_ts, upto_ts, messages(*stamps))
    log.close()


def stamps_in(directory: Path) -> list[int]:
    return [commit_ts_of(r.payload) for r in walk(directory)]


# What is kept.


def test_a_consistent_target_needs_nothing_of_the_log() -> None:
    assert standing(CLEAN, COVERED, EXTENT, STREAM) == Standing(True, None)


def test_an_open_span_that_the_log_holds_is_kept() -> None:
    assert standing(OPEN, COVERED, EXTENT, STREAM) == Standing(False, COVERED)
    longer = replace(COVERED, after_ts=20, upto_ts=60)
    assert standing(OPEN, longer, EXTENT, STREAM) == Standing(False, longer)


@pytest.mark.parametrize(
    "cover",
    [
        None,
        replace(COVERED, after_ts=31),
        replace(COVERED, begin=FilePosition(1, 10)),
        replace(COVERED, end=FilePosition(3, 101)),
        replace(COVERED, upto_ts=39),
        replace(COVERED, stream=replace(STREAM, cluster_id=8)),
        replace(COVERED, stream=replace(STREAM, filters="some")),
        replace(COVERED, stream=replace(STREAM, ignored_ts=frozenset({13, 14}))),
    ],
)
def test_an_open_span_that_the_log_does_not_hold_is_written_again(cover: Cover | None) -> None:
    assert standing(OPEN, cover, EXTENT, STREAM) == Standing(True, None)


def test_what_is_ignored_since_may_be_in_the_log() -> None:
    cover = replace(COVERED, stream=replace(STREAM, ignored_ts=frozenset()))
    assert standing(OPEN, cover, EXTENT, STREAM) == Standing(False, cover)


def test_a_real_drainers_log_goes_on_from_its_checkpoint() -> None:
    wanted = Cover(STREAM, 30, 50, FilePosition(2, 0), EXTENT.end)
    assert standing(FOREIGN, None, EXTENT, STREAM) == Standing(False, wanted)
    assert standing(FOREIGN, None, replace(EXTENT, last_ts=20), STREAM).cover == replace(wanted, upto_ts=30)


def test_a_restored_target_has_no_use_for_a_later_log() -> None:
    """Without its markers, that the target was half applied looks like a real Drainer's crash."""
    assert standing(FOREIGN, replace(COVERED, after_ts=31), EXTENT, STREAM) == Standing(True, None)
    assert standing(FOREIGN, COVERED, EXTENT, STREAM).cover == Cover(STREAM, 30, 50, FilePosition(2, 0), EXTENT.end)


# Files.


@pytest.mark.parametrize("case", ["types", "txn"])
def test_files_are_a_real_drainers_byte_for_byte(tmp_path: Path, case: str) -> None:
    """The payloads are what a real Drainer's translator made of the same binlogs; the frame is that of wire.md 3."""
    payloads = ours(case, SecondaryBinlogs())
    log = begun(tmp_path)
    log.write(0, 1 << 62, [Message(commit_ts_of(p), p, 0) for p in payloads])
    log.close()
    (file,) = files_in(tmp_path)
    assert file.name == "binlog-0000000000000000-20181010101010"
    assert (tmp_path / file.name).read_bytes() == b"".join(map(record_of, from_drainer(case, "drainer.slave")))


def test_a_span_is_durable_before_its_cover(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.write(30, 40, messages(31, 40))
    cover = read_cover(tmp_path)
    assert cover is not None and (cover.after_ts, cover.upto_ts, cover.stream) == (30, 40, STREAM)
    assert stamps_in(tmp_path) == [31, 40]
    log.close()
    assert json.loads((tmp_path / COVER).read_text())["layout"] == 1


def test_an_open_span_is_not_written_again(tmp_path: Path) -> None:
    written(tmp_path, (30, 40, 31, 40))
    written(tmp_path, (30, 40, 31, 40), (35, 45, 36, 40, 44), progress=OPEN)
    assert stamps_in(tmp_path) == [31, 40, 44]
    cover = read_cover(tmp_path)
    assert cover is not None and (cover.after_ts, cover.upto_ts) == (30, 45)


def test_what_was_written_ahead_is_cut(tmp_path: Path) -> None:
    written(tmp_path, (20, 30, 21, 25, 30), (30, 40, 31, 35, 40), max_bytes=60)
    written(tmp_path, (30, 40, 31, 40), max_bytes=60)
    assert stamps_in(tmp_path) == [21, 25, 30, 31, 40]


def test_applied_files_are_deleted_and_never_the_one_being_written(tmp_path: Path) -> None:
    log = begun(tmp_path, 60)
    log.write(30, 40, messages(*range(31, 41)))
    assert len(files_in(tmp_path)) > 3
    log.passed(35)
    assert stamps_in(tmp_path) == list(range(31, 41))
    newest = files_in(tmp_path)[-1]
    log.passed(40)
    assert files_in(tmp_path) == (newest,)
    log.write(50, 60, messages(55))
    cover = read_cover(tmp_path)
    assert cover is not None and cover.after_ts == 50
    log.close()


def test_a_cover_whose_files_are_gone_is_none(tmp_path: Path) -> None:
    written(tmp_path, (30, 40, *range(31, 41)), max_bytes=60)
    (tmp_path / files_in(tmp_path)[1].name).unlink()
    assert read_cover(tmp_path) is None
    (tmp_path / COVER).write_text("{")
    assert read_cover(tmp_path) is None


def test_a_cover_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / COVER).write_text(COVERED.to_json().replace('"layout":1', '"layout":2'))
    with pytest.raises(ApplyError, match="relay.spark has layout 2, but this release reads 1. Use the release that wrote it"):
        made(tmp_path).begin(OPEN)


def test_damage_names_file_and_offset(tmp_path: Path) -> None:
    written(tmp_path, (30, 40, 31, 40))
    path = tmp_path / files_in(tmp_path)[0].name
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corruption, match=rf"{path.name}: the checksum of the record at offset 0 .* move its files away"):
        made(tmp_path).begin(CLEAN)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    log = begun(tmp_path)
    with pytest.raises(LeaseHeld):
        made(tmp_path).begin(CLEAN)
    log.close()
    made(tmp_path).begin(CLEAN)


def test_after_an_error_nothing_more_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = begun(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(ApplyError, match="No space left on device.*Free space there"):
        patched.setattr("os.write", full)
        log.write(30, 40, messages(31))
    with pytest.raises(ApplyError, match="a write has failed"):
        log.write(30, 40, messages(31))
    log.close()
