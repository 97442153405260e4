"""The real Drainer's checkpoint where it is not in the target: on another server, under another account, or in a file. [db]

The data's transaction cannot write that checkpoint. It writes a record of ours into the target, ``spark_checkpoint``, of the same form, and exactly
once rests on this record alone. The real checkpoint follows every ``SAVE_SECONDS`` and at the end; our record names its commit_ts before. The real one
says that we wrote it, and for which target: in a row as a key, in a file as a comment. A real Drainer drops both. At the start:

    real              ours          what counts
    none              known         ours: the real one is written again, and the log says so
    known             none          the real one
    one of the named  known         ours: the real one trails it, or was written last
    ours, above ours  known         refused: the target was restored, or is another one
    ours              none          refused: the target was rebuilt, or is another one
    above ours        known         the real one: another Drainer, or a person, moved it forward
    ours, below ours  known         ours: its server was restored, or a stopped life wrote it late; the log says so
    below ours        known         the real one: somebody set it back; safe mode applies everything from there up to our record

A real checkpoint is "ours" if it says that we wrote it with this very commit_ts for this target.

Promises: a real checkpoint that another program changes while this one runs is not overwritten: the stream fails. A failed write is
retried and does not hold the data up. A real checkpoint that cannot be read at the start is an error.
"""

import logging
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig, DrainerConfig, TargetConfig
from pyspark_tidb_binlog.schemas.durable_file import replace_file
from pyspark_tidb_binlog.schemas.errors import ApplyError, CheckpointMoved, ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import CHECKPOINT_TABLE, Checkpoint, TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.translate.local_record import SAVE_SECONDS, SAVEPOINT, Savepoint, locked

_log = logging.getLogger(__name__)

OURS = "spark_checkpoint"
"""The table in the target with our own record."""
_MOST_SECONDS = 60.0
"""Longest pause after an attempt to write that failed."""
IN_FILE = frozenset({"file", "kafka", "pb"})
_WRITTEN = re.compile(r"^# written at (?P<ts>\d+) for target (?P<target>\S+)$", re.MULTILINE)
"""Our comment in a savepoint."""


class RealCheckpoint(Protocol):
    """Where the real Drainer looks for its checkpoint."""

    where: str

    def open(self) -> None:
        """Make what is missing; raises ``LeaseHeld`` if another Drainer uses it."""

    def read(self) -> Checkpoint | None:
        """None: there is none. Raises ``ApplyError`` if it cannot be read."""

    def write(self, checkpoint: Checkpoint, expected: Collection[int]) -> None:
        """Replace it; durable when this returns. Raises ``CheckpointMoved`` if its commit_ts is none of ``expected``, or ``ApplyError``."""

    def close(self) -> None:
        """Nothing is written any more; safe to call twice."""


class InFile:
    """``<data-dir>/savepoint``, TOML."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / SAVEPOINT
        self._lock = -1
        self.where = str(self._path)

    def open(self) -> None:
        """Lock the directory."""
        try:
            self._directory.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = locked(self._directory)
        except OSError as error:
            raise ApplyError(
                f"the checkpoint {self.where} cannot be written: {error}. Give this account the right to write in its directory, and end other programs that lock it"
            ) from error

    def read(self) -> Checkpoint | None:
        """Read the file (``RealCheckpoint``); an empty file is none, as for a real Drainer, which begins at initial-commit-ts then."""
        try:
            text = self._path.read_text("utf-8")
            found = Savepoint.from_toml(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ApplyError(
                f"the checkpoint {self.where} cannot be read: {error}. Give this account the right to read and replace it"
            ) from error
        except ValueError as error:
            raise ApplyError(
                f"{self.where} is not a Drainer's savepoint: {error}. Restore it. Or remove it: then {OURS} in the target counts"
            ) from error
        by_us = _WRITTEN.search(text)
        written_for = by_us["target"] if by_us is not None and int(by_us["ts"]) == found.commit_ts else ""
        return Checkpoint(found.commit_ts, found.consistent, found.schema_version, written_for=written_for) if found.commit_ts else None

    def write(self, checkpoint: Checkpoint, expected: Collection[int]) -> None:
        """Write the file by a rename, after the content is on the disk."""
        found = self.read()
        if found is not None and found.commit_ts not in expected:
            raise _moved(self.where, found.commit_ts, expected)
        text = Savepoint(checkpoint.commit_ts, checkpoint.schema_version, checkpoint.consistent).to_toml()
        if checkpoint.written_for:
            text += f"# written at {checkpoint.commit_ts} for target {checkpoint.written_for}\n"
        try:
            replace_file(self._path, text)
        except OSError as error:
            raise ApplyError(f"the checkpoint {self.where} cannot be written: {error}") from error

    def close(self) -> None:
        """Release the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class OnServer:
    """A row of a table on a MySQL-protocol server."""

    def __init__(self, server: TargetConfig, apply: ApplyConfig, table: str, cluster_id: int) -> None:
        self._server = server
        self._apply = apply
        self._row = TargetCheckpoint(cluster_id, apply.checkpoint_schema, table)
        self.where = f"{apply.checkpoint_schema}.{table} of cluster {cluster_id} on {server.host}:{server.port}"

    def open(self) -> None:
        """Create the database and the table."""
        with connect(self._server, self._apply) as session:
            self._row.create(session)

    def read(self) -> Checkpoint | None:
        """Read the row (``RealCheckpoint``)."""
        with connect(self._server, self._apply) as session:
            return _begun(self._row.load(session))

    def write(self, checkpoint: Checkpoint, expected: Collection[int]) -> None:
        """Write the row, in a transaction that locks it."""
        with connect(self._server, self._apply) as session:
            session.begin()
            found = _begun(self._row.load(session, lock=True))
            if found is not None and found.commit_ts not in expected:
                raise _moved(self.where, found.commit_ts, expected)
            self._row.write(session, checkpoint)
            session.commit()

    def close(self) -> None:
        """Nothing is open."""


