"""What the page of a running stream shows: its state as JSON (``docs/page.md`` has the fields), read once a second, and its history.

Promises: whatever comes from upstream, names and DDL texts, is a string in it and nothing else. Without ``show_row_data`` it has no value of a row, nor of a
DDL. ``state`` answers at once, whatever the batch, Spark or the target does: it shows what was read last, and when that was. Nothing is changed
from the page. The batch's thread holds the lock here for no longer than it counts.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import PeriodicTask
from pyspark_tidb_binlog.conf.version import VERSION
from pyspark_tidb_binlog.jobs.stream.page_history import PageHistory
from pyspark_tidb_binlog.jobs.stream.report import Progress, facts_of, one_ddl
from pyspark_tidb_binlog.schemas.alarms import raised
from pyspark_tidb_binlog.schemas.events import Delivery, physical_ms
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.redaction import ddl_without_values, words_without_values
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchReport, DdlNote
from pyspark_tidb_binlog.sinks.sink import KeptTable

LOOK_SECONDS = 1.0
_DDLS, _FINDINGS = 50, 20
_WATCHED_SECONDS = 5.0
"""Somebody who has asked within this time has the page open."""
_FAREWELL_SECONDS = 2.0
"""For how long an end waits until an open page has read why."""
_log = logging.getLogger(__name__)
LAYOUT = 1
"""``version`` of the JSON: fields may be added; another number has other fields."""
_MOST_TABLES, _MOST_KEPT = 12, 200
_WORDS = 1_000
"""Characters of a text from outside."""
_STAGES = {"read": "pair", "history": "plan", "plan": "plan", "apply": "apply", "ddl": "apply"}
_FROZEN = ("skipped", "quarantined")


@dataclass(frozen=True, slots=True)
class SeenDdl:
    """A DDL of the timeline."""

    at: float
    """When its fate was known."""
    ms: int
    """When it was committed upstream."""
    database: str
    """Where it was executed upstream: its text may name none."""
    text: str
    fate: str
    words: str
    remedy: str
    """What to do; empty: nothing."""


@dataclass(frozen=True, slots=True)
class SeenFinding:
    """A finding."""

    at: float
    """When the batch was in the target."""
    words: str


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What does not change while a stream runs."""

    drainer: str
    target: str
    kind: str
    """``db-type``."""
    delivery: Delivery
    show_row_data: bool


def seen_ddl(note: DdlNote, now: float, show_row_data: bool) -> SeenDdl:
    """A DDL as the timeline has it."""
    remedy = ""
    if note.fate == REFUSED:
        remedy = "The stream has ended. Mend what the target's message names, or choose one of the ways in errors/ddl, and start again."
    elif note.fate in _FROZEN:
        remedy = "The table is frozen: rows go on with the columns that both sides have. Alter the target's table by hand; errors/ddl says how to end it."
    words = _about(note.words, note, show_row_data)[:_WORDS]
    return SeenDdl(now, physical_ms(note.commit_ts), note.database, _shown(note, show_row_data), note.fate, words, remedy)


def seen_finding(finding: Finding, now: float, ddls: Iterable[DdlNote], show_row_data: bool) -> SeenFinding:
    """A finding; ``ddls``: those of its batch, whose values are not to be shown with it."""
    words = finding.words
    for ddl in ddls:
        if finding.kind is FindingKind.DDL and ddl.commit_ts == finding.commit_ts:
            words = _about(words, ddl, show_row_data)
    return SeenFinding(now, in_words(replace(finding, words=words), show_row_data)[:_WORDS])


def _shown(ddl: DdlNote, show_row_data: bool) -> str:
    # The batch waits meanwhile, so no more is looked through than is shown. A string that is cut off is hidden to its end.
    return one_ddl(ddl.query if show_row_data else ddl_without_values(ddl.query[: 2 * _WORDS]))


def _about(words: str, ddl: DdlNote, show_row_data: bool) -> str:
    """``words`` about a DDL, with its text shortened: the reason comes behind it."""
    if not words:
        return ""
    words = words.replace(ddl.query, _shown(ddl, show_row_data))
    return words if show_row_data else words_without_values(words, ddl.query)


