"""Pauses the source by a file, in a directory that this job makes and removes.

The source runs in another process on this machine. While the file exists, the source returns no batch (``source.stream_end``).

``rest`` shuts it for a while, for whoever needs the target between two batches; ``keep`` opens it then. A pause outlasts a rest.

Promises: ``shut`` takes effect between two batches, within about 0.2 s of the end of the running batch. After ``shut_for_good``, ``open`` does nothing.
The stream is at rest only after ``REST_SECONDS`` without a batch, counted from each ``shut``. ``keep``, called every second, keeps the directory fresh
for cleaners of the temporary directory, and makes it again if somebody removed it. While the directory is missing, the source returns no batch.
"""

import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from time import monotonic

from pyspark_tidb_binlog.binlog_source.source.stream_end import asking_file

_log = logging.getLogger(__name__)

REST_SECONDS = 0.6
"""After a pause of this length without a batch, the source has seen the pause: a batch that it was about to return has arrived."""


class BatchGate:
    """The file of one stream; the directory also holds what its reads note (``source.read_notes``)."""

    def __init__(self) -> None:
        """Make the directory; the gate is open."""
        self._directory = Path(tempfile.mkdtemp(prefix="tbs-stop-"))
        self.is_shut = self._for_good = self._removed = False
        """Whether no batch may begin; whether ever again; whether the stream has ended."""
        self._rests_until = 0.0
        """``monotonic`` when a rest is over; 0 = it does not rest."""
        self._quiet_since = 0.0
        """``monotonic`` since which no batch has run behind the shut gate; 0 = a batch ran, or nobody has checked yet."""
        self._lock = threading.Lock()

    @property
    def file(self) -> Path:
        """The file whose existence shuts the gate."""
        return self._directory / "stop"

    @property
    def asked(self) -> bool:
        """Whether the source was asked for a batch and has none: nothing is between it and Spark."""
        return asking_file(self.file).exists()

    def shut(self) -> None:
        """Let no batch begin.

        Raises:
            OSError: the file cannot be made; batches go on.
        """
        with self._lock:
            self._shut(0.0)

    def rest(self, seconds: float) -> None:
        """Let no batch begin for so long; 0: the rest is over. A gate that is shut without a rest stays as it is.

        Raises:
            OSError: as ``shut`` and ``open``.
        """
        with self._lock:
            if not self.is_shut or self._rests_until:
                if seconds > 0:
                    self._shut(monotonic() + seconds)
                else:
                    self._open()

    def shut_for_good(self) -> None:
        """Let no batch begin any more. If the file cannot be made, log that: the stream then ends in the middle of a batch."""
        with self._lock:
            self.is_shut = self._for_good = True
            try:
                self._make_directory()
                self.file.touch()
            except OSError as error:
                _log.warning("cannot pause the source, so the stream ends within a batch: %s", error)

    def open(self) -> None:
        """Let batches begin again.

        Raises:
            OSError: the file cannot be removed; it stays shut.
        """
        with self._lock:
            self._open()

    def keep(self) -> None:
        """Make or refresh the directory and, while the gate is shut, the file.

        Raises:
            OSError: they cannot be made.
        """
        with self._lock:
            if self._removed:
                return
            if self._rests_until and monotonic() >= self._rests_until:
                self._open()
            missing = not self._directory.exists() or (self.is_shut and not self.file.exists())
            self._make_directory()
            if self.is_shut:
                self.file.touch()
            os.utime(self._directory)
            if missing:
                self._quiet_since = 0.0
                _log.warning(
                    "%s, or a file in it, was removed; the job made it again: exclude it from cleaning, because a file there pauses the stream",
                    self._directory,
                )

    def _shut(self, rests_until: float) -> None:
        self._make_directory()
        self.file.touch()
        self.is_shut, self._rests_until = True, rests_until

    def _open(self) -> None:
        if not self._for_good:
            self._make_directory()
            self.file.unlink(missing_ok=True)
            self.is_shut, self._rests_until, self._quiet_since = False, 0.0, 0.0

    def _make_directory(self) -> None:
        if self._removed:
            raise FileNotFoundError("the stream has ended")
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if self._directory.lstat().st_uid != os.geteuid():
            # another user may have made one of this name after ours was removed
            raise PermissionError(f"{self._directory} belongs to another user")

    def rested(self, *, busy: bool) -> bool:
        """Whether the gate is shut and no batch has run for ``REST_SECONDS``. Called repeatedly; ``busy``: whether a batch runs now."""
        with self._lock:
            quiet = self.is_shut and not busy
            self._quiet_since = (self._quiet_since or monotonic()) if quiet else 0.0
            return quiet and monotonic() - self._quiet_since >= REST_SECONDS

    def remove(self) -> None:
        """Remove the directory: the stream has ended."""
        with self._lock:
            self._removed = True
            shutil.rmtree(self._directory, ignore_errors=True)
