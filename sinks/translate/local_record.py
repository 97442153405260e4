"""The record of a sink without transactions: files in a local directory, separate from its target.

    savepoint         a real Drainer's checkpoint of type ``file``, three keys in TOML, so that either can take over from the other (drainer.md 6)
    savepoint.spark   ours, JSON: how far the sink is, and the place in its target
    savepoint.lock    the sink that writes holds a flock on it

Promises: ``save`` is atomic and durable. ``savepoint.spark`` is the record as long as it names the commit_ts of ``savepoint``, which trails
it by some seconds, as a real Drainer's does. Any other ``savepoint`` was written by a real Drainer, or by a person: then ``savepoint`` is the record, and
does not say the place in the target. A new directory is another target.
"""

import contextlib
import json
import logging
import os
import time
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pyspark_tidb_binlog.schemas.durable_file import locked_file, replace_file, written_in
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseHeld

_log = logging.getLogger(__name__)

SAVEPOINT = "savepoint"
STAND = "savepoint.spark"
SAVEPOINT_LOCK = "savepoint.lock"
SAVE_SECONDS = 3.0
"""Minimal interval between two savepoints, as in the original."""
_LAYOUT = 1

TargetPlace: TypeAlias = Mapping[str, int]
"""A place in the target, in the sink's own terms."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A real Drainer's checkpoint of type ``file``."""

    commit_ts: int
    schema_version: int
    consistent: bool

    def to_toml(self) -> str:
        """The original's text: these keys in this order."""
        return f"consistent = {str(self.consistent).lower()}\ncommitTS = {self.commit_ts}\nschema-version = {self.schema_version}\n"

    @classmethod
    def from_toml(cls, text: str) -> "Savepoint":
        """Parse one; missing keys count as zero, as in the original, unknown ones are ignored.

        Raises:
            ValueError: it is not TOML, or a value has another type.
        """
        keys = tomllib.loads(text)
        values = keys.get("commitTS", 0), keys.get("schema-version", 0), keys.get("consistent", False)
        if [type(v) for v in values] != [int, int, bool]:
            raise ValueError(f"commitTS, schema-version and consistent are {values}")
        return cls(*values)


@dataclass(frozen=True, slots=True)
class LocalProgress:
    """The progress of a sink, as it is recorded."""

    commit_ts: int
    schema_version: int
    early: frozenset[int]
    """Ids of DDL jobs in the target that ``schema_version`` does not cover (``AppliedJobs.early``)."""
    place: TargetPlace | None
    """The end of what belongs to it in the target; None: unknown, because another program wrote the savepoint."""
    ours: bool = True
    """False: read from a savepoint that another program wrote."""
    since_ts: int = 0
    """``AppliedJobs.since``."""