def state_of(
    facts: PageFacts,
    progress: Progress,
    history: PageHistory,
    seen: tuple[Iterable[SeenDdl], Iterable[SeenFinding]],
    kept: Sequence[KeptTable],
    now: float,
) -> dict[str, Any]:
    """Everything but the figures over time; ``now``: when ``progress`` was read."""
    rows, transactions = history.rates()
    ddls, findings = list(seen[0])[::-1], list(seen[1])[::-1]
    known = replace(facts_of(progress), newest_finding=findings[0].words if findings else "")
    return {
        "version": LAYOUT,
        "release": VERSION,
        "drainer": facts.drainer,
        "began": history.began,
        "seen": now,
        "state": progress.state,
        "target": {"name": facts.target, "kind": facts.kind},
        "delivery": str(facts.delivery),
        "lag_seconds": round(progress.lag_seconds, 3) if progress.resolved_ts else None,
        "checkpoint": {"ts": str(progress.resolved_ts), "ms": physical_ms(progress.resolved_ts)},
        "rates": {"rows": round(rows, 1), "transactions": round(transactions, 1)},
        "counts": {name: getattr(progress, name) for name in ("row_events", "transactions", "ddls", "batches", "findings", "fakes_sent")},
        "hold": _hold(facts, progress, now),
        "stalled": progress.stalled[:_WORDS],
        "bootstrap": progress.bootstrap,
        "unrecorded": progress.unrecorded[:_WORDS],
        "pumps": [
            {
                "name": pump.name,
                "state": pump.state,
                "lag_seconds": round(pump.lag_seconds, 3) if pump.read_upto else None,
                "ms": physical_ms(pump.read_upto),
                "trouble": pump.trouble[:_WORDS],
            }
            for pump in progress.pumps
        ],
        "tables": [asdict(table) for table in history.busiest(now, _MOST_TABLES)],
        "ddls": [asdict(ddl) for ddl in ddls],
        "findings": [asdict(finding) for finding in findings],
        "alarms": [one.to_dict() | {"what": one.what[:_WORDS]} for one in sorted(raised(known), key=lambda one: one.alarm.severity)],
        "verified": asdict(progress.verified) if progress.verified is not None else None,
        "kept": [
            {
                "name": table.name,
                "bytes": table.bytes,
                "ms": physical_ms(table.merged_ts),
                "state": table.state,
                "why": (table.why if facts.show_row_data or not table.why else table.why.partition(": ")[0])[:_WORDS],
            }
            for table in sorted(kept, key=lambda table: (not table.why, -(table.bytes or 0), table.name))[:_MOST_KEPT]
        ],
        "kept_tables": len(kept),
    }


def _hold(facts: PageFacts, progress: Progress, now: float) -> dict[str, Any]:
    stage = _STAGES.get(progress.held_stage, progress.held_stage)
    if progress.held_stage == "read" and (progress.held_pump or facts.delivery is Delivery.SORTED):
        stage = "source"
    return {
        "stage": stage,
        "ddl": progress.held_stage == "ddl",
        "pump": progress.held_pump,
        "words": progress.holder[:_WORDS],
        "since": now - progress.held_seconds,
        "doing": progress.at_work,
        "starting": progress.starting,
    }


class LivePage:
    """The page's state of one stream."""

    def __init__(
        self,
        facts: PageFacts,
        read: Callable[[], Progress],
        kept: Callable[[], Sequence[KeptTable]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``read`` and ``kept`` are called once a second, from a thread of the page."""
        self._facts, self._read, self._kept, self._clock = facts, read, kept, clock
        self._lock = threading.Lock()
        self._history = PageHistory(clock())
        self._ddls: deque[SeenDdl] = deque(maxlen=_DDLS)
        self._notes: list[DdlNote] = []
        """All of the batch that is being applied, with their values."""
        self._findings: deque[SeenFinding] = deque(maxlen=_FINDINGS)
        self._asked_at = 0.0
        self._ended = ""
        self._end_was_read = threading.Event()
        """Whether the end was shown to somebody."""
        self._shown: dict[str, Any] = {}
        self._looking: PeriodicTask | None = None

    def start(self) -> None:
        """Begin to look."""
        self.look()
        self._looking = PeriodicTask("page", LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Read the state of this moment."""
        progress, kept, now = self._read(), self._kept(), self._clock()
        with self._lock:
            lag = progress.lag_seconds if progress.resolved_ts else None
            self._history.look(now, lag, progress.row_events, progress.transactions)
            self._shown = state_of(self._facts, progress, self._history, (self._ddls, self._findings), kept, now)

    def take(self, report: BatchReport) -> None:
        """A batch is in the target."""
        now = self._clock()
        with self._lock:
            self._history.count(now, report.tables)
            self._findings += (seen_finding(f, now, self._notes, self._facts.show_row_data) for f in report.findings[-_FINDINGS:])
            self._notes = []

    def note_ddl(self, note: DdlNote) -> None:
        """A DDL was applied, skipped or refused."""
        seen = seen_ddl(note, self._clock(), self._facts.show_row_data)
        with self._lock:
            self._ddls.append(seen)
            self._notes.append(note)

    def state(self, after: int = 0) -> dict[str, Any]:
        """The JSON, with the figures behind ``after``, seconds since 1970."""
        now = self._clock()
        with self._lock:
            self._asked_at = now
            shown = self._shown | {"now": now, "ended": self._ended}
            shown |= {"seconds": self._history.seconds(after), "minutes": self._history.minutes(after)}
        if shown["ended"]:
            self._end_was_read.set()
        return shown

    def ends(self, why: str) -> None:
        """The stream has failed. If somebody has the page open, wait a moment until it has read that, with the newest DDLs."""
        with self._lock:
            refused = self._ddls and self._ddls[-1].fate == REFUSED
            self._ended = self._ddls[-1].words if refused else why
            self._shown |= {"ddls": [asdict(ddl) for ddl in reversed(self._ddls)]}
            watched = self._clock() - self._asked_at < _WATCHED_SECONDS
        if watched and not self._end_was_read.wait(_FAREWELL_SECONDS):
            _log.debug("nobody read the page's last state")

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.stop()