def _begun(found: Checkpoint | None) -> Checkpoint | None:
    return found if found is not None and found.commit_ts else None


def _moved(where: str, found: int, expected: Collection[int]) -> CheckpointMoved:
    return CheckpointMoved(
        f"the checkpoint {where} was changed to {found} while the stream was running; it should be at {sorted(expected)}. Does another Drainer use it? Each "
        "Drainer needs a checkpoint of its own (syncer.to.checkpoint.schema, table; for a file data-dir). Restart the Drainer: the start decides which checkpoint counts"
    )


def is_elsewhere(config: DrainerConfig) -> bool:
    """Whether the settings put the checkpoint where the data's own transaction cannot write it."""
    asked = config.checkpoint
    return asked.type in IN_FILE or bool(asked.type) and _server(asked, config.target) != config.target


def is_in_target(config: DrainerConfig) -> bool:
    """Whether the real checkpoint is a table of the target all the same, which another account writes."""
    asked, target = config.checkpoint, config.target
    server = _server(asked, target)
    return asked.type not in IN_FILE and (server.host, server.port, server.socket) == (target.host, target.port, target.socket)


def table_in_target(config: DrainerConfig) -> str:
    """The table of the record in the target."""
    return OURS if is_elsewhere(config) else config.checkpoint.table or CHECKPOINT_TABLE


def real_checkpoint(config: DrainerConfig, cluster_id: int) -> RealCheckpoint:
    """The checkpoint that ``is_elsewhere``; nothing is opened."""
    asked = config.checkpoint
    if asked.type in IN_FILE:
        return InFile(Path(config.data_dir))
    return OnServer(_server(asked, config.target), config.apply, asked.table or CHECKPOINT_TABLE, cluster_id)


