"""One run of ``verify``, of ``lake verify`` or of the demo's comparison: takes what is found, event by event, shows it, repairs it, records it.

Promises: a table that another writer is known to change, by an open finding of kind ``rows``, is repaired only if the caller says that this writer is stopped. Without
a table ``findings`` that can be read here nothing is known of others.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TextIO

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import days_or_duration, duration_in_words
from pyspark_tidb_binlog.jobs.check.recorded_findings import open_findings
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED
from pyspark_tidb_binlog.jobs.stream.report import bar, plain
from pyspark_tidb_binlog.jobs.stream.reporter import InPlace, draws
from pyspark_tidb_binlog.jobs.stream.targets import words_for
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify.repair import RowDifference
from pyspark_tidb_binlog.sinks.verify.repairing import RepairedTable, Repairing
from pyspark_tidb_binlog.sinks.verify.table_comparison import MOST_LISTED, Tally
from pyspark_tidb_binlog.sinks.verify.verification import Begun, RoundDone, VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import ALL, VerificationTable

_NOTHING = "no table was compared: none is replicated, or --tables names none (write DB.TABLE, also with * and ?)"
_STOPPED = "ended before all tables were seen: the same command goes on here"


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What became of one table."""

    refused: str = ""
    """Why nothing of it is repaired."""
    done: RepairedTable | None = None
    whole: bool = False
    """The whole table is as upstream."""
    more: bool = False
    """Rows differ that are not listed."""

    @property
    def rows(self) -> int:
        """How many rows were repaired."""
        return sum(one.times for one in self.done.repaired) if self.done is not None else 0


@dataclass(frozen=True, slots=True)
class TableRepairer:
    """The repairs of one run of ``verify``."""

    config: DrainerConfig
    repairing: Repairing
    others_stopped: bool

    def repair(self, table: VerifiedTable) -> RepairResult:
        """Repair what is listed of a table that was compared."""
        assert table.tally is not None
        if words := self._refusal(table):
            return RepairResult(words)
        done = self.repairing.repair(table)
        more = table.tally.unlisted > 0
        return RepairResult(done=done, whole=not done.left and not more and all(one.by_intent for one in table.left_out), more=more)

    def _refusal(self, table: VerifiedTable) -> str:
        assert table.tally is not None
        if missing := [one.words for one in table.left_out if not one.by_intent]:
            return f"rows cannot be made right before the table is: {missing[0]}"
        if not table.tally.differing or self.others_stopped:
            return ""
        with contextlib.suppress(ConfigError):
            if rows := sum((row["kind"], row["table"]) == (FindingKind.ROWS, table.target) for row in open_findings(self.config)):
                return (
                    f"{rows} findings of kind rows say that something else writes to the table (ctl findings), and a repair would undo its work or be undone. "
                    "Stop it, then add --others-stopped"
                )
        return ""


print_at_once = partial(print, flush=True)
"""Also into a pipe."""


class VerifiedView(Protocol):
    """Shows one run."""

    def say(self, words: str) -> None:
        """Show a sentence about the run."""

    def round(self, found: RoundDone) -> None:
        """A part of a table was compared."""

    def table(self, found: VerifiedTable, words: Sequence[str], result: RepairResult | None = None) -> None:
        """A table was compared. ``words``: what may explain that it differs, or what to do. ``result``: of its repair."""

    def end(self, total: Mapping[str, int]) -> None:
        """All tables were seen."""


class TextView(VerifiedView):
    """Lines, and below them on a terminal how far it is."""

    def __init__(
        self,
        flavour: Flavour,
        about: Mapping[str, int],
        out: TextIO,
        write: Callable[[str], object] = print_at_once,
        *,
        with_sql: bool = False,
        most: int = MOST_LISTED,
    ) -> None:
        """``about``: about how many rows each table has. ``out``: gets the progress if it is a terminal. ``write``: gets the lines. ``with_sql``: with what
        repairs a row. ``most``: differences of a table that are shown.
        """
        self._flavour, self._about, self._with_sql, self._most, self._write = flavour, about, with_sql, most, write
        self._place = InPlace(out) if draws(out, os.environ) else None
        self._seen, self._rows = 0, 0
        self._since = time.monotonic()

    def say(self, words: str) -> None:
        """Write it above how far it is."""
        if self._place is not None:
            self._place.clear()
        self._write(words)

    def round(self, found: RoundDone) -> None:
        """Draw how far it is."""
        if self._place is not None:
            rate = (self._rows + found.tally.rows) / max(time.monotonic() - self._since, 0.001)
            frame = progress_line(found, self._about.get(found.name, 0), self._seen, len(self._about), rate)
            self._place.show(lambda columns, lines: frame[: columns - 1])

    def table(self, found: VerifiedTable, words: Sequence[str], result: RepairResult | None = None) -> None:
        """Write the table's lines."""
        self._seen += 1
        self._rows += found.tally.rows if found.tally else 0
        lines = table_lines(found, words, self._flavour, with_sql=self._with_sql, most=self._most)
        if result is not None and found.tally is not None and found.tally.differing:
            lines += repair_lines(result)
        self.say("\n".join(map(plain, lines)))

    def end(self, total: Mapping[str, int]) -> None:
        """Write the sums."""
        words = TOTAL + (DEFINITIONS if total["definitions"] else "") + (REPAIRED if total["repaired"] else "")
        self.say(words.format(**total))


