"""Ctrl-C, SIGTERM and SIGHUP as a request: the first asks the job to end in order, the second ends it at once.

Promises: the first signal only sets an event, whatever the job is doing, also while it waits for just that event: a handler runs between two steps of the main
thread, which may hold the event's own lock then, so a thread of its own sets it, and the handler writes a byte to that. The second does what was left for it (Spark's JVM is killed), raises
``KeyboardInterrupt`` in the main thread so that what the job started is taken down, and ends the process where that takes longer than
``UNWIND_SECONDS``. A signal that the caller ignores stays ignored (``nohup``).
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

UNWIND_SECONDS = 3.0
"""How long a job that is ended at once may take to put its servers away."""
_ASK = 0
"""To the helper: set the event. Any other byte is the number of the signal that ends the process."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """The request to this process; ``asked`` is set by the first signal."""

    def __init__(self) -> None:
        """Nothing is listened to before ``listen``."""
        self.asked = threading.Event()
        self.listening = False
        self._at_once: list[Callable[[], None]] = []
        self._heard_one = False
        self._told = -1

    def listen(self) -> threading.Event:
        """Take the signals over, also from whoever took them since: PySpark has a SIGINT handler of its own. Main thread only."""
        if not self.listening:
            self._told = self._start_helper()
        for number in NUMBERS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)
        self.listening = True
        return self.asked

    def at_once(self, act: Callable[[], None]) -> None:
        """``act`` is called by the second signal; it must neither wait nor raise."""
        self._at_once.append(act)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """Takes no lock: the main thread may hold it."""
        if not (self._heard_one or self.asked.is_set()):
            self._heard_one = True
            self._tell(_ASK)
            return
        for act in self._at_once:
            act()
        self._tell(number)
        raise KeyboardInterrupt

    def _tell(self, what: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._told, bytes([what]))

    def _start_helper(self) -> int:
        """The thread that takes locks for the handler; what is written to it."""
        heard, told = os.pipe()
        os.set_blocking(told, False)
        threading.Thread(target=self._help, args=(heard,), name="signals", daemon=True).start()
        return told

    def _help(self, heard: int) -> None:
        while told := os.read(heard, 1):
            if told[0] == _ASK:
                self.asked.set()
            else:
                time.sleep(UNWIND_SECONDS)
                _end(told[0])


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
