"""Log files: which one belongs to this process, how much is written and how much is kept.

Promises: two processes never write to the same file. A job's Python writes ``JOB.log`` (with the output of Spark's Python workers), its JVM
``JOB.spark.log`` next to it; a second job of the same kind, while the first runs, uses ``JOB-2.log``. Both are rotated by size: ``FILES``
old ones are kept as ``JOB.log.1`` and so on.
"""

import fcntl
import itertools
import logging
import logging.handlers
import os
from pathlib import Path

FILE_BYTES = 64 * 1024 * 1024
"""Size at which a log file is rotated; ``conf/log4j2.properties`` has the same for the JVM's."""
FILES = 4

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR, "fatal": logging.CRITICAL}
_OF_SPARK = {"debug": "INFO", "info": "WARN", "warn": "WARN", "error": "ERROR", "fatal": "FATAL"}
"""Spark logs a hundred times as much as this project: its level is one higher."""

_claims: dict[Path, int] = {}
"""Descriptor of the lock of each log file that this process has claimed, by the file's path."""
_claimed: dict[Path, Path] = {}
_set: Path | None = None
"""The file of the setting ``log-file``."""
_handler: logging.Handler | None = None
"""What writes to the log file."""


def log_file() -> Path:
    """The log of this process: the one of the setting ``log-file``, else that of ``_named_log_file``."""
    return _set or _named_log_file()


def _named_log_file() -> Path:
    """The file that ``TIDB_BINLOG_LOG`` names, or its first numbered variant that no other process uses."""
    wanted = Path(os.environ.get("TIDB_BINLOG_LOG", "var/log/spark.log")).absolute()
    if wanted not in _claimed:
        _claimed[wanted] = _claim(wanted)
    return _claimed[wanted]


def spark_log_file() -> Path:
    """The log of this process's JVM, which starts before the settings are read."""
    return _named_log_file().with_suffix(".spark.log")


def log_to_file(path: Path | None = None) -> None:
    """Send this process's log to ``log_file()``, or from now on to ``path``, or its first numbered variant that no other process uses."""
    global _handler, _set
    if path is not None:
        _set = _claim(path.absolute())
    root, former = logging.getLogger(), _handler
    _handler = logging.handlers.RotatingFileHandler(log_file(), maxBytes=FILE_BYTES, backupCount=FILES, delay=True)
    _handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(_handler)
    if path is not None and former is not None:
        root.removeHandler(former)
        former.close()
    if path is None:
        set_level("info")
    # Py4J logs every closed connection of a JVM that shuts down.
    logging.getLogger("py4j").setLevel(logging.ERROR)


def set_level(level: str) -> None:
    """Set the log level; ``level`` as in the setting ``log-level``."""
    logging.getLogger().setLevel(LEVELS[level])


def spark_level() -> str:
    """The level of Spark's own log that corresponds to this process's."""
    ours = logging.getLogger().level
    return next((_OF_SPARK[name] for name, level in LEVELS.items() if level >= ours), "ERROR")


def _claim(wanted: Path) -> Path:
    """Claim a file by a lock next to it, since rotation renames the file itself; the kernel releases the lock when the process ends."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _claims[path] = lock
        return path
    raise AssertionError("unreachable: the numbers are infinite")