class JsonView(VerifiedView):
    """A JSON object a line."""

    def __init__(self, flavour: Flavour) -> None:
        self._flavour = flavour

    def say(self, words: str) -> None:
        """Print an object with ``message``."""
        print_at_once(json.dumps({"message": words}))

    def round(self, found: RoundDone) -> None:
        """Print nothing: each table is one line."""

    def table(self, found: VerifiedTable, words: Sequence[str], result: RepairResult | None = None) -> None:
        """Print the table's object."""
        named = [(one.compared, {"why": one.words, "by_intent": one.by_intent, "sql": one.mend}) for one in found.left_out]
        left_out, structure = ([one for compared, one in named if compared is wanted] for wanted in (False, True))
        shown: dict[str, Any] = {"table": found.name, "commit_ts": found.ts, "compared": found.tally is not None, "not_compared": left_out}
        shown["structure"] = structure
        if (tally := found.tally) is not None:
            listed = [
                {"kind": d.kind.name.lower(), "key": d.key, "columns": d.changed, "times": d.times, "sql": d.sql(self._flavour)}
                for d in tally.listed
            ]
            shown |= {"rows": tally.rows, "equal": tally.equal, "differing": tally.differing, "differences": listed}
        if words:
            shown["explained"] = list(words)
        if result is not None and (done := result.done) is not None:
            left = [{"key": one.difference.key, "why": one.why} for one in done.left]
            shown |= {"repaired": result.rows, "right_already": done.right, "not_repaired": left}
        elif result is not None:
            shown |= {"repaired": 0, "refused": result.refused}
        print_at_once(json.dumps(shown))

    def end(self, total: Mapping[str, int]) -> None:
        """Print the sums as an object."""
        print_at_once(json.dumps(total))


TOTAL = "{tables} tables, {rows:,} rows: {equal:,} equal, {differing:,} differing; {not_compared} tables not compared"
DEFINITIONS, REPAIRED = "; {definitions} NOT AS THEY SHOULD BE", "; {repaired:,} rows repaired"


def total_of(tables: Sequence[VerifiedTable], repaired: int = 0) -> dict[str, int]:
    """The sums of all tables. ``definitions``: tables that are not as they should be. ``repaired``: rows. Pure."""
    tallies = [table.tally for table in tables if table.tally is not None]
    sums = {name: sum(getattr(tally, name) for tally in tallies) for name in ("rows", "equal", "differing")}
    definitions = sum(any(not one.by_intent for one in table.left_out) for table in tables)
    return {"tables": len(tallies), **sums, "not_compared": len(tables) - len(tallies), "definitions": definitions, "repaired": repaired}


def table_lines(found: VerifiedTable, words: Sequence[str], flavour: Flavour, *, with_sql: bool, most: int = MOST_LISTED) -> list[str]:
    """What is said of a table. Pure."""
    name, lines = found.name, list[str]()
    for one in found.left_out:
        what = f"{'' if one.by_intent else 'NOT AS IT SHOULD BE: '}{'' if one.compared else 'not compared: '}"
        lines += [f"{name}: {what}{one.words}", *([f"  {one.mend};"] if one.mend else [])]
    said = [f"  {one}" for one in words]
    if (tally := found.tally) is None:
        return lines + said
    exactly = f"{tally.differing - tally.unlisted:,} to " if tally.unlisted else ""
    differs = f"{exactly}{tally.differing:,} rows DIFFER" if tally.differing else "equal"
    rows = f"{name}: {tally.rows:,} rows at {found.ts} ({as_time(found.ts)}): {differs}"
    lines += [rows, *said] if tally.differing else [*said, rows]
    for difference in tally.listed[:most]:
        statements = difference.sql(flavour)
        lines.append(f"  -- {difference_line(difference)}")
        lines += [f"  {statement};" for statement in statements if with_sql] or [f"     {both}" for both in _both(difference)]
    if len(tally.listed) > most:
        lines.append(f"  and {len(tally.listed) - most:,} more: the Delta table `verification` has them")
    if tally.unlisted:
        lines.append(f"  not listed: {tally.unlisted:,} rows that differ, or are among such rows")
    return lines


def repair_lines(result: RepairResult) -> list[str]:
    """What is said of a repair. Pure."""
    if (done := result.done) is None:
        return [f"  NOT repaired: {result.refused}"]
    return [
        f"  repaired at {done.ts} ({as_time(done.ts)}): {result.rows:,} rows; {done.right:,} were right already",
        *(["  more differ that are not listed: run the command again"] if result.more else []),
        *(f"  NOT repaired: {difference_line(left.difference)}: {left.why}" for left in done.left),
    ]


def difference_line(difference: RowDifference) -> str:
    """What is said of a row that differs. Pure."""
    key = ", ".join(f"{name} = {value}" for name, value in difference.key.items())
    changed = f" ({', '.join(difference.changed)})" if difference.changed else ""
    return f"{difference.kind}: {key}{changed}" + (f", {difference.times} times" if difference.times > 1 else "")


def _both(difference: RowDifference) -> list[str]:
    """What is on both sides, of a difference without a statement."""
    wanted, found = difference.images
    if wanted is None or found is None:
        return []
    return [f"{name}: {wanted[name]} upstream, {found[name]} at the target" for name in difference.changed]


def progress_line(found: RoundDone, about: int, seen: int, tables: int, rate: float) -> str:
    """How far a run is. ``about``: rows of the table; ``seen``: tables that are done, of ``tables``; ``rate``: rows a second. Pure."""
    rows, differing = found.tally.rows, found.tally.differing
    share = min(rows / about, 0.99) if about else 0.0
    left = f", {duration_in_words((about - rows) / rate)} left" if about > rows and rate else ""
    differ = f", {differing:,} DIFFER" if differing else ""
    return f"{plain(found.name)} {bar(share)} {share:4.0%} of about {about:,} rows{differ}; {rate:,.0f} rows/s{left}; table {seen + 1} of {tables}"


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
    repairs: TableRepairer | None = None
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
