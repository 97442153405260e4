"""The files of the relay log, and which span of the upstream they hold for certain (drainer.md 8, wire.md 3).

    binlog-<index>-<time>   a real Drainer's relay log, byte for byte: each can recover from the other's
    relay.spark             ours, JSON: the span of commit_ts that the files hold completely (``Cover``); a real Drainer ignores it
    .lock                   its writer holds a flock on it

Promises: when ``write`` returns, every transaction of the span is durable, in the order of commit_ts, and ``relay.spark`` says so. An error of the
file system is raised before anything is applied. Behind the target's checkpoint there is one record of each transaction, even after any number of
crashes: ``begin`` decides by the checkpoint what to keep (``standing``). The file being written is never deleted. An older file is deleted when the target
has everything in it.
"""

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter, FilePosition, collectable, files_in
from pyspark_tidb_binlog.schemas.durable_file import replace_file, written_in
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption
from pyspark_tidb_binlog.sinks.file.file_sink import end_of, last_ts_of
from pyspark_tidb_binlog.sinks.sink import TargetProgress
from pyspark_tidb_binlog.sinks.translate.translation import Message

COVER = "relay.spark"
_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class RelayStream:
    """What decides which transactions are in the log: with another one its records are of no use."""

    cluster_id: int
    filters: str
    """``Selection.text``."""
    ignored_ts: frozenset[int] = frozenset()
    """``ignore-txn-commit-ts``: these transactions are not in it."""

    def takes(self, other: "RelayStream") -> bool:
        """Whether what ``other`` has written is enough for this stream, which then leaves out transactions that are only now ignored."""
        return (self.cluster_id, self.filters) == (other.cluster_id, other.filters) and other.ignored_ts <= self.ignored_ts


