"""Shows what a verification finds: text for a terminal, with a progress bar, or JSON."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from pyspark_tidb_binlog.conf.units import duration_in_words
from pyspark_tidb_binlog.jobs.check.table_repairs import TableRepair
from pyspark_tidb_binlog.jobs.stream.report import plain
from pyspark_tidb_binlog.jobs.stream.reporter import InPlace, draws
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify.repair import RowDifference
from pyspark_tidb_binlog.sinks.verify.table_comparison import MOST_LISTED
from pyspark_tidb_binlog.sinks.verify.verification import RoundDone, VerifiedTable

_BAR = 24


class VerifiedView(Protocol):
    """A form of output."""

    def say(self, words: str) -> None:
        """Show a sentence about the run."""

    def round(self, found: RoundDone) -> None:
        """A part of a table was compared."""

    def table(self, found: VerifiedTable, words: Sequence[str], result: TableRepair | None = None) -> None:
        """A table was compared. ``words``: what may explain that it differs, or what to do. ``result``: of its repair."""

    def end(self, total: Mapping[str, int]) -> None:
        """All tables were seen."""


def printed(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


class TextView:
    """Lines, and below them on a terminal how far it is."""

    def __init__(
        self,
        flavour: Flavour,
        about: Mapping[str, int],
        out: TextIO,
        write: Callable[[str], None] = printed,
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
        """See ``VerifiedView``."""
        self._above(words)

    def round(self, found: RoundDone) -> None:
        """See ``VerifiedView``."""
        if self._place is not None:
            frame = progress_line(found, self._about.get(found.name, 0), self._seen, len(self._about), self._rate(found.tally.rows))
            self._place.show(lambda columns, lines: frame[: columns - 1])

    def table(self, found: VerifiedTable, words: Sequence[str], result: TableRepair | None = None) -> None:
        """See ``VerifiedView``."""
        self._seen += 1
        self._rows += found.tally.rows if found.tally else 0
        lines = table_lines(found, words, self._flavour, with_sql=self._with_sql, most=self._most)
        if result is not None and found.tally is not None and found.tally.differing:
            lines += repair_lines(result)
        self._above("\n".join(map(plain, lines)))

    def end(self, total: Mapping[str, int]) -> None:
        """See ``VerifiedView``."""
        words = TOTAL + (DEFINITIONS if total["definitions"] else "") + (REPAIRED if total["repaired"] else "")
        self._above(words.format(**total))
        if self._place is not None:
            self._place.clear()

    def _above(self, text: str) -> None:
        if self._place is not None:
            self._place.clear()
        self._write(text)

    def _rate(self, rows: int) -> float:
        return (self._rows + rows) / max(time.monotonic() - self._since, 0.001)


class JsonView:
    """A JSON object a line."""

    def __init__(self, flavour: Flavour) -> None:
        self._flavour = flavour

    def say(self, words: str) -> None:
        """See ``VerifiedView``."""
        print(json.dumps({"message": words}), flush=True)

    def round(self, found: RoundDone) -> None:
        """See ``VerifiedView``."""

    def table(self, found: VerifiedTable, words: Sequence[str], result: TableRepair | None = None) -> None:
        """See ``VerifiedView``."""
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
            shown |= {"repaired": sum(d.times for d in done.repaired), "right_already": done.right, "not_repaired": left}
        elif result is not None:
            shown |= {"repaired": 0, "refused": result.refused}
        print(json.dumps(shown), flush=True)

    def end(self, total: Mapping[str, int]) -> None:
        """See ``VerifiedView``."""
        print(json.dumps(total), flush=True)


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


def repair_lines(result: TableRepair) -> list[str]:
    """What is said of a repair. Pure."""
    if (done := result.done) is None:
        return [f"  NOT repaired: {result.refused}"]
    rows = sum(difference.times for difference in done.repaired)
    return [
        f"  repaired at {done.ts} ({as_time(done.ts)}): {rows:,} rows; {done.right:,} were right already",
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
    bar = "█" * int(share * _BAR) + "░" * (_BAR - int(share * _BAR))
    left = f", {duration_in_words((about - rows) / rate)} left" if about > rows and rate else ""
    differ = f", {differing:,} DIFFER" if differing else ""
    return f"{plain(found.name)} {bar} {share:4.0%} of about {about:,} rows{differ}; {rate:,.0f} rows/s{left}; table {seen + 1} of {tables}"
