"""Prints the progress of a job while it runs, in the form that ``--progress`` asks for, and a summary at the end.

    auto   on a terminal the panel (``panel.py``) where the job has one, else the line; without a terminal, lines
    line   on a terminal one line, redrawn in place; elsewhere lines of text
    json   one JSON object a line: ``{"message": text}``, a ``Progress``, and at last ``{"summary": Progress and "seconds"}``
    none   no progress, no messages and no summary

Lines that are not redrawn go out every ``EVERY_SECONDS``, and at once when the state changes; those of JSON with each change of a count, too.

Promises: messages appear whole, above the redrawn part; so does what other code prints to the same terminal through Python.
"""

import argparse
import contextlib
import enum
import io
import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Self, TextIO

from pyspark_tidb_binlog.jobs.entry.signals import REQUEST
from pyspark_tidb_binlog.jobs.stream.report import Progress, as_json, plain, render_line, render_summary
from pyspark_tidb_binlog.schemas.errors import Stopped

EVERY_SECONDS = 30.0
_CLEAR = "\x1b[J"
_CLEAR_ALL = "\x1b[H\x1b[2J"
_KEPT = 50
"""Lines said that are printed again when the terminal gets another width."""
_DUMB = frozenset({"", "dumb", "unknown"})

Frame = Callable[[int, int], str]
"""Makes what a terminal of so many columns and lines shows; without a line end behind the last line."""


class ProgressForm(enum.StrEnum):
    """What is printed."""

    PANEL = "panel"
    LINE = "line"
    LINES = "lines"
    JSON = "json"
    NONE = "none"


def form_of(asked: str, out: TextIO, environ: Mapping[str, str], *, panel: bool) -> ProgressForm:
    """The form for ``--progress`` = ``asked``; ``panel``: whether ``auto`` shows one on a terminal."""
    if asked in ("json", "none"):
        return ProgressForm(asked)
    if not draws(out, environ):
        return ProgressForm.LINES
    return ProgressForm.PANEL if panel and asked == "auto" else ProgressForm.LINE


