"""``verify --follow``: every minute the rows that have changed since the last look are compared at a new S, and meanwhile all tables at a bounded rate.

    rows that changed in (S, S']    from the Pumps; compared at S'
    a table of which one differs    compared as a whole, before others
    all tables                      once an hour, as far as the rate allows: the pass goes on where it was, also after a restart

Promises: reads only. What cannot be compared now (a DDL runs, a server is away, the target is half applied) is compared at the next look, from the same S on.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.changes.change_options import source_options
from pyspark_tidb_binlog.binlog_source.changes.change_readers import changed_images
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.verified_view import VerifiedView
from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable, NotUsableYet, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.structure import TableName
from pyspark_tidb_binlog.sinks.verify.verification import AGAIN, Round, Verification, VerifiedTable
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
    view: VerifiedView
    record: VerificationTable
    explained: Callable[[VerifiedTable], Sequence[str]]
    _again: dict[TableName, None] = field(default_factory=dict, init=False)
    """Tables of which changed rows differed."""
    _pass_at: float = field(default=0.0, init=False)
    """When the next pass begins."""

    def until(self, stop: threading.Event) -> None:
        """Look each minute until ``stop``."""
        upto, rounds = self.record.changes_upto(), self._rounds()
        while not stop.is_set():
            look_at = time.monotonic() + LOOK_SECONDS
            try:
                upto = self._look(upto)
                self._work(rounds, look_at, stop)
            except _PASSING as error:
                self.view.say(f"nothing is compared until the next look: {error}")
                rounds = self._rounds()
            self.record.flush()
            stop.wait(max(look_at - time.monotonic(), 0.0))

    def _look(self, after_ts: int) -> int:
        """Compare what has changed after ``after_ts``; the new S. 0: nothing was compared before."""
        ts = self.run.at()
        if not after_ts or ts <= after_ts:
            return ts
        found = list[VerifiedTable]()
        for images in changed_images(source_options(self.config), after_ts, ts):
            found += [self.run.changed(name, of) for name, of in images.items() if self.run.compares(name)]
        differing = [table for table in found if table.tally is not None and table.tally.differing]
        for table in differing:
            self._take(table)
            schema, _, name = table.name.partition(".")
            self._again[schema, name] = None
        self.record.note_changes(ts, found)
        rows = sum(table.tally.rows for table in found if table.tally is not None)
        differ = f"{sum(t.tally.differing for t in differing if t.tally is not None):,} DIFFER" if differing else "equal"
        self.view.say(f"{as_time(ts)}: {rows:,} rows had changed: {differ}")
        return ts

    def _work(self, rounds: Iterator[Round | VerifiedTable | None], until: float, stop: threading.Event) -> None:
        """Go on with the pass until it is time for the next look."""
        for found in rounds:
            if isinstance(found, Round):
                self.record.note_part(found)
                self.view.round(found)
            elif found is not None:
                self._take(found)
            if found is None or stop.is_set() or time.monotonic() > until:
                return

    def _rounds(self) -> Iterator[Round | VerifiedTable | None]:
        """All passes, and the tables that differed in between; None: there is nothing to do now."""
        while True:
            if time.monotonic() >= self._pass_at:
                begun = self.record.begin(afresh=False)
                self.run.equal, self.run.done = begun.parts, begun.ids
                for found in self.run.run():
                    yield found
                    yield from self._differed()
                self.record.end()
                self._pass_at = time.monotonic() + PASS_SECONDS
            yield from self._differed()
            self.run.close()  # no snapshot is held until the next look
            yield None

    def _differed(self) -> Iterator[Round | VerifiedTable]:
        while self._again:
            name = next(iter(self._again))
            yield from self.run.verified(name)
            del self._again[name]

    def _take(self, found: VerifiedTable) -> None:
        words = self.explained(found)
        self.view.table(found, words)
        self.record.note_table(found, words)
