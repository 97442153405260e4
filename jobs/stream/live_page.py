"""What the page of a running stream asks for: the state, read once a second, and its history. Shell.

Promises: ``state`` answers at once, whatever the batch, Spark or the target does: it shows what was read last, and when that was. Nothing is changed
from the page. The batch's thread holds the lock here for no longer than it counts.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.periodic_task import PeriodicTask
from pyspark_tidb_binlog.jobs.stream.page_history import PageHistory
from pyspark_tidb_binlog.jobs.stream.page_state import PageFacts, SeenDdl, SeenFinding, seen_ddl, seen_finding, state_of
from pyspark_tidb_binlog.jobs.stream.report import Progress
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchReport, DdlNote
from pyspark_tidb_binlog.sinks.sink import KeptTable

LOOK_SECONDS = 1.0
_DDLS, _FINDINGS = 50, 20
_WATCHED_SECONDS = 5.0
"""Somebody who has asked within this time has the page open."""
_FAREWELL_SECONDS = 2.0
"""For how long an end waits until an open page has read why."""
_log = logging.getLogger(__name__)


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
        self._told = threading.Event()
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
            self._told.set()
        return shown

    def ends(self, why: str) -> None:
        """The stream has failed. If somebody has the page open, wait a moment until it has read that, with the newest DDLs."""
        with self._lock:
            refused = self._ddls and self._ddls[-1].fate == REFUSED
            self._ended = self._ddls[-1].words if refused else why
            self._shown |= {"ddls": [asdict(ddl) for ddl in reversed(self._ddls)]}
            watched = self._clock() - self._asked_at < _WATCHED_SECONDS
        if watched and not self._told.wait(_FAREWELL_SECONDS):
            _log.debug("nobody read the page's last state")

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.stop()
