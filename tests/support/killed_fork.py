"""A child of the test's process that a failpoint really kills: cheaper than a job, where no JVM takes part."""

import os
import signal
from collections.abc import Callable

from pyspark_tidb_binlog.conf import failpoints


def in_a_life_that_is_killed(work: Callable[[], object], die: str) -> None:
    """Run ``work`` in a child process that a failpoint kills; ``die``: ``point:pass``."""
    child = os.fork()
    if child == 0:
        os.environ[failpoints.DIE] = die
        try:
            work()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
