"""``verify --follow``: every minute the rows that have changed since the last look are compared at a new S, and meanwhile all tables at a bounded rate.

    rows that changed in (S, S']    from the Pumps; compared at S'
    a table of which one differs    compared as a whole, before others
    a new name, or another table    the same: rows that are logged under its former name are not looked up by it
    all tables                      once an hour, as far as the rate allows: the pass goes on where it was, also after a restart

Promises: reads only. What cannot be compared now (a DDL runs, a server is away, the target is half applied) is compared at the next look, from the same S on.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.changes.change_options import source_options
from pyspark_tidb_binlog.binlog_source.changes.change_readers import changed_images
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.verify_run import VerifyRun
from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable, NotUsableYet, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.structure import TableName
from pyspark_tidb_binlog.sinks.verify.verification import AGAIN, RoundDone, Verification, VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import VerificationTable

LOOK_SECONDS = 60.0
PASS_SECONDS = 3600.0
"""From the begin of a pass over all tables to the next."""
_PASSING = (*AGAIN, NotUsableYet, PumpUnavailable, HistoryUnavailable)


@dataclass
class Follow:
    """One ``verify --follow``."""

    config: DrainerConfig
    run: Verification
    taken: VerifyRun
    record: VerificationTable
    _again: dict[TableName, None] = field(default_factory=dict, init=False)
    """Tables of which changed rows differed, and those whose names are new, in order."""
    _known: Mapping[TableName, int] | None = field(default=None, init=False)
    """The tables at the last S, with TiDB's ids; None: no look was taken yet, and the first pass compares them all."""
    _table: Iterator[RoundDone | VerifiedTable] | None = field(default=None, init=False)
    """Over one of these tables; None: none is under way."""
    _pass: Iterator[RoundDone | VerifiedTable] | None = field(default=None, init=False)
    """Over all tables."""
    _differ: dict[TableName, int] = field(default_factory=dict, init=False)
    """Tables that differed when they were compared last, with the S."""
    _pass_at: float = field(default=0.0, init=False)
    """When the next pass over all tables begins."""

    def until(self, stop: threading.Event) -> None:
        """Look each minute until ``stop``."""
        upto = self.record.changes_upto()
        self._begin()
        while not stop.is_set():
            look_at = time.monotonic() + LOOK_SECONDS
            try:
                upto = self._look(upto)
                while time.monotonic() < look_at and not stop.is_set() and (found := self._next()) is not None:
                    self._take(found)
            except _PASSING as error:
                self.taken.view.say(f"nothing is compared until the next look: {error}")
                self._pass_at = self._pass_at if self._pass is None else 0.0
                self._table = self._pass = None
            self.record.flush()
            if self._table is None and self._pass is None:
                self.run.close()  # no snapshot is held until the next look
            stop.wait(max(look_at - time.monotonic(), 0.0))

    def _take(self, found: RoundDone | VerifiedTable) -> None:
        if isinstance(found, VerifiedTable):
            name = _named(found)
            if found.differs:
                self._differ[name] = found.ts
            elif (found.first_ts or found.ts) < self._differ.get(name, 0):
                # Rows that were compared first may be those that have differed since.
                self._again[name] = None
                return
            else:
                self._differ.pop(name, None)
        self.taken.take(found)

    def _look(self, after_ts: int) -> int:
        """Compare what has changed after ``after_ts``; the new S. 0: nothing was compared before."""
        ts, known = self.run.at(), self._known
        self._known = self.run.table_ids()
        if known is not None:
            self._again |= dict.fromkeys(name for name, table_id in self._known.items() if known.get(name) != table_id)
        if not after_ts or ts <= after_ts:
            return ts
        seen = dict[TableName, VerifiedTable]()
        for name, images in ((n, of) for found in changed_images(source_options(self.config), after_ts, ts) for n, of in found.items()):
            if self.run.compares(name):
                table, before = self.run.changed(name, images), seen.get(name)
                if table.tally is not None and before is not None and before.tally is not None:
                    table.tally.add(before.tally)
                seen[name] = table
        found = list(seen.values())
        differing = [table for table in found if table.tally is not None and table.tally.differing]
        self.record.note_changes(ts, found)
        rows = sum(table.tally.rows for table in found if table.tally is not None)
        differ = f"{sum(t.tally.differing for t in differing if t.tally is not None):,} DIFFER" if differing else "equal"
        still = f"; {', '.join(sorted(map('.'.join, self._differ)))} differ since before" if self._differ else ""
        for table in differing:
            self._again[_named(table)] = None
            self._take(table)
        self.taken.view.say(f"{as_time(ts)}: {rows:,} rows had changed: {differ}{still}")
        return ts

    def _begin(self) -> None:
        self._pass, self._pass_at = self.run.run(self.record.begin(afresh=False)), time.monotonic() + PASS_SECONDS

    def _next(self) -> RoundDone | VerifiedTable | None:
        """The next event; None: there is nothing to do now."""
        while self._table is not None or self._again:
            if self._table is None:
                self._table = self.run.verified(next(iter(self._again)))
            if (found := next(self._table, None)) is not None:
                if isinstance(found, VerifiedTable):
                    del self._again[next(iter(self._again))]  # the one that is under way; whoever takes the event may add it again
                return found
            self._table = None
        if self._pass is None and time.monotonic() >= self._pass_at:
            self._begin()
        if self._pass is not None and (found := next(self._pass, None)) is not None:
            return found
        if self._pass is not None:
            self._pass = None
            self.record.end()
        return None


def _named(table: VerifiedTable) -> TableName:
    schema, _, name = table.name.partition(".")
    return schema, name
