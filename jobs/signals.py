"""Ctrl-C, SIGTERM and SIGHUP as a request: the first asks the job to end in order, the second ends it at once.

Promises: the first signal only sets an event, whatever the job is doing. The second does what was left for it (Spark's JVM is killed), raises
``KeyboardInterrupt`` in the main thread so that what the job started is taken down, and ends the process where that takes longer than
``UNWIND_SECONDS``. A signal that the caller ignores stays ignored (``nohup``).
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

UNWIND_SECONDS = 3.0
"""How long a job that is ended at once may take to put its servers away."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """The request to this process; ``asked`` is set by the first signal."""

    def __init__(self) -> None:
        """Nothing is listened to before ``listen``."""
        self.asked = threading.Event()
        self.listening = False
        self._at_once: list[Callable[[], None]] = []

    def listen(self) -> threading.Event:
        """Take the signals over, also from whoever took them since: PySpark has a SIGINT handler of its own. Main thread only."""
        for number in NUMBERS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)
        self.listening = True
        return self.asked

    def at_once(self, act: Callable[[], None]) -> None:
        """``act`` is called by the second signal; it must neither wait nor raise."""
        self._at_once.append(act)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if not self.asked.is_set():
            self.asked.set()
            return
        for act in self._at_once:
            act()
        last = threading.Timer(UNWIND_SECONDS, _end, [number])
        last.daemon = True
        last.start()
        raise KeyboardInterrupt


REQUEST = StopRequest()
"""That of this process."""


def stop_on_signals() -> threading.Event:
    """The event that Ctrl-C, SIGTERM and SIGHUP set from now on instead of ending the process."""
    return REQUEST.listen()


def take_back() -> None:
    """Listen again, where ``stop_on_signals`` was called before and this is the main thread."""
    if REQUEST.listening and threading.current_thread() is threading.main_thread():
        REQUEST.listen()


def _end(number: int) -> None:
    sys.stderr.write("stopped\n")
    os._exit(128 + number)
