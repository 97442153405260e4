"""Takes what a comparison finds, event by event: shows it, repairs it, records it."""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from pyspark_tidb_binlog.jobs.check.table_repairs import TableRepairs
from pyspark_tidb_binlog.jobs.check.verified_view import VerifiedView, total_of
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED
from pyspark_tidb_binlog.jobs.stream.targets import words_for
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally
from pyspark_tidb_binlog.sinks.verify.verification import Begun, RoundDone, VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import ALL, VerificationTable

_NOTHING = "no table was compared: none is replicated, or --tables names none (write DB.TABLE, also with * and ?)"
_STOPPED = "ended before all tables were seen: the same command goes on here"


def patterns_of(tables: str) -> list[str]:
    """The patterns of ``--tables``."""
    return [pattern.strip() for pattern in tables.split(",") if pattern.strip()]


def record_of(config: DrainerConfig, tables: str, flavour: Flavour, more: str = "") -> VerificationTable:
    """The record of a run with these settings and ``--tables``. ``more``: what else tells it from other runs."""
    compares = f"{tables or ALL} of {words_for(config).where}{more}"
    return VerificationTable(config.verification_dir, days_or_duration(config.delta_retention), flavour, compares)


@dataclass(slots=True)
class VerifyRun:
    """One run of a command."""

    view: VerifiedView
    record: VerificationTable | None
    """None: nothing is recorded."""
    explained: Callable[[VerifiedTable], Sequence[str]]
    """What may explain that a table differs, or what to do."""
    repairs: TableRepairs | None = None
    """None: nothing is repaired."""
    tables: list[VerifiedTable] = field(default_factory=list)
    """Those that were seen."""
    repaired: int = 0
    """Rows."""
    well: bool = True
    """Nothing differs, or what differed is repaired."""

    def begin(self, *, afresh: bool = False) -> Begun:
        """Continue the last run, or begin one."""
        begun = self.record.begin(afresh=afresh) if self.record is not None else Begun()
        if begun.run:
            self.view.say(
                f"goes on where the run of {begun.run[:19].replace('T', ' ')} UTC ended; {len(begun.tables)} tables were equal (--afresh begins anew)"
            )
        if begun.unreadable:
            self.view.say(f"begins anew, because {begun.unreadable}")
        self.tables = [VerifiedTable(name, ts, (), Tally(rows=rows)) for name, (ts, rows) in begun.tables.items()]
        return begun

    def take(self, found: RoundDone | VerifiedTable) -> None:
        """The next event."""
        if isinstance(found, RoundDone):
            self.view.round(found)
            if self.record is not None:
                self.record.note_part(found)
            return
        words = self.explained(found)
        result = self.repairs.repair(found) if self.repairs is not None and found.tally is not None else None
        repaired = result is not None and result.whole
        self.repaired += result.rows if result is not None else 0
        self.view.table(found, words, result)
        if self.record is not None:
            self.record.note_table(found, words, repaired=repaired)
        self.well &= repaired or not found.differs

    def to_its_end(self, events: Iterable[RoundDone | VerifiedTable], stop: threading.Event) -> int:
        """Take all events, or those until ``stop``; the command's exit code."""
        whole = False
        try:
            for found in events:
                self.take(found)
                if isinstance(found, VerifiedTable):
                    self.tables.append(found)
                if stop.is_set():
                    break
            else:
                whole = True
        finally:
            if self.record is not None:
                self.record.end(whole=whole)
        if self.record is not None and self.record.trouble:
            print(
                f"not recorded in {self.record.uri}, so that ctl doctor and the alarm do not know of it: {self.record.trouble}",
                file=sys.stderr,
            )
        if not whole:
            self.view.say(_STOPPED)
            return EXIT_FAILED
        if not self.tables:
            self.view.say(_NOTHING)
            return EXIT_FAILED
        self.view.end(total_of(self.tables, self.repaired))
        return 0 if self.well else EXIT_FAILED