@dataclass(frozen=True, slots=True)
class Cover:
    """The log holds all transactions with ``after_ts < commit_ts <= upto_ts``."""

    stream: RelayStream
    after_ts: int
    upto_ts: int
    begin: FilePosition
    """Where the first of them begins."""
    end: FilePosition
    """Where the last of them ends."""

    def holds(self, after_ts: int, upto_ts: int) -> bool:
        """Whether a span is in it."""
        return self.after_ts <= after_ts and upto_ts <= self.upto_ts

    def to_json(self) -> str:
        """The text of ``relay.spark``."""
        value = {
            "layout": _LAYOUT,
            "cluster_id": self.stream.cluster_id,
            "filters": self.stream.filters,
            "ignored_ts": sorted(self.stream.ignored_ts),
            "after_ts": self.after_ts,
            "upto_ts": self.upto_ts,
            "begin": [self.begin.index, self.begin.offset],
            "end": [self.end.index, self.end.offset],
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """The parsed text as a value."""
        stream = RelayStream(int(found["cluster_id"]), str(found["filters"]), frozenset(map(int, found["ignored_ts"])))
        begin, end = (FilePosition(int(i), int(o)) for i, o in (found["begin"], found["end"]))
        return cls(stream, int(found["after_ts"]), int(found["upto_ts"]), begin, end)


@dataclass(frozen=True, slots=True)
class Standing:
    """What ``begin`` makes of a log."""

    cut: bool
    """Whether what lies behind the checkpoint is removed."""
    cover: Cover | None
    """The span that need not be written again."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What files there are."""

    sizes: Mapping[int, int]
    """By index, in bytes."""
    last_ts: int
    """commit_ts of the last record; 0 = there is none."""
    end: FilePosition

    def has(self, cover: Cover) -> bool:
        """Whether the files of a cover are there."""
        wanted = range(cover.begin.index, cover.end.index + 1)
        return all(index in self.sizes for index in wanted) and self.sizes[cover.end.index] >= cover.end.offset


def standing(found: TargetProgress, noted: Cover | None, extent: Extent, stream: RelayStream) -> Standing:
    """Decides what to do with a log by the target's progress. Pure.

    * Consistent: the target needs nothing of the log. A life that died before it applied anything wrote what is behind the checkpoint.
    * A span of ours is open, and the log holds it: the log stays, because the upstream may be gone before the span is finished.
    * A span of ours is open, and the log does not hold it (it was switched on since, or has other filters): the span is written again.
    * Not consistent, and no span of ours, or a span begun to replay such a log: a real Drainer has died. Its log follows its checkpoint without a gap.
      If ``relay.spark`` at the log's beginning is from later, the target was restored, and the log is of no use.

    Args:
        found: the target's progress.
        noted: what ``relay.spark`` says.
        extent: the files.
        stream: what is written now.
    """
    if found.consistent:
        return Standing(True, None)
    if found.unfinished is not None:
        held = noted is not None and noted.holds(found.commit_ts, found.unfinished.upto_ts)
        whole = noted is not None and held and stream.takes(noted.stream) and extent.has(noted)
        if held or not found.unfinished.relayed:
            return Standing(not whole, noted if whole else None)
    if noted is not None and found.commit_ts < noted.after_ts:
        return Standing(True, None)
    begin = FilePosition(min(extent.sizes, default=0), 0)
    return Standing(False, Cover(stream, found.commit_ts, max(extent.last_ts, found.commit_ts), begin, extent.end))


class RelayLog:
    """The writer of one directory. One thread at a time."""

    def __init__(
        self,
        directory: Path,
        max_file_bytes: int,
        stream: RelayStream,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """Nothing is read or written before ``begin``."""
        self._directory = directory
        self._max_file_bytes = max_file_bytes
        self._stream = stream
        self._now = now
        self._writer: BinlogWriter | None = None
        self._cover: Cover | None = None
        self._failed = False
        """Whether a write has failed, so that a part of a record may be at the end."""

    def begin(self, found: TargetProgress) -> None:
        """Lock the directory and make it fit the target; ``found``: the target's progress.

        Raises:
            LeaseHeld: another process writes there.
            Corruption: the directory holds no relay log, or a damaged one.
            ApplyError: the directory cannot be written.
        """
        with told(self._directory):
            writer = BinlogWriter(self._directory, self._max_file_bytes, self._now)
            try:
                self._settle(writer, found)
            except BaseException:
                writer.close()
                raise
        self._writer = writer

    def write(self, after_ts: int, upto_ts: int, messages: Iterable[Message]) -> None:
        """Make all transactions of (after_ts, upto_ts] durable; ``messages`` are these, ascending, and are read only if the log lacks any.

        Raises:
            ApplyError: they cannot be written; nothing of them may be applied.
        """
        writer, known = self._held, self._cover
        if known is not None and known.holds(after_ts, upto_ts):
            return
        follows = known is not None and known.after_ts <= after_ts <= known.upto_ts
        above = known.upto_ts if known is not None and follows else after_ts
        begin, first = (known.begin, known.after_ts) if known is not None and follows else (writer.position, after_ts)
        self._failed = True
        with told(self._directory):
            writer.append(m.payload for m in messages if m.commit_ts > above)
            writer.sync()
            cover = Cover(self._stream, first, upto_ts, begin, writer.position)
            replace_file(self._directory / COVER, cover.to_json())
        self._cover, self._failed = cover, False

    def write_ddl(self, commit_ts: int, messages: Iterable[Message]) -> None:
        """Make a DDL durable; one that is executed ahead of its binlog, within a span that is there, is left out."""
        known = self._cover
        if known is not None and known.after_ts <= commit_ts <= known.upto_ts:
            return
        writer, self._failed = self._held, True
        with told(self._directory):
            writer.append(m.payload for m in messages)
            writer.sync()
        self._failed = False

    def passed(self, commit_ts: int) -> None:
        """Everything up to ``commit_ts`` is in the target: delete the files that nobody needs any more."""
        if self._cover is not None and commit_ts < self._cover.upto_ts:
            return
        self._cover = None
        writer = self._held
        with told(self._directory):
            writer.collect(collectable(writer.files(), writer.position))

    def close(self) -> None:
        """Release the directory; safe to call twice."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _held(self) -> BinlogWriter:
        if self._writer is None or self._failed:
            raise ApplyError(f"the relay log in {self._directory} is not open, or a write has failed. Start again")
        return self._writer

    def _settle(self, writer: BinlogWriter, found: TargetProgress) -> None:
        last_ts = 0 if found.consistent else last_ts_of(self._directory)
        made = standing(found, noted_cover(self._directory), extent_of(self._directory, last_ts, writer.position), self._stream)
        if made.cut:
            end = end_of(self._directory, found.commit_ts)
            if end != writer.position:
                writer.cut(end)
        self._cover = made.cover


def noted_cover(directory: Path) -> Cover | None:
    """What ``relay.spark`` says; None also for a text that is not ours.

    Raises:
        ApplyError: it has another layout.
    """
    try:
        found = json.loads((directory / COVER).read_text())
        layout, cover = found["layout"], Cover.of_json(found)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    if layout != _LAYOUT:
        raise ApplyError(f"{directory / COVER} has layout {layout}, but this release reads {_LAYOUT}. Use the release that wrote it")
    return cover


def read_cover(directory: Path) -> Cover | None:
    """The same, if the files that it names are there."""
    cover = noted_cover(directory)
    return cover if cover is not None and extent_of(directory, 0, cover.end).has(cover) else None


def extent_of(directory: Path, last_ts: int, end: FilePosition) -> Extent:
    """The files of a directory."""
    return Extent({f.index: (directory / f.name).stat().st_size for f in files_in(directory)}, last_ts, end)


@contextmanager
def told(directory: Path) -> Iterator[None]:
    """Adds the directory, and what to do, to errors of the file system and of damaged files."""
    try:
        with written_in("the relay log", directory, "syncer.relay.log-dir"):
            yield
    except Corruption as error:
        raise Corruption(
            f"the relay log in {directory}: {error}. While the upstream runs, the relay log is not needed: move its files away and start again"
        ) from error
