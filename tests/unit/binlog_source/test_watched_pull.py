"""A pull under watch: cancelled when nothing comes, not when its reader takes its time."""

import threading
import time
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.binlog_source.source.watched_pull import WatchedPull
from tests.support.eventually import eventually


class Pulled:
    """A pull of some messages; then, or for its metadata, it waits until it is cancelled."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = messages
        self.cancelled = threading.Event()
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.messages
        self._wait()

    def metadata(self) -> None:
        self._wait()

    def _wait(self) -> None:
        assert self.cancelled.wait(60)
        raise ConnectionError

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True


def test_one_that_is_silent_is_cancelled() -> None:
    pulled = Pulled(b"a", b"b")
    watched = WatchedPull(pulled, 0.2)  # type: ignore[arg-type]
    got = []
    with pytest.raises(ConnectionError):
        got += list(watched)
    assert watched.silent
    watched.close()
    assert pulled.closed


def test_so_is_one_whose_metadata_does_not_come() -> None:
    watched = WatchedPull(Pulled(), 0.2)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        watched.metadata()
    assert watched.silent


def test_what_its_reader_does_with_a_message_does_not_count() -> None:
    pulled = Pulled(b"a", b"b")
    watched = WatchedPull(pulled, 1.0)  # type: ignore[arg-type]
    messages = iter(watched)
    assert next(messages) == b"a"
    time.sleep(2.5)
    assert not watched.silent and not pulled.cancelled.is_set() and next(messages) == b"b"
    watched.close()


def watching() -> int:
    return sum(thread.name == "silence of a pull" for thread in threading.enumerate())


def test_its_thread_ends_with_it() -> None:
    eventually(lambda: watching() == 0, what="those of other tests end")
    watched = [WatchedPull(Pulled(), 60.0) for _ in range(5)]  # type: ignore[arg-type]
    assert watching() == 5
    for each in watched:
        each.close()
    eventually(lambda: watching() == 0)
