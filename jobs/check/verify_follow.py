"""``verify --follow``: every minute the rows that have changed since the last look are compared at a new S, and meanwhile all tables at a bounded rate.

    rows that changed in (S, S']    from the Pumps; compared at S'
    a table of which one differs    compared as a whole, before others
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
    _again: list[TableName] = field(default_factory=list, init=False)
    """Tables of which changed rows differed, or that have a new name."""
    _named: Mapping[TableName, int] = field(default_factory=dict, init=False)
    """The upstream's tables at the last look, with TiDB's ids."""
    _table: Iterator[RoundDone | VerifiedTable] | None = field(default=None, init=False)
    """Over one of these tables; None: none is under way."""
    _pass: Iterator[RoundDone | VerifiedTable] | None = field(default=None, init=False)
    """Over all tables."""
    _differ: set[str] = field(default_factory=set, init=False)
    """Tables that differed when they were compared last."""
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
                    self.taken.take(found)
                    if isinstance(found, VerifiedTable):
                        (self._differ.add if found.differs else self._differ.discard)(found.name)
            except _PASSING as error:
                self.taken.view.say(f"nothing is compared until the next look: {error}")
                self._pass_at = self._pass_at if self._pass is None else 0.0
                self._table = self._pass = None
            self.record.flush()
            if self._table is None and self._pass is None:
                self.run.close()  # no snapshot is held until the next look
            stop.wait(max(look_at - time.monotonic(), 0.0))

    def _look(self, after_ts: int) -> int:
        """Compare what has changed after ``after_ts``; the new S. 0: nothing was compared before."""
        ts = self.run.at()
        known, self._named = self._named, self.run.named()
        # What was logged of a table under its name before is found by none.
        self._again += [name for name, number in self._named.items() if known and known.get(name) != number]
        if not after_ts or ts <= after_ts:
            return ts
        found = list[VerifiedTable]()
        for images in changed_images(source_options(self.config), after_ts, ts):
            found += [self.run.changed(name, of) for name, of in images.items() if self.run.compares(name)]
        differing = [table for table in found if table.tally is not None and table.tally.differing]
        for table in differing:
            self.taken.take(table)
            schema, _, name = table.name.partition(".")
            self._again.append((schema, name))
        self.record.note_changes(ts, found)
        rows = sum(table.tally.rows for table in found if table.tally is not None)
        differ = f"{sum(t.tally.differing for t in differing if t.tally is not None):,} DIFFER" if differing else "equal"
        still = f"; {', '.join(sorted(self._differ))} differ since before" if self._differ else ""
        self.taken.view.say(f"{as_time(ts)}: {rows:,} rows had changed: {differ}{still}")
        self._differ |= {table.name for table in differing}
        return ts

    def _begin(self) -> None:
        self._pass, self._pass_at = self.run.run(self.record.begin(afresh=False)), time.monotonic() + PASS_SECONDS

    def _next(self) -> RoundDone | VerifiedTable | None:
        """The next event; None: there is nothing to do now."""
        while self._table is not None or self._again:
            if self._table is None:
                self._table = self.run.verified(self._again.pop(0))
            if (found := next(self._table, None)) is not None:
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
