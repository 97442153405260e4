"""Whether the source may return a further batch: a file that it looks for, in a directory that this job makes and removes.

The source runs in a process of its own on this machine; while the file exists, it returns no batch (``source.stream_end``).

Promises: ``shut`` takes effect between two batches, within about 0.2 s of the end of the running one. Once ``shut_for_good`` was called, ``open``
does nothing.
"""

import shutil
import tempfile
import threading
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.source.stream_end import asking_file


class BatchGate:
    """The file of one stream; the directory also holds what its reads note (``source.read_notes``)."""

    def __init__(self) -> None:
        """Make the directory; the gate is open."""
        self._directory = Path(tempfile.mkdtemp(prefix="tbs-stop-"))
        self._for_good = False
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
                self.file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory: the stream has ended."""
        shutil.rmtree(self._directory, ignore_errors=True)
