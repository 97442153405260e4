"""A child of the test's process that a failpoint really kills: cheaper than a job, where no JVM takes part."""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.sinks.mysql.session import Session


def in_a_life_that_is_killed(work: Callable[[], object], die: str) -> None:
    """Run ``work`` in a child process that a failpoint kills; ``die``: ``point:pass``."""
    assert _dies(work, die)


def _dies(work: Callable[[], object], die: str) -> bool:
    child = os.fork()
    if child == 0:
        os.environ[failpoints.DIE] = die
        try:
            work()
        finally:
            os._exit(1)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def killed_at_each_statement(begin: Callable[[], object], work: Callable[[], object], last: int) -> Iterator[int]:
    """Kill a child process that runs ``work`` behind each of its ``last`` statements at a target, or about so many, after a ``begin``; gives the statement's number."""
    passed, classified = Counter[str](), Session._classified

    @contextmanager
    def with_a_point(session: Session, sql: bytes | str) -> Iterator[None]:
        with classified(session, sql):
            yield
        failpoints.point("statement")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_classified", with_a_point)
        with pytest.MonkeyPatch.context() as counting:
            counting.setattr(failpoints, "point", lambda name: passed.update([name]))
            for _ in range(2):  # a process knows more of its server the second time
                begin()
                passed.clear()
                work()
        numbers = itertools.count(passed["statement"] - last + 1)
        begin()
        while _dies(work, f"statement:{(number := next(numbers))}"):
            yield number
            begin()
