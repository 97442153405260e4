"""The file and the Kafka sink through kills at every write, and in the place of a real Drainer."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter, FilePosition, record_of, walk
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, LeaseHeld
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.file.file_sink import FileTarget, end_of, file_sink
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import kafka_sink
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.translate import local_record
from pyspark_tidb_binlog.sinks.translate.local_record import Savepoint
from pyspark_tidb_binlog.sinks.translate.message_sink import MessageSettings, MessageSink
from tests.support.ddl_jobs import column, database, history, job, table
from tests.support.fakes.memory_topic import MemoryTopic
from tests.support.golden_messages import SYSTEM, case_steps, from_drainer, replicate, spans_of

CASE = "txn"
STEPS = 8
MAX_BYTES = 600


class Killed(BaseException):
    """The process is dead: nothing of it writes any more."""


class Deadly:
    """Counts what is written to the disk, and dies within the n-th; half of what it then wrote is there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.passes = 0
        self.dies_at = 0
        real_write = os.write

        def write(file: int, data: bytes) -> int:
            if self._dead():
                real_write(file, data[: len(data) // 2]) if self.passes == self.dies_at else None
                raise Killed
            return real_write(file, data)

        patch.setattr(os, "fsync", lambda _: self._live())
        patch.setattr(os, "write", write)
        for name in ("replace", "ftruncate", "unlink"):
            patch.setattr(os, name, self._guarded(getattr(os, name)))
        patch.setattr(Path, "unlink", self._guarded(Path.unlink))

    def again(self, dies_at: int = 0) -> None:
        self.passes, self.dies_at = 0, dies_at

    def _dead(self) -> bool:
        self.passes += 1
        return 0 < self.dies_at <= self.passes

    def _live(self) -> None:
        if self._dead():
            raise Killed

    def _guarded(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            self._live()
            return real(*args, **more)

        return run


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> Deadly:
    monkeypatch.setattr(local_record, "SAVE_SECONDS", 0.0)
    return Deadly(monkeypatch)


def spans() -> list[tuple[int, int]]:
    return spans_of(CASE, STEPS)


def run(sink: MessageSink, upto: int = 1 << 62, selection: Selection = SYSTEM) -> None:
    """One life of a stream: everything that is not in the target yet."""
    try:
        replicate(sink, CASE, spans(), upto, selection)
    finally:
        sink.close()


def in_files(directory: Path, **more: Any) -> MessageSink:
    settings = MessageSettings(directory, 1, **more)
    return file_sink(FileTarget(directory / "binlogs", max_file_bytes=MAX_BYTES), settings)


def in_topic(directory: Path, topic: MemoryTopic) -> MessageSink:
    return kafka_sink(topic, MessageSettings(directory, 1))


def files(directory: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted((directory / "binlogs").glob("binlog-*"))]


def payloads(directory: Path) -> list[bytes]:
    return [r.payload for r in walk(directory / "binlogs")]


def test_files_hold_what_a_real_drainer_writes(tmp_path: Path) -> None:
    run(in_files(tmp_path))
    assert payloads(tmp_path) == from_drainer(CASE, "drainer.pb")
    *full, last = files(tmp_path)
    assert len(full) > 3 and all(MAX_BYTES <= len(f) < 3 * MAX_BYTES for f in full) and len(last) < MAX_BYTES


SOME_AND_ALL = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
"""Of the writes within which the process is killed: a seventh in `make test`."""


@SOME_AND_ALL
def test_files_are_the_same_wherever_the_process_is_killed(tmp_path: Path, deadly: Deadly, every: int) -> None:
    run(in_files(tmp_path / "whole"))
    writes, wanted = deadly.passes, files(tmp_path / "whole")
    assert writes > 50
    for n in range(1, writes + 1, every):
        directory = tmp_path / str(n)
        deadly.again(dies_at=n)
        with pytest.raises(Killed):
            run(in_files(directory))
        deadly.again(dies_at=n // 2)
        try:
            run(in_files(directory))
        except Killed:
            deadly.again()
            run(in_files(directory))
        assert files(directory) == wanted, n
        assert Savepoint.from_toml((directory / "savepoint").read_text()).commit_ts == spans()[-1][1]


@SOME_AND_ALL
def test_a_topic_is_the_same_wherever_the_process_is_killed(tmp_path: Path, deadly: Deadly, every: int) -> None:
    topic = MemoryTopic()
    run(in_topic(tmp_path / "whole", topic))
    writes, wanted = deadly.passes, topic.messages
    assert wanted == from_drainer(CASE, "drainer.slave") and writes > 50
    for n in range(1, writes + 1, every):
        topic, directory = MemoryTopic(), tmp_path / str(n)
        deadly.again(dies_at=n)
        with pytest.raises(Killed):
            run(in_topic(directory, topic))
        deadly.again()
        run(in_topic(directory, topic))
        assert topic.messages == wanted, n


def test_a_topic_is_the_same_wherever_a_send_fails(tmp_path: Path) -> None:
    wanted = from_drainer(CASE, "drainer.slave")
    for n in range(len(wanted)):
        topic, directory = MemoryTopic(), tmp_path / str(n)
        topic.fails_after = n
        with pytest.raises(ApplyError, match="broker is gone"):
            run(in_topic(directory, topic))
        assert len(topic.messages) == n
        topic.fails_after = 1
        try:
            run(in_topic(directory, topic))
        except ApplyError:
            topic.fails_after = None
            run(in_topic(directory, topic))
        assert topic.messages == wanted, n


def test_a_multi_schema_change_behind_the_record_is_put_once(tmp_path: Path) -> None:
    """Its binlog, at 60, follows that of a higher version."""
    two = {"sub_jobs": [{"type": 5}, {"type": 5}]}
    multi = job(
        5, 61, table(10, "t", [column(1, "id"), column(2, "x"), column(3, "y")]), version=10, query="alter table t", multi_schema_info=two
    )
    multi["binlog"]["FinishedTS"] = 62
    h = history(database(1), job(2, 3, table(10, "t")), multi, job(4, 3, table(12, "o"), version=11))

    def life(topic: MemoryTopic, upto: int) -> None:
        sink = in_topic(tmp_path, topic)
        opened = sink.open(lambda _, commit_ts: commit_ts or 30, lambda: h)
        events = [DdlEvent(38, 4, "x;", 5), DdlEvent(60, 5, "y;", 5)]
        for step in plan_steps((sink.commit_ts, upto), events, (), h, opened.applied):
            if isinstance(step, DdlStep):
                sink.apply_ddl(decided(step, h, SYSTEM), h, {})
            else:
                sink.apply(ROW_EVENT.empty_table(), step, StageClock())
        sink.close()

    topic = MemoryTopic()
    for upto in (50, 61, 100):
        life(topic, upto)
    assert len(topic.messages) == 2
    stand = tmp_path / "savepoint.spark"
    stand.write_text(json.dumps({**json.loads(stand.read_text()), "commit_ts": 50, "savepoints": [100], "place": {"offset": 1}}))
    topic.messages[1:] = []
    life(topic, 100)
    assert len(topic.messages) == 2


def test_a_failed_sink_applies_nothing_more(tmp_path: Path) -> None:
    found, _, steps = case_steps(CASE)
    topic = MemoryTopic()
    topic.fails_after = 0
    sink = in_topic(tmp_path, topic)
    sink.open(lambda _, commit_ts: commit_ts or found.info["start_ts"], lambda: found.history)
    first = next(s for s in steps if isinstance(s, DdlStep))
    with pytest.raises(ApplyError, match="broker is gone"):
        sink.apply_ddl(first, found.history, {})
    topic.fails_after = None
    with pytest.raises(ApplyError, match="opened again"):
        sink.apply_ddl(first, found.history, {})
    sink.close()
    assert topic.messages == []


def test_a_full_disk_ends_the_stream_and_is_gone_with_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(in_files(tmp_path / "whole"))
    real, left = os.write, [700]

    def write(file: int, data: bytes) -> int:
        size = real(file, data[: max(left[0], 0)])
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return size

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(ApplyError, match="No space left on device"):
            run(in_files(tmp_path / "full"))
    run(in_files(tmp_path / "full"))
    assert files(tmp_path / "full") == files(tmp_path / "whole")


def test_what_lies_beyond_the_record_stays_until_the_upstream_brings_it_again(tmp_path: Path) -> None:
    """The record was restored from an old backup: where the Pumps have collected what follows it, these files are all that is left of it."""
    record, middle = tmp_path / "savepoint.spark", spans()[2][1]
    run(in_files(tmp_path), upto=middle)
    kept = {name: (tmp_path / name).read_bytes() for name in ("savepoint", "savepoint.spark")}
    run(in_files(tmp_path))
    whole = files(tmp_path)
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    for _ in range(2):
        sink = in_files(tmp_path)
        opened = sink.open(lambda _, commit_ts: commit_ts or 0, lambda: case_steps(CASE)[0].history)
        assert opened.progress.commit_ts == middle
        sink.close()
        assert files(tmp_path) == whole, "as after BinlogPurged"
    assert json.loads(record.read_bytes())["place"] == json.loads(kept["savepoint.spark"])["place"]
    run(in_files(tmp_path))
    assert files(tmp_path) == whole


# In the place of a real Drainer.


def as_a_drainer_left_it(directory: Path, messages: Sequence[bytes], savepoint: Savepoint, tail: bytes = b"") -> None:
    """Its files, its savepoint, and nothing of ours."""
    writer = BinlogWriter(directory / "binlogs", MAX_BYTES)
    writer.append(messages)
    writer.close()
    with sorted((directory / "binlogs").glob("binlog-*"))[-1].open("ab") as file:
        file.write(tail)
    (directory / "savepoint").write_text(savepoint.to_toml())


def version_at(at: int) -> int:
    """What a Drainer records: the version of the newest DDL or row."""
    found, rows, _ = case_steps(CASE)
    jobs = [j.version for d in found.ddls if d.commit_ts <= at and (j := found.history.job(d.job_id))]
    return max(*jobs, *rows_between(rows, 0, at).column("schema_version").to_pylist(), 0)


def commit_ts(message: bytes) -> int:
    return pb.Binlog.FromString(message).commit_ts


@pytest.mark.shows("savepoint")
def test_our_savepoint_is_a_drainers(tmp_path: Path) -> None:
    run(in_files(tmp_path))
    end = spans()[-1][1]
    text = (tmp_path / "savepoint").read_text()
    version = max(j.version for d in case_steps(CASE)[0].ddls if (j := case_steps(CASE)[0].history.job(d.job_id)))
    assert text == f"consistent = true\ncommitTS = {end}\nschema-version = {version}\n"
    assert Savepoint.from_toml("consistent = false\ncommitTS = 7\n") == Savepoint(7, 0, False)
    for wrong in ('commitTS = "7"', "commitTS = ", "consistent = 1"):
        with pytest.raises(ValueError):  # noqa: PT011 - tomllib's own is one too
            Savepoint.from_toml(wrong)


def test_ours_goes_on_where_a_drainer_crashed_and_removes_what_it_wrote_beyond_its_savepoint(tmp_path: Path) -> None:
    run(in_files(tmp_path / "whole"))
    messages = payloads(tmp_path / "whole")
    for begin, at in spans()[1:-1]:
        for beyond in (0, 1, 5):
            upto = sum(commit_ts(m) <= at for m in messages) + beyond
            directory = tmp_path / f"{at}-{beyond}"
            as_a_drainer_left_it(
                directory, messages[:upto], Savepoint(at, version_at(at), False), tail=record_of(b"torn")[: 5 * (beyond % 3)]
            )
            run(in_files(directory))
            assert payloads(directory) == messages and files(directory) == files(tmp_path / "whole"), (begin, at, beyond)


@pytest.mark.shows("savepoint")
def test_a_drainers_savepoint_wins_over_ours(tmp_path: Path) -> None:
    """It ran after ours, and wrote on; or a person set it back."""
    run(in_files(tmp_path / "whole"))
    messages = payloads(tmp_path / "whole")
    ours, theirs = spans()[3][1], spans()[7][1]
    for at in (theirs, spans()[1][1]):
        directory = tmp_path / str(at)
        run(in_files(directory), upto=ours)
        writer = BinlogWriter(directory / "binlogs", MAX_BYTES)
        writer.append(m for m in messages if ours < commit_ts(m) <= theirs)
        writer.close()
        (directory / "savepoint").write_text(Savepoint(at, version_at(at), True).to_toml())
        run(in_files(directory))
        assert payloads(directory) == messages


def test_ours_sends_nothing_twice_that_a_drainer_sent(tmp_path: Path) -> None:
    wanted = from_drainer(CASE, "drainer.slave")
    first = sum(slave.Binlog.FromString(m).commit_ts <= spans()[1][1] for m in wanted)
    for count in range(first, len(wanted), 5):
        topic, directory = MemoryTopic(), tmp_path / str(count)
        directory.mkdir()
        topic.messages = [b"\x10\x01"] * 200 + wanted[:count]
        (directory / "savepoint").write_text(Savepoint(spans()[1][1], version_at(spans()[1][1]), False).to_toml())
        run(in_topic(directory, topic))
        assert topic.messages[200:] == wanted, count


def test_binlogs_without_a_savepoint_are_not_written_over(tmp_path: Path) -> None:
    run(in_files(tmp_path))
    for name in ("savepoint", "savepoint.spark"):
        (tmp_path / name).unlink()
    before = files(tmp_path)
    with pytest.raises(ApplyError, match="no savepoint says"):
        run(in_files(tmp_path))
    assert files(tmp_path) == before


@pytest.mark.shows("start without a savepoint")
@pytest.mark.parametrize("kind", ["files", "topic"])
def test_a_stream_whose_record_is_lost_does_not_begin_at_now(kind: str, tmp_path: Path) -> None:
    """With initial-commit-ts = -1 nothing that is there lies beyond the beginning; what was committed meanwhile would be missing."""
    found, topic, record = case_steps(CASE)[0], MemoryTopic(), tmp_path / "record"
    whole = from_drainer(CASE, "drainer.pb" if kind == "files" else "drainer.slave")

    def sink() -> MessageSink:
        settings = MessageSettings(record, 1, from_now=True)
        return (
            kafka_sink(topic, settings)
            if kind == "topic"
            else file_sink(FileTarget(tmp_path / "binlogs", max_file_bytes=MAX_BYTES), settings)
        )

    def begins_now() -> None:
        one = sink()
        try:
            one.open(lambda _, at: spans()[-1][1] if at is None else at, lambda: found.history)
        finally:
            one.close()

    def written() -> list[bytes]:
        return [r.payload for r in walk(tmp_path / "binlogs")] if kind == "files" else topic.messages

    run(sink(), upto=spans()[4][1])
    before = written()
    last = commit_ts(before[-1]) if kind == "files" else slave.Binlog.FromString(before[-1]).commit_ts
    for name in ("savepoint", "savepoint.spark"):
        (record / name).unlink()
    for _ in range(2):
        with pytest.raises(ApplyError, match=rf"up to commit_ts {last} .*consistent = true and commitTS = {last} into {record}/savepoint"):
            begins_now()
    assert written() == before and not (record / "savepoint").exists()
    (record / "savepoint").write_text(f"consistent = true\ncommitTS = {last}\n")
    run(sink())
    assert written() == whole
    topic.deleted = len(topic.messages)
    for path in (*record.iterdir(), *(tmp_path.glob("binlogs/*"))):
        path.unlink()
    if kind == "topic":
        with pytest.raises(ApplyError, match="the topic holds binlogs which are no longer there"):
            begins_now()
    else:
        begins_now()
        begins_now()


def test_nothing_is_recorded_that_went_into_a_file_that_is_gone(tmp_path: Path) -> None:
    run(in_files(tmp_path / "whole"))
    found, _, steps = case_steps(CASE)
    first, second = [s for s in steps if isinstance(s, DdlStep)][:2]
    sink = in_files(tmp_path)
    sink.open(lambda _, at: at or found.info["start_ts"], lambda: found.history)
    sink.apply_ddl(first, found.history, {})
    newest = sorted((tmp_path / "binlogs").glob("binlog-*"))[-1]
    newest.rename(tmp_path / "away")
    with pytest.raises(ApplyError, match=f"{newest} was removed or moved .* Put the file back"):
        sink.apply_ddl(second, found.history, {})
    sink.close()
    assert Savepoint.from_toml((tmp_path / "savepoint").read_text()).commit_ts == first.commit_ts
    with pytest.raises(
        Corruption, match=r"were files removed\? Put these files back.* remove savepoint.spark and start with initial-commit-ts"
    ):
        run(in_files(tmp_path))
    (tmp_path / "away").replace(newest)
    run(in_files(tmp_path))
    assert payloads(tmp_path) == payloads(tmp_path / "whole")


def test_a_topic_made_again_is_noticed(tmp_path: Path) -> None:
    topic = MemoryTopic()
    run(in_topic(tmp_path, topic))
    with pytest.raises(ApplyError, match="ends at offset 0"):
        run(in_topic(tmp_path, MemoryTopic()))


def test_the_place_after_a_commit_ts(tmp_path: Path) -> None:
    messages = [pb.Binlog(tp=pb.DDL, commit_ts=ts, ddl_query=b"x" * 20).SerializeToString() for ts in range(10, 20)]
    writer = BinlogWriter(tmp_path, 80)
    writer.append(messages)
    size = len(record_of(messages[0]))
    assert (80 - 1) // size + 1 == 2
    for ts in range(25):
        count = min(max(ts - 9, 0), 10)
        assert end_of(tmp_path, ts) == FilePosition(count // 2, size * (count % 2)), ts
    writer.close()
    assert end_of(tmp_path / "absent", 5) == FilePosition(0, 0)


# The record.


def test_another_clusters_record_is_refused(tmp_path: Path) -> None:
    run(in_files(tmp_path))
    sink = file_sink(FileTarget(tmp_path / "binlogs"), MessageSettings(tmp_path, 2))
    with pytest.raises(ApplyError, match="record of cluster 1"):
        sink.open(lambda _, at: at or 0, lambda: case_steps(CASE)[0].history)
    sink.close()


def test_two_data_dirs_cannot_share_a_directory_of_binlogs(tmp_path: Path) -> None:
    history = case_steps(CASE)[0].history
    first = file_sink(FileTarget(tmp_path / "binlogs"), MessageSettings(tmp_path / "a", 1))
    first.open(lambda _, at: at or 5, lambda: history)
    second = file_sink(FileTarget(tmp_path / "binlogs"), MessageSettings(tmp_path / "b", 1))
    with pytest.raises(LeaseHeld):
        second.open(lambda _, at: at or 5, lambda: history)
    second.close()
    first.close()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    run(in_files(tmp_path))
    for name, text in (("savepoint", "commitTS = x"), ("savepoint.spark", "{")):
        kept = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text)
        with pytest.raises(ApplyError, match=name):
            run(in_files(tmp_path))
        (tmp_path / name).write_text(kept)
    run(in_files(tmp_path))


@pytest.mark.shows("syncer.sync-ddl")
def test_ddls_are_left_out_without_sync_ddl_and_for_databases_that_are_not_replicated(tmp_path: Path) -> None:
    run(in_files(tmp_path / "a", sync_ddl=False))
    assert {pb.Binlog.FromString(m).tp for m in payloads(tmp_path / "a")} == {pb.DML}
    sink = in_files(tmp_path / "b")
    run(sink, selection=Selection(TableFilter((), ("~.*",))))
    assert payloads(tmp_path / "b") == [] and sink.commit_ts == spans()[-1][1]


def test_the_text_of_an_early_ddl_is_as_in_a_binlog(tmp_path: Path) -> None:
    """It is the user's, with escapes; Reparo and consumers read it as TiDB restores it."""
    found, _, steps = case_steps(CASE)
    users = replace(
        next(s for s in steps if isinstance(s, DdlStep)), early=True, query=r"ALTER TABLE t ADD c VARCHAR(9) DEFAULT 'it\'s a\\b'"
    )
    topic = MemoryTopic()
    for sink in (in_files(tmp_path), in_topic(tmp_path / "topic", topic)):
        sink.open(lambda _, at: at or found.info["start_ts"], lambda: found.history)
        sink.apply_ddl(users, found.history, {})
        sink.close()
    for message in (*payloads(tmp_path), *topic.messages):
        assert rb"DEFAULT 'it''s a\b'" in message


def test_a_ddl_that_is_ignored_counts_as_done(tmp_path: Path) -> None:
    run(in_files(tmp_path / "whole"))
    ddls = [m for m in payloads(tmp_path / "whole") if pb.Binlog.FromString(m).tp == pb.DDL]
    run(in_files(tmp_path / "a", ignored_ts=frozenset({commit_ts(ddls[0])})))
    assert payloads(tmp_path / "a") == [m for m in payloads(tmp_path / "whole") if m != ddls[0]]
    run(in_files(tmp_path / "a"))
    assert ddls[0] not in payloads(tmp_path / "a")


@pytest.mark.shows("syncer.to.retention-time", "pb files")
def test_old_files_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sink(days: int) -> MessageSink:
        return file_sink(FileTarget(tmp_path / "binlogs", days, MAX_BYTES), MessageSettings(tmp_path, 1))

    run(sink(0), upto=spans()[4][1])
    old = sorted((tmp_path / "binlogs").glob("binlog-*"))
    for path in old:
        os.utime(path, (1, 1))
    run(sink(1), upto=spans()[5][1])
    assert all(p.exists() for p in old)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.file.file_sink._TIDY_SECONDS", 0.0)
    run(sink(1))
    assert [p.exists() for p in old] == [False] * (len(old) - 1) + [True]
