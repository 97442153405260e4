"""The progress of a stream (``Progress``): as a line, as JSON, and as a summary at the end, and for the alarms. Pure.

``reporter.py`` prints the progress while a job runs; ``panel.py`` draws it. ``GET /progress`` and ``--progress json`` show every field of ``Progress``
under its name. Names are stable; a later version may add fields.
"""

import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.conf.units import duration_in_words
from pyspark_tidb_binlog.schemas.alarms import ONLINE, Facts, PumpFacts, Verified
from pyspark_tidb_binlog.schemas.events import as_time, physical_ms
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyProgress

_MOST_LINES = 8
"""The most lines of a progress: the cursor cannot return to lines that have left the screen."""
_BAR = 24
_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys or cannot receive: control characters, changes of the writing direction, halves of characters."""


@dataclass(frozen=True, slots=True)
class SeenPump:
    """One Pump, as the stream sees it."""

    name: str
    state: str = ""
    """The registered state: ``online``, ``pausing``, ``paused``, ``closing``, ``offline``; empty = not known: a fixed list of Pumps has no states."""
    read_upto: int = 0
    """The newest ts received from it; 0 = none yet."""
    lag_seconds: float = 0.0
    """Age of ``read_upto`` when the source reported it: while a batch is applied, the source reports nothing."""
    trouble: str = ""
    """Why the Pump is not reachable; empty = it is."""


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
    """The stage or the Pump for which resolved_ts waits, in words; empty = for none. In a healthy stream it changes all the time."""
    held_stage: str = ""
    """Where that is: ``read``, ``history``, ``plan``, ``apply`` or ``ddl`` of a batch; ``source`` between two batches; ``pair``: what is read and not released
    is as much as may be.
    """
    held_pump: str = ""
    """The Pump among it; empty = it is not a single Pump's."""
    findings: int = 0
    """Number of findings: rows and values that do not match, DDLs not fully applied, lost binlogs."""
    newest_findings: tuple[str, ...] = ()
    """The newest of them as text."""
    state: str = NodeState.ONLINE.value
    """The node's state, as it is registered: ``online``, ``pausing``, ``paused``, ``closing``."""
    fakes_sent: int = 0
    """Fake binlogs sent to idle Pumps, to wake them (``spark.wake-idle-pumps``)."""
    bootstrap: str = ""
    """The progress of the copy before the stream begins (``--bootstrap``), in words; empty = no copy runs."""
    unrecorded: str = ""
    """Why the newest batches are not in the Delta tables, in words; empty = they are there, or will be soon."""
    pumps: tuple[SeenPump, ...] = ()
    """Every Pump that the stream reads, by name."""
    last_ddl: str = ""
    """The text of the newest DDL that was applied or skipped, on one line; empty = none since the start."""
    copied: CopyProgress | None = None
    """The progress of the copy in numbers; None = no copy runs, or it is not known yet."""
    stalled: str = ""
    """Which services do not answer, in words: the target, Pumps, the registry, the DDL history; empty = none is known to be silent."""
    silent: tuple[str, ...] = ()
    """The TiDB servers that write no binlogs, and since when, in words; empty = none is known."""
    still_seconds: float = 0.0
    """Since when no batch was applied. Idle Pumps promise something every few seconds, so it is small while nothing is held back."""
    held_seconds: float = 0.0
    """For how long ``holding`` has held resolved_ts at the same place; 0 = not for so long (3 s; a silent Pump 10 s) that anything is held back."""
    doing: str = ""
    """The step of the start, or of the batch under way, in words; empty = the stream waits for binlogs."""
    batch_rows: int = 0
    """Row events that the batch under way has read; 0 = not known yet."""
    batch_written: int = 0
    """Rows that it has written. Less than its row events if a row changes more than once."""
    verified: Verified | None = None
    """What ``verify`` has found; None = it has not run, or it is not known yet."""

    @property
    def holder(self) -> str:
        """What holds resolved_ts back; empty = nothing does."""
        return self.holding if self.held_seconds or self.stalled else ""

    @property
    def starting(self) -> bool:
        """Whether the first batch is still being applied, and waits for nobody."""
        return bool(self.at_work) and not (self.batches or self.stalled)

    @property
    def at_work(self) -> str:
        """``doing``, with the rows of the batch; empty, too, while it waits for somebody else."""
        if self.holding not in ("", self.held_stage):
            return ""
        return f"{self.doing} ({self.batch_rows:,} rows read, {self.batch_written:,} written)" if self.batch_rows else self.doing

    @property
    def held(self) -> str:
        """The holder, for how long, and what it does."""
        seconds = f" for {duration_in_words(self.held_seconds)}" if self.held_seconds else ""
        return self.holder and f"{self.holder}{seconds}" + (f": {self.at_work}" if self.at_work else "")

    def __str__(self) -> str:
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


def unanswered(reported: Mapping[str, Any]) -> str:
    """The Pumps or the registry that do not answer the source, without the reasons, which change; empty: all do."""
    away = reported.get("unreachable")
    return f"Pump {', '.join(sorted(away))}" if away else "the registry" if reported.get("registry") else ""


def pumps_of(reported: Mapping[str, Any], now: float, resolved_ts: int = 0) -> tuple[SeenPump, ...]:
    """The Pumps, from what the source reports of them between two batches; ``now``: seconds since the epoch. ``resolved_ts``: every Pump was read up to here."""
    promises, states, away = (reported.get(name) or {} for name in ("promises", "states", "unreachable"))
    promises = {pump: max(promise, resolved_ts) for pump, promise in promises.items()}
    names, reached = sorted({*promises, *away}), reported.get("reached") or {}
    ages = {name: min(age_of(promises.get(name, 0), now), reached.get(name, math.inf)) for name in names}
    return tuple(SeenPump(n, states.get(n, ""), promises.get(n, 0), ages[n], away.get(n, "")) for n in names)


