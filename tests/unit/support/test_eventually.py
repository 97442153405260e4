"""Waiting: at once when it holds, what it says when it does not come, and what the condition raises."""

import re
import threading

import pytest

from tests.support.eventually import eventually


def test_what_holds_is_returned_without_a_pause() -> None:
    assert eventually(lambda: [1], pause=1e6) == [1]


def test_it_looks_until_it_holds() -> None:
    values = iter([0, None, "", "there"])
    assert eventually(lambda: next(values), pause=0) == "there"


def test_another_thread_is_waited_for() -> None:
    done = threading.Event()
    threading.Timer(0.05, done.set).start()
    assert eventually(done.is_set)


def test_the_failure_says_what_was_awaited_and_what_was_last_seen() -> None:
    with pytest.raises(AssertionError, match=r"^not within 0 s: three rows; last seen: 0$"):
        eventually(lambda: 0, seconds=0, what="three rows")
    with pytest.raises(AssertionError, match=r"^not within 0 s: three rows; last seen: the log$"):
        eventually(lambda: False, seconds=0, what="three rows", seen=lambda: "the log")


def test_the_condition_speaks_for_itself() -> None:
    with pytest.raises(AssertionError, match=re.escape("eventually(lambda: [], seconds=0); last seen: []")):
        eventually(lambda: [], seconds=0)
    with pytest.raises(AssertionError, match="not within 0 s: <built-in method keys"):
        eventually({}.keys, seconds=0)


def test_what_the_condition_raises_ends_the_wait() -> None:
    def gone() -> bool:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        eventually(gone)