class LocalRecord:
    """The record of one sink, from ``open`` to ``close``. Not thread-safe."""

    def __init__(self, directory: Path, cluster_id: int) -> None:
        """Nothing is read or written before ``open``."""
        self._directory = directory
        self._cluster_id = cluster_id
        self._lock = -1
        self._named: tuple[int, ...] = ()
        """commit_ts of the savepoints that ``STAND`` names: the present one, and the one about to replace it."""
        self._saved_at = 0.0
        self._behind: Savepoint | None = None
        """The newest savepoint, if it is not written yet."""
        self.target = ""
        """The identity of the target; available after ``open``."""
        self.progress: LocalProgress | None = None
        """None: nothing is recorded."""

    def open(self) -> None:
        """Lock the directory, which is created, and load the record.

        Raises:
            LeaseHeld: another process has it.
            ApplyError: the record is another cluster's, or cannot be read.
        """
        with self._written():
            self._directory.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = locked(self._directory)
        savepoint, recorded = self._savepoint(), self._recorded()
        if recorded:
            self.target = str(recorded["target"])
            if recorded["cluster_id"] not in (0, self._cluster_id) and self._cluster_id:
                raise ApplyError(
                    f"{self._directory / STAND} is the record of cluster {recorded['cluster_id']}, but this is cluster {self._cluster_id}. Each cluster needs "
                    "a directory of its own"
                )
            if savepoint is None or savepoint.commit_ts in recorded["savepoints"]:
                early = frozenset(recorded["early"])
                self.progress = LocalProgress(
                    recorded["commit_ts"],
                    recorded["schema_version"],
                    early,
                    recorded["place"],
                    since_ts=recorded.get("since_ts", recorded["commit_ts"]),
                )
        self._named = (savepoint.commit_ts,) if savepoint is not None else ()
        self.target = self.target or str(uuid.uuid4())
        if self.progress is None and savepoint is not None and savepoint.commit_ts:
            self.progress = LocalProgress(savepoint.commit_ts, savepoint.schema_version, frozenset(), None, ours=False)

    def save(self, progress: LocalProgress) -> None:
        """Record ``progress``; durable when it returns. The savepoint follows, at most every ``SAVE_SECONDS`` and at ``close``.

        Raises:
            ApplyError: it cannot be written; what was recorded before counts, or ``progress``.
        """
        self._behind = Savepoint(progress.commit_ts, progress.schema_version, True)
        due = time.monotonic() - self._saved_at >= SAVE_SECONDS or not self._named
        with self._written():
            self._write_progress(progress, due=due)
            self.progress = progress
            if due:
                self._write_savepoint()

    def close(self) -> None:
        """Write the savepoint if it trails, and release the directory; safe to call twice. Where it cannot be written it trails on, which the log says."""
        if self._lock < 0:
            return
        try:
            if self._behind is not None and self.progress is not None:
                self._write_progress(self.progress, due=True)
                self._write_savepoint()
        except OSError as error:
            _log.warning(
                "%s cannot be written and stays behind %s, which counts for this program: %s", self._directory / SAVEPOINT, STAND, error
            )
        finally:
            os.close(self._lock)
            self._lock = -1

    @property
    def held(self) -> bool:
        """Whether this sink may write."""
        return self._lock >= 0

    def _written(self) -> contextlib.AbstractContextManager[None]:
        return written_in("the record of the stream", self._directory, "data-dir")

    def _write_progress(self, progress: LocalProgress, *, due: bool) -> None:
        named = (*self._named[-1:], progress.commit_ts) if due else self._named
        value = {
            "layout": _LAYOUT,
            "target": self.target,
            "cluster_id": self._cluster_id,
            "commit_ts": progress.commit_ts,
            "schema_version": progress.schema_version,
            "early": sorted(progress.early),
            "since_ts": progress.since_ts,
            "place": dict(progress.place) if progress.place is not None else None,
            "savepoints": named,
        }
        replace_file(self._directory / STAND, json.dumps(value, separators=(",", ":")))
        self._named = named

    def _write_savepoint(self) -> None:
        assert self._behind is not None
        replace_file(self._directory / SAVEPOINT, self._behind.to_toml())
        self._behind = None
        self._saved_at = time.monotonic()

    def _savepoint(self) -> Savepoint | None:
        path = self._directory / SAVEPOINT
        try:
            return Savepoint.from_toml(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ApplyError(f"{path} is not a Drainer's savepoint: {error}. Restore it, or begin in an empty directory") from error

    def _recorded(self) -> dict[str, Any]:
        path = self._directory / STAND
        try:
            recorded: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ApplyError(f"{path} cannot be read: {error}. Remove it to continue from {SAVEPOINT} beside it") from error
        if recorded.get("layout") != _LAYOUT:
            raise ApplyError(
                f"{path} has layout {recorded.get('layout')}, but this release writes {_LAYOUT}. Use the release that wrote it"
            )
        return recorded


def locked(directory: Path) -> int:
    """A descriptor that holds the directory's lock until it is closed.

    Raises:
        LeaseHeld: another process has it.
    """
    try:
        return locked_file(directory / SAVEPOINT_LOCK)
    except BlockingIOError:
        raise LeaseHeld(f"another Drainer records its progress in {directory}: it has locked {SAVEPOINT_LOCK}") from None
