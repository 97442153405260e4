"""What a job shows while it runs: one line of progress a second, and a summary at the end.

Promises: rendering is pure (``Progress`` in, text out); ``Reporter`` is the thin shell with the thread and the terminal.
On a terminal the line, or the lines that it takes, is redrawn in place; elsewhere every line is one JSON object, for machines and logs.
"""

import json
import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, TextIO

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.schemas.errors import Stopped
from pyspark_tidb_binlog.schemas.events import as_time

_CLEAR = "\x1b[J"
_MOST_LINES = 8
"""Of one progress: the cursor cannot go back to what has left the screen."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of the stream at one moment. Counts are since the start of this job."""

    resolved_ts: int = 0
    """Everything up to here is in the target; 0 = nothing yet."""
    lag_seconds: float = 0.0
    """Age of ``resolved_ts``."""
    rows_per_second: float = 0.0
    """Row events applied per second, over the last seconds."""
    batches: int = 0
    transactions: int = 0
    row_events: int = 0
    ddls: int = 0
    holding: str = ""
    """The stage or the Pump that holds resolved_ts back, in words; empty = nothing does."""
    findings: int = 0
    """Number of findings: rows and values that do not match, DDLs not fully applied, lost binlogs."""
    newest_findings: tuple[str, ...] = ()
    """The newest of them as text."""
    state: str = NodeState.ONLINE.value
    """The node's state, as it is registered: ``online``, ``pausing``, ``paused``, ``closing``."""
    fakes_sent: int = 0
    """Fake binlogs sent to idle Pumps, to wake them (``spark.wake-idle-pumps``)."""
    bootstrap: str = ""
    """How far tables are copied before the stream begins (``--bootstrap``), in words; empty = none are."""
    unrecorded: str = ""
    """Why the newest batches are not in the Delta tables, in words; empty = they are, or will be in a moment."""

    def __str__(self) -> str:
        """One line."""
        return render_line(self)


def held_by(reported: Mapping[str, Any]) -> str:
    """What holds resolved_ts back and since when, from what the source reports of its Pumps; empty when it reports nothing.

    ``reported``: ``{"held_by": Pump, "resolved": time, ...}``, or before the Pumps have answered
    ``{"unreachable": {Pump: why}, "resolved_ts": R}`` or ``{"registry": why, "resolved_ts": R}``.
    """
    since = reported.get("resolved") or (as_time(reported["resolved_ts"]) if reported.get("resolved_ts") else "")
    suffix = f" since {since}" if since else ""
    if reported.get("held_by"):
        why = (reported.get("unreachable") or {}).get(reported["held_by"], "")
        stage = f"{reported['holding']}, for " if reported.get("holding") else ""
        return f"{stage}Pump {reported['held_by']}{suffix}{f' ({why})' if why else ''}"
    if unreachable := reported.get("unreachable"):
        return f"Pump {', '.join(f'{pump} ({why})' for pump, why in sorted(unreachable.items()))}{suffix}"
    return f"the registry ({reported['registry']}){suffix}" if reported.get("registry") else ""


def render_line(progress: Progress, width: int = 0) -> str:
    """One line; where a terminal of ``width`` columns (0: unlimited) is too narrow for it, what does not fit is below."""
    if progress.bootstrap:
        return _wrapped(progress.bootstrap, width)
    at = as_time(progress.resolved_ts) if progress.resolved_ts else "nothing yet"
    parts = [
        f"lag {_seconds(progress.lag_seconds)}" if progress.resolved_ts else "lag -",
        f"{progress.rows_per_second:,.0f} rows/s",
        f"resolved {at}",
        f"{progress.row_events:,} rows",
    ]
    if progress.ddls:
        parts.append(f"{progress.ddls:,} DDL")
    if progress.findings:
        parts.append(f"{progress.findings:,} FINDINGS")
    if progress.holding:
        parts.append(f"held by {progress.holding}")
    return _wrapped(" | ".join(parts), width)


def _wrapped(line: str, width: int) -> str:
    if not width or len(line) < width:
        return line
    # one column less than there are: a full one moves some terminals to the next line
    return textwrap.fill(line, width - 1, subsequent_indent="  ", break_on_hyphens=False, max_lines=_MOST_LINES, placeholder=" …")


def as_json(progress: Progress) -> dict[str, Any]:
    """The same as a JSON object; ``resolved_time`` is ``resolved_ts`` as UTC text."""
    return asdict(progress) | {"resolved_time": as_time(progress.resolved_ts) if progress.resolved_ts else None}


def render_json(progress: Progress) -> str:
    """The same as one line of JSON."""
    return json.dumps(as_json(progress), ensure_ascii=False)


def render_summary(progress: Progress, seconds: float) -> str:
    """What was replicated in ``seconds``, and the newest findings."""
    rate = progress.row_events / seconds if seconds > 0 else 0.0
    lines = [
        f"{progress.transactions:,} transactions, {progress.row_events:,} row events and {progress.ddls:,} DDLs "
        f"in {progress.batches:,} batches, {_seconds(seconds)} ({rate:,.0f} rows/s)",
        f"target is at {as_time(progress.resolved_ts)} UTC (TSO {progress.resolved_ts})"
        if progress.resolved_ts
        else "target is unchanged: no batch was applied",
    ]
    if progress.findings:
        lines.append(f"{progress.findings:,} findings (Delta table `findings`), the newest:")
        lines.extend(f"  - {text}" for text in progress.newest_findings)
    return "\n".join(lines)


class Reporter:
    """Prints ``read()`` once per ``interval`` from its own thread, for the duration of the ``with`` block.

    ``read`` is called from that thread; it must be quick and must not raise.
    """

    def __init__(self, read: Callable[[], Progress], out: TextIO, interval: float = 1.0) -> None:
        """``out`` decides the format: a terminal gets a line that is redrawn, anything else JSON lines."""
        self._read = read
        self._out = out
        self._interval = interval
        self._terminal = out.isatty()
        self._below = 0
        """How many lines the progress on the terminal has below its first."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print a permanent line above the progress line."""
        with self._lock:
            if self._terminal:
                self._renew(f"{text}\n")
            else:
                self._write(json.dumps({"message": text}, ensure_ascii=False) + "\n")

    def finish(self) -> Progress:
        """Stop the line and print the summary; the last ``Progress`` is returned. A second call prints nothing."""
        last = self._read()
        if not self._stop.is_set():
            self._close()
            seconds = time.monotonic() - self._started
            if self._terminal:
                self._renew(f"{render_summary(last, seconds)}\n")
            else:
                self._write(json.dumps({"summary": asdict(last) | {"seconds": round(seconds, 3)}}, ensure_ascii=False) + "\n")
        return last

    def __enter__(self) -> Self:
        """Start the line."""
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the line; without an error, print the summary unless ``finish`` did. ``Stopped`` does not count as an error."""
        if kind is None or issubclass(kind, Stopped):
            self.finish()
        elif not self._stop.is_set():
            self._close()
            if self._terminal:
                self._renew("")

    def _close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            progress = self._read()
            with self._lock:
                if self._terminal:
                    line = render_line(progress, shutil.get_terminal_size().columns)
                    self._renew(line)
                    self._below = line.count("\n")
                else:
                    self._write(render_json(progress) + "\n")

    def _renew(self, text: str) -> None:
        """Write ``text`` in the place of the progress that is shown."""
        up = f"\x1b[{self._below}A" if self._below else ""
        self._write(f"\r{up}{_CLEAR}{text}")
        self._below = 0

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"