def draws(out: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether ``out`` is a terminal on which something can be redrawn."""
    return out.isatty() and environ.get("TERM", "") not in _DUMB


def reporter_of(read: Callable[[], Progress], given: argparse.Namespace, title: str, *, panel: bool = True) -> "Reporter":
    """The reporter of a job with the option of ``add_progress``, on stdout; ``title``: of its panel, such as ``demo``."""
    return Reporter(read, sys.stdout, form_of(given.progress, sys.stdout, os.environ, panel=panel), title)


def newsworthy(progress: Progress) -> tuple[object, ...]:
    """The facts whose change prints a line: steps of the start, findings, states, Pumps, and services that do not answer."""
    pumps = tuple((pump.name, pump.state, bool(pump.trouble)) for pump in progress.pumps)
    start = "" if progress.batches else (progress.doing, progress.batch_rows)
    return (start, progress.findings, progress.state, bool(progress.bootstrap), progress.stalled, bool(progress.unrecorded), pumps)


class InPlace:
    """Something that is redrawn on a terminal, and lines above it that stay. Not thread-safe.

    The cursor is on the line below: the ``^C`` that a terminal writes there is removed with the rest.
    """

    def __init__(self, out: TextIO, size: Callable[[], os.terminal_size] = shutil.get_terminal_size) -> None:
        self._out = out
        self._size = size
        self._frame = ""
        self._columns = 0
        """The width of the terminal when the frame was drawn."""
        self._said: deque[str] = deque(maxlen=_KEPT)

    def show(self, frame: Frame) -> None:
        """Draw ``frame`` in the place of the one before."""
        columns, lines = self._size()
        back = self._back(columns)
        self._frame, self._columns = frame(columns, lines) + "\n", columns
        self._write(back + self._frame)

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self._write(f"{self._back(self._size().columns)}{text}\n{self._frame}")
        self._said.append(text)

    def clear(self) -> None:
        """Remove what is drawn."""
        self._write(self._back(self._size().columns))
        self._frame = ""

    def keep(self) -> None:
        """What is drawn stays, as it is."""
        self._frame = ""

    def _back(self, columns: int) -> str:
        """To the beginning of what is drawn, which is cleared. With another width nobody knows where the terminal has put it: all is printed anew."""
        if self._frame and columns != self._columns:
            return _CLEAR_ALL + "".join(f"{text}\n" for text in self._said)
        below = self._frame.count("\n")
        up = f"\x1b[{below}A" if below else ""
        return f"\r{up}{_CLEAR}"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class NoProgress:
    """``none``; the other forms do more."""

    def show(self, progress: Progress) -> None:
        """Show it, if that is due."""

    def say(self, text: str) -> None:
        """Print a message that stays."""

    def end(self, last: Progress | None, seconds: float) -> None:
        """Show nothing any more, but the summary; ``last`` None: without it."""


class _Redrawn(NoProgress):
    """The line or the panel on a terminal."""

    def __init__(self, out: TextIO, frame_of: Callable[[Progress], Frame]) -> None:
        self._place = InPlace(out)
        self._frame_of = frame_of

    def show(self, progress: Progress) -> None:
        self._place.show(self._frame_of(progress))

    def say(self, text: str) -> None:
        self._place.say(_plain_lines(text))

    def end(self, last: Progress | None, seconds: float) -> None:
        self._place.clear()
        if last is not None:
            self._place.say(render_summary(last, seconds))


class Lines(NoProgress):
    """Lines that stay, as text or JSON."""

    def __init__(self, out: TextIO, *, in_json: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._in_json = in_json
        self._clock = clock
        self._news: tuple[object, ...] = ()
        self._printed_at = 0.0

    def show(self, progress: Progress) -> None:
        """Print it, if that is due."""
        news, now = newsworthy(progress), self._clock()
        if self._in_json:
            news = (*news, progress.row_events, progress.ddls, progress.bootstrap)
        if news == self._news and now - self._printed_at < EVERY_SECONDS:
            return
        self._news, self._printed_at = news, now
        self._write(json.dumps(as_json(progress), ensure_ascii=False) if self._in_json else render_line(progress))

    def say(self, text: str) -> None:
        """Print a message."""
        self._write(json.dumps({"message": text}, ensure_ascii=False) if self._in_json else _plain_lines(text))

    def end(self, last: Progress | None, seconds: float) -> None:
        """Print the summary."""
        if last is not None and self._in_json:
            self._write(json.dumps({"summary": asdict(last) | {"seconds": round(seconds, 3)}}, ensure_ascii=False))
        elif last is not None:
            self._write(render_summary(last, seconds))

    def _write(self, line: str) -> None:
        # Half a character, which no stream takes, is spelled as JSON spells it.
        self._out.write(f"{line.encode(errors='backslashreplace').decode()}\n")
        self._out.flush()


class Reporter:
    """Shows ``read()`` once per ``interval`` from its own thread, for the duration of the ``with`` block.

    ``read`` is called from that thread; it must be quick and must not raise.
    """

    def __init__(
        self, read: Callable[[], Progress], out: TextIO, form: ProgressForm = ProgressForm.LINES, title: str = "", interval: float = 1.0
    ) -> None:
        """``title``: of the panel."""
        self._read = read
        self._out = out
        self._form = form
        self._view = _view_of(form, out, title)
        self._interval = interval
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._started = time.monotonic()
        self._others = contextlib.ExitStack()

    def say(self, text: str) -> None:
        """Print a permanent message."""
        with self._lock:
            self._view.say(text)

    def conclude(self, text: str) -> None:
        """Print the outcome of the job, such as of a comparison: a message that ``none`` prints, too."""
        if self._form is ProgressForm.NONE:
            print(text, file=self._out, flush=True)
        else:
            self.say(text)

    def finish(self) -> Progress:
        """Stop showing and print the summary; the last ``Progress`` is returned. A second call prints nothing."""
        last = self._read()
        self._end(last)
        return last

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._form in (ProgressForm.PANEL, ProgressForm.LINE):
            for name in ("stdout", "stderr"):
                self._redirect(name)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop showing; without an error, print the summary unless ``finish`` did. ``Stopped`` does not count as an error."""
        self._end(self._read() if kind is None or issubclass(kind, Stopped) else None)

    def _end(self, last: Progress | None) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._others.close()
        with self._lock:
            self._view.end(last, time.monotonic() - self._started)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            progress = self._read()
            try:
                with self._lock:
                    self._view.show(progress)
            except BrokenPipeError:
                # Nobody reads it any more: as for other programs, this ends the job.
                REQUEST.asked.set()
                return

    def _redirect(self, name: str) -> None:
        """What others print to the same terminal appears above what is redrawn."""
        stream: TextIO = getattr(sys, name)
        if stream.isatty():
            above = _Above(self.say, stream)
            setattr(sys, name, above)
            self._others.callback(above.end)
            self._others.callback(setattr, sys, name, stream)


class _Above(io.TextIOBase):
    """A stream whose whole lines are said; it is otherwise ``stream``."""

    def __init__(self, say: Callable[[str], None], stream: TextIO) -> None:
        self._say = say
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        *whole, self._begun = f"{self._begun}{text}".split("\n")
        if whole:
            self._say("\n".join(whole))
        return len(text)

    def end(self) -> None:
        """Say the line that was begun."""
        if self._begun:
            self.write("\n")

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def _view_of(form: ProgressForm, out: TextIO, title: str) -> NoProgress:
    match form:
        case ProgressForm.PANEL:
            # Not at the top: most starts do not need the library.
            from pyspark_tidb_binlog.jobs.stream.panel import LivePanel

            return _Redrawn(out, LivePanel(title).frame_of)
        case ProgressForm.LINE:
            return _Redrawn(out, lambda progress: lambda columns, lines: render_line(progress, columns))
        case ProgressForm.NONE:
            return NoProgress()
    return Lines(out, in_json=form is ProgressForm.JSON)


def _plain_lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))