def _server(asked: CheckpointConfig, target: TargetConfig) -> TargetConfig:
    """The checkpoint's server and account; what is not set is the target's."""
    found = replace(
        target,
        host=asked.host or target.host,
        port=asked.port or target.port,
        user=asked.user or target.user,
        password=asked.password or target.password,
        security=asked.security if asked.security.ssl_ca else target.security,
    )
    # A socket wins over host and port, and is the target's.
    return (
        replace(found, socket="")
        if (asked.host, asked.port) != ("", 0) and (found.host, found.port) != (target.host, target.port)
        else found
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """What counts at the start."""

    checkpoint: Checkpoint | None
    """None: nothing is recorded."""
    ours: bool
    """Whether it is our record."""
    upto_ts: int = 0
    """The target holds everything up to here, and it is applied again in safe mode; 0: it does not, or is not."""
    words: str = ""
    """For the log."""


def choose(ours: Checkpoint | None, real: Checkpoint | None, where: str, target: str) -> Choice:
    """Which of the two records counts; ``target``: the identity of this one. Pure.

    Raises:
        ConfigError: we wrote the real one for a target that was not as this one is.
    """
    if real is not None and real.written_for and (ours is None or real.commit_ts > max(ours.commit_ts, *ours.elsewhere, 0)):
        raise ConfigError(_of_another(ours, real, where))
    if ours is None:
        return Choice(real, False, words=f"the target has no record of its own, so the checkpoint {where} counts" if real else "")
    if real is None:
        return Choice(
            ours,
            True,
            words=f"the checkpoint {where} does not exist, so the target's own record counts: {ours.commit_ts}. The checkpoint is written again",
        )
    if real.commit_ts in (ours.commit_ts, *ours.elsewhere):
        return Choice(ours, True)
    if real.commit_ts < ours.commit_ts and real.written_for == target:
        words = f"the checkpoint {where} is at {real.commit_ts}, which this Drainer wrote long before the target's own record {ours.commit_ts}. Either its server was restored, or a stopped life wrote it late"
        return Choice(
            ours,
            True,
            words=f"{words}. The target's own record counts. To go back, change the checkpoint's commitTS, or remove this program's mark: in a file the comment, in a row the key spark-written",
        )
    how = "went on" if real.commit_ts > ours.commit_ts else "set it back"
    words = f"the checkpoint {where} is at {real.commit_ts}, and this Drainer did not write that (the target's own record is {ours.commit_ts}). Another Drainer, or a person, {how}. It counts"
    return Choice(real, False, ours.commit_ts if real.commit_ts < ours.commit_ts else 0, words)


def _of_another(ours: Checkpoint | None, real: Checkpoint, where: str) -> str:
    record = f"is at {ours.commit_ts} ({as_time(ours.commit_ts)})" if ours is not None else "is not there"
    goes_on = "from its own record" if ours is not None else "as on an empty target (--bootstrap-all, or initial-commit-ts)"
    return (
        f"the checkpoint {where} is at {real.commit_ts} ({as_time(real.commit_ts)}), and this program wrote it for the target {real.written_for}. But the record "
        f"{OURS} in this target {record}. This target was restored from a backup, was rebuilt, has lost its last commits in a crash, or is another one. "
        f"Choose: (1) The target's data is as its record says: remove the checkpoint, and the stream goes on {goes_on}. (2) The data is as the checkpoint says: "
        f"write the checkpoint by hand, in a file without the comment, in a row without the key spark-written"
    )


class Trailing:
    """Writes the real checkpoint after ours. Not thread-safe."""

    def __init__(self, real: RealCheckpoint) -> None:
        self._real = real
        self._there: tuple[int, ...] = ()
        """What the real checkpoint is at; empty: nothing is there."""
        self._late: tuple[int, ...] = ()
        """What a life before, that has lost the lease between its record and this write, may still write until we have written."""
        self._announced = 0
        """The commit_ts that our next record names as about to be written."""
        self._pending: Checkpoint | None = None
        """What our record names, and may or may not be written."""
        self._next_at = 0.0
        self._pause = SAVE_SECONDS

    def begin(self, real: Checkpoint | None, named: Collection[int]) -> None:
        """``real``: as it was found. ``named``: what our record names, if that counts."""
        self._there = (real.commit_ts,) if real else ()
        self._late = tuple(ts for ts in sorted(set(named)) if real is not None and ts > real.commit_ts)

    def named(self, commit_ts: int, *, now: bool = False) -> tuple[int, ...]:
        """What our record of ``commit_ts`` names; ``now``: whether or not the next write is due."""
        if self._pending is not None:
            return self._expected(self._pending.commit_ts)
        if commit_ts not in self._there and (now or time.monotonic() >= self._next_at):
            self._announced = commit_ts
        return self._expected(commit_ts) if self._announced == commit_ts else (*self._there, *self._late)

    def _expected(self, commit_ts: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self._there, *self._late, commit_ts)))

    def follow(self, checkpoint: Checkpoint) -> None:
        """Our record of ``checkpoint`` is committed: write the real one if that was announced, or is still to be done.

        Raises:
            CheckpointMoved: somebody else has written it.
        """
        if self._pending is None and self._announced == checkpoint.commit_ts:
            self._announced, self._pending, self._next_at = 0, checkpoint, 0.0
        self.retry()

    def end(self, checkpoint: Checkpoint) -> None:
        """The last one, of a clean stop: our record is committed and names it."""
        self._announced, self._pending, self._next_at = 0, checkpoint, 0.0
        self.retry()

    def retry(self, *, now: bool = False) -> bool:
        """Write what is to be written, if that is due; whether nothing is left.

        Raises:
            CheckpointMoved: somebody else has written it.
        """
        pending = self._pending
        if pending is None or not (now or time.monotonic() >= self._next_at):
            return pending is None
        failpoints.point("before-checkpoint-elsewhere")
        try:
            self._real.write(pending, self._expected(pending.commit_ts))
        except CheckpointMoved:
            raise
        except ApplyError as error:
            self._next_at = time.monotonic() + self._pause
            _log.warning("the checkpoint %s cannot be written, and stays behind the target's own record. The next attempt is in %.0f s: %s",
                         self._real.where, self._pause, error)  # fmt: skip
            self._pause = min(2 * self._pause, _MOST_SECONDS)
            return False
        self._there, self._late, self._pending, self._pause = (pending.commit_ts,), (), None, SAVE_SECONDS
        self._next_at = time.monotonic() + SAVE_SECONDS
        failpoints.point("after-checkpoint-elsewhere")
        return True
