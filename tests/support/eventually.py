"""Waiting for what happens beside a test: in another thread, another process, a server.

Promises: ``eventually`` returns as soon as its condition holds, so that a long patience costs a test that passes nothing; a condition that is
not met in time fails with what was awaited and what was last seen.
"""

import inspect
import textwrap
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a test has failed; nothing that is waited for without other ``seconds`` takes them, also on a busy machine."""


def eventually(
    condition: Callable[[], T],
    *,
    seconds: float = PATIENCE,
    what: str = "",
    seen: Callable[[], object] | None = None,
    pause: float = 0.01,
) -> T:
    """The first value of ``condition`` that is true; what it raises passes through at once, so it may also assert that waiting makes sense.

    ``what`` is awaited: by default the condition's own source. ``seen`` is asked for what to show when ``seconds`` are over: by default the
    condition's last value is shown. ``pause``: seconds between two looks.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, (
            f"not within {seconds:g} s: {what or _source_of(condition)}; last seen: {seen() if seen is not None else repr(found)}"
        )
        time.sleep(pause)
    return found


def _source_of(condition: Callable[[], object]) -> str:
    """The lines that define a condition, on one; its name where it has no source of its own, as a bound method of C has none."""
    try:
        return textwrap.shorten(inspect.getsource(condition), 300)
    except (OSError, TypeError):
        return repr(condition)