def age_of(ts: int, now: float) -> float:
    """Seconds from ``ts`` to ``now``; 0.0 for no ts."""
    return max(0.0, now - physical_ms(ts) / 1000) if ts else 0.0


def plain(text: str) -> str:
    """``text`` on one line, with nothing in it that a terminal obeys."""
    return _UNSHOWABLE.sub(lambda found: " " if found[0] in "\t\n\r" else f"\\x{ord(found[0]):02x}", text)


def one_ddl(sql: str, most: int = 500) -> str:
    """A DDL's text on one line, shortened to ``most`` characters."""
    flat = " ".join(sql.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def bar(share: float) -> str:
    """How much is done, from 0 to 1, as a bar."""
    filled = int(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


def render_line(progress: Progress, width: int = 0) -> str:
    """One line. If a terminal of ``width`` columns (0: unlimited) is too narrow, the rest is on further lines."""
    if progress.bootstrap:
        return _wrapped(plain(progress.bootstrap), width)
    at = as_time(progress.resolved_ts) if progress.resolved_ts else "nothing yet"
    parts = [
        f"lag {duration_in_words(progress.lag_seconds)}" if progress.resolved_ts else "lag -",
        f"{progress.rows_per_second:,.0f} rows/s",
        f"resolved {at}",
        f"{progress.row_events:,} rows",
    ]
    if progress.ddls:
        parts.append(f"{progress.ddls:,} DDL")
    if progress.findings:
        parts.append(f"{progress.findings:,} FINDINGS")
    if progress.starting:
        parts.append(progress.at_work)
    elif progress.holder:
        parts.append(f"held by {plain(progress.held)}")
    return _wrapped(" | ".join(parts), width)


def _wrapped(line: str, width: int) -> str:
    if not width or len(line) < width:
        return line
    # one column less than there are: a full one moves some terminals to the next line
    return textwrap.fill(line, width - 1, subsequent_indent="  ", break_on_hyphens=False, max_lines=_MOST_LINES, placeholder=" …")


def as_json(progress: Progress) -> dict[str, Any]:
    """The same as a JSON object; ``resolved_time`` is ``resolved_ts`` as UTC text."""
    return asdict(progress) | {"resolved_time": as_time(progress.resolved_ts) if progress.resolved_ts else None}


def progress_in(said: Mapping[str, Any]) -> Progress:
    """The progress in the output of ``as_json``, also of another version: a missing field gets its default, an unknown field is ignored."""
    given = _known(Progress, said)
    given |= {name: tuple(given.get(name, ())) for name in ("newest_findings", "silent")}
    given["pumps"] = tuple(SeenPump(**_known(SeenPump, pump)) for pump in given.get("pumps", ()))
    if given.get("copied"):
        given["copied"] = CopyProgress(**_known(CopyProgress, given["copied"]))
    if given.get("verified"):
        found = _known(Verified, given["verified"])
        given["verified"] = Verified(**found | {"differing": tuple(found["differing"])})
    return Progress(**given)


def _known(kind: type[Progress] | type[SeenPump] | type[CopyProgress] | type[Verified], said: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: said[field.name] for field in fields(kind) if field.name in said}


def render_summary(progress: Progress, seconds: float) -> str:
    """What was replicated in ``seconds``, and the newest findings."""
    rate = progress.row_events / seconds if seconds > 0 else 0.0
    lines = [
        f"{progress.transactions:,} transactions, {progress.row_events:,} row events and {progress.ddls:,} DDLs "
        f"in {progress.batches:,} batches, {duration_in_words(seconds)} ({rate:,.0f} rows/s)",
        f"target is at {as_time(progress.resolved_ts)} UTC (TSO {progress.resolved_ts})"
        if progress.resolved_ts
        else "target is unchanged: no batch was applied",
    ]
    if progress.findings:
        lines.append(f"{progress.findings:,} findings (Delta table `findings`), the newest:")
        lines.extend(f"  - {plain(text)}" for text in progress.newest_findings)
    return "\n".join(lines)


_BETWEEN = ("", "source", "pair")
"""``held_stage`` between two batches."""


def facts_of(progress: Progress) -> Facts:
    """The facts of a Drainer that answers. Others, such as rights and disks, are not in its progress."""
    begun = progress.resolved_ts > 0 and not progress.bootstrap
    asked = progress.state == ONLINE and progress.held_stage in _BETWEEN
    return Facts(
        drainer="",
        state=progress.state,
        copying=progress.bootstrap,
        lag_seconds=progress.lag_seconds if begun else None,
        still_seconds=progress.still_seconds,
        holding=progress.holder,
        waiting=progress.stalled,
        unrecorded=progress.unrecorded,
        silent=progress.silent,
        pumps=tuple(_pump(seen, asked=asked) for seen in progress.pumps) or None,
        findings=progress.findings,
        newest_finding=progress.newest_findings[-1] if progress.newest_findings else "",
        verified=progress.verified,
    )


def _pump(seen: SeenPump, *, asked: bool) -> PumpFacts:
    """``asked``: whether the source reports its Pumps now. A paused one does not, and while a batch is applied, what they have is that of its beginning."""
    return PumpFacts(seen.name, seen.state, seen.trouble, seen.lag_seconds if seen.read_upto and asked else None)
