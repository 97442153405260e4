"""Ctrl-C, SIGTERM, SIGHUP and SIGQUIT as stop requests: the first asks the job to stop cleanly, the second ends it at once. A closed pipe ends it, too.

Promises: the first signal sets an event, also while the job waits for that event. A handler runs between two instructions of the main thread, which
may hold the event's lock. So the handler writes a byte to a pipe, and a helper thread sets the event. The second signal runs the registered actions
(Spark's JVM is killed) and raises ``KeyboardInterrupt`` in the main thread, which shuts down what the job started. After ``UNWIND_SECONDS`` the process
ends in any case. A SIGHUP that the caller ignores stays ignored (``nohup``).
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

UNWIND_SECONDS = 3.0
"""How long a job that is ended at once may take to shut its servers down."""
_STDOUT, _STDERR = 1, 2
EXIT_CLOSED = 128 + signal.SIGPIPE
"""As of other programs behind ``| head``, which the signal ends: to Python, it is an error of whoever writes."""
EXIT_INTERRUPTED = 128 + signal.SIGINT
_ASK = 0
"""The byte that makes the helper thread set the event. Any other byte is the number of the signal that ends the process."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class StopRequest:
    """The stop request of this process; ``asked`` is set by the first signal."""

    def __init__(self) -> None:
        """No signal is handled before ``listen``."""
        self.asked = threading.Event()
        self.listening = False
        self._at_once: list[Callable[[], None]] = []
        self._heard_one = False
        self._told = -1

    def listen(self) -> threading.Event:
        """Install the handlers, also over handlers installed since: PySpark has its own for SIGINT. Main thread only."""
        if not self.listening:
            self._told = self._start_helper()
        for number in NUMBERS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)
        self.listening = True
        return self.asked

    def at_once(self, act: Callable[[], None]) -> None:
        """Register ``act`` to be called on the second signal; it must neither block nor raise."""
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
        """Start the thread that takes locks for the handler; returns the descriptor to write to."""
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
"""The stop request of this process."""


def stop_on_signals() -> threading.Event:
    """The event that Ctrl-C, SIGTERM, SIGHUP and SIGQUIT set from now on instead of ending the process.

    Wait for the event in a loop, with a time-out. If a signal arrives just before a wait begins, Python handles it only when the wait ends.
    """
    return REQUEST.listen()


def take_back() -> None:
    """Install the handlers again, if ``stop_on_signals`` was called before and this is the main thread."""
    if REQUEST.listening and threading.current_thread() is threading.main_thread():
        REQUEST.listen()


def ended_by_pipe(run: Callable[[], int]) -> int:
    """What ``run`` returns; without a word ``EXIT_CLOSED``, if nobody reads what it prints any more."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        closed = [number for number in (_STDOUT, _STDERR) if has_no_reader(number)]
        if not closed:
            raise
        for number in closed:
            # Python writes what it holds when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return EXIT_CLOSED


def has_no_reader(number: int = _STDOUT) -> bool:
    """Whether an open stream is a pipe that the other side has closed."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _end(number: int) -> None:
    """End the process, without Python's streams: a thread that writes to an unread pipe holds the stream's lock for ever."""
    with contextlib.suppress(OSError, ValueError):
        if select.select((), (_STDERR,), (), 0)[1]:
            os.write(_STDERR, b"stopped\n")
    os._exit(128 + number)
