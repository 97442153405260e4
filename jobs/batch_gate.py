"""Whether the source may return a further batch: a file that it looks for, in a directory that this job makes and removes.

The source runs in a process of its own on this machine; while the file exists, it returns no batch (``source.stream_end``).

Promises: ``shut`` takes effect between two batches, within about 0.2 s of the end of the running one. Once ``shut_for_good`` was called, ``open``
does nothing. The stream counts as at rest only after ``REST_SECONDS`` without a batch, from each ``shut`` on.
"""

import shutil
import tempfile
import threading
from pathlib import Path
from time import monotonic

from pyspark_tidb_binlog.binlog_source.source.stream_end import asking_file

REST_SECONDS = 0.6
"""No batch for so long after a pause: the source, which was perhaps about to return one, has returned it or seen the pause."""


class BatchGate:
    """The file of one stream; the directory also holds what its reads note (``source.read_notes``)."""

    def __init__(self) -> None:
        """Make the directory; the gate is open."""
        self._directory = Path(tempfile.mkdtemp(prefix="tbs-stop-"))
        self._for_good = False
        self._quiet_since = 0.0
        """``monotonic`` since when no batch was seen under way behind the shut gate; 0 = one was, or nobody has looked yet."""
        self._lock = threading.Lock()

    @property
    def file(self) -> Path:
        """The file whose existence shuts the gate."""
        return self._directory / "stop"

    @property
    def is_shut(self) -> bool:
        """Whether no batch may begin."""
        return self.file.exists()

    @property
    def asked(self) -> bool:
        """Whether the source was asked for a batch and has none: nothing is between it and Spark."""
        return asking_file(self.file).exists()

    def shut(self) -> None:
        """Let no batch begin."""
        with self._lock:
            self.file.touch()

    def shut_for_good(self) -> None:
        """Let no batch begin any more."""
        with self._lock:
            self._for_good = True
            self.file.touch()

    def open(self) -> None:
        """Let batches begin again."""
        with self._lock:
            if not self._for_good:
                self._quiet_since = 0.0
                self.file.unlink(missing_ok=True)

    def rested(self, *, busy: bool) -> bool:
        """Whether it is shut and no batch was under way for ``REST_SECONDS``. Called repeatedly; ``busy``: whether one is, at the moment."""
        with self._lock:
            quiet = self.is_shut and not busy
            self._quiet_since = (self._quiet_since or monotonic()) if quiet else 0.0
            return quiet and monotonic() - self._quiet_since >= REST_SECONDS

    def remove(self) -> None:
        """Remove the directory: the stream has ended."""
        shutil.rmtree(self._directory, ignore_errors=True)
