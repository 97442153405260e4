"""Small files that must survive a crash: records of progress, names, states. The lock of a file.

Promises: after a crash at any moment, a file has its old content or its new content, whole. When ``replace_file`` has returned, the file
has the new content. A write that fails, for example on a full disk, leaves the old content and no other file. Each file has one writer at a
time.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_tidb_binlog.schemas.errors import ApplyError


@contextmanager
def written_in(what: str, directory: Path, setting: str) -> Iterator[None]:
    """Errors of the file system while ``what`` is written in ``directory``, which ``setting`` names, as one message with what to do.

    Raises:
        ApplyError: instead of an ``OSError``.
    """
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise  # of what is written, not of where
    except OSError as error:
        raise ApplyError(
            f"cannot write {what} in {directory}: {error}. Free space there, give this account the right to write, or correct {setting}. Then start "
            "again: nothing is lost, and nothing is written twice"
        ) from error


def replace_file(path: Path, content: str, mode: int = 0o666) -> None:
    """Replace a file, or make it with the permissions ``mode`` less the umask; its directory exists.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.tmp")
    beside.unlink(missing_ok=True)
    made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(made, "w", encoding="utf-8") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def locked_file(path: Path, mode: int = 0o600) -> int:
    """A descriptor that holds the exclusive lock of a file, which is made if there is none, until the descriptor is closed or the process ends.

    Raises:
        BlockingIOError: another process, or this one, holds the lock.
        OSError: the file cannot be opened.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def sync_directory(directory: Path) -> None:
    """Make the names of what was created, replaced or removed in ``directory`` durable.

    Raises:
        OSError: the disk fails.
    """
    found = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(found)
    finally:
        os.close(found)
