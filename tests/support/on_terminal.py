"""A program whose output is a terminal of its own: what it prints, and the screen that a person then sees."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.pictures import screen_of

LINES = 40


class OnTerminal:
    """One run, killed at the end of the block if it still runs. It gets no input."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], cwd: Path, columns: int = 100) -> None:
        """``environ`` names the terminal in ``TERM``."""
        self.columns = columns
        self._ours, its = pty.openpty()
        self._resize(its)
        self._taken = bytearray()
        self._process = subprocess.Popen(
            command, env=dict(environ), cwd=cwd, stdin=subprocess.DEVNULL, stdout=its, stderr=its, start_new_session=True
        )
        os.close(its)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def output(self) -> str:
        """Everything that it has printed."""
        return bytes(self._taken).decode(errors="replace")

    @property
    def screen(self) -> list[str]:
        """What the terminal shows, had it always had its present width."""
        return screen_of(self.output, self.columns)

    def resize(self, columns: int) -> None:
        """Give the terminal another width."""
        self.columns = columns
        self._resize(self._ours)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self._process.pid, signal.SIGINT)

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        code = self._process.wait(seconds)
        self._reading.join(seconds)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reading.join(10)
        os.close(self._ours)

    def _resize(self, descriptor: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, self.columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._ours, 65536)
            except OSError:  # Linux' way to say that the other end is closed
                return
            if not read:
                return
            self._taken += read
