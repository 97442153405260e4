"""Compares the tables of an upstream and its target, one after the other, beside a running Drainer. [db]

A table is read in rounds of ranges, one range for each pair of readers. After a round the list of recorded DDLs is compared with the list at S. If it has changed, or a
server refuses because a table has changed, the table is read again at a new S. After ``standing.MOST_SECONDS`` the next round is read at a new S.

Promises: every range that counts as equal was equal at an S at which no DDL of the stream had begun. Nothing is written.
"""

import fnmatch
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ReplicationError, RetryableApplyError, SnapshotCollected
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Key, KeyRange
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import load_frozen
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import TableName, TargetTable, read_tables
from pyspark_tidb_binlog.sinks.mysql.target import as_text
from pyspark_tidb_binlog.sinks.verify.standing import MOST_SECONDS, Readers, SnapshotRecord, StandingReaders, unlocked
from pyspark_tidb_binlog.sinks.verify.table_comparison import TableReader, Tally, boundary
from pyspark_tidb_binlog.sinks.verify.table_pair import Intent, NotCompared, TablePair, pair_of

_log = logging.getLogger(__name__)

_TRIES = 5
"""How often a table is read from its beginning because DDLs run or connections are lost."""
_FIRST_ROWS, _MOST_ROWS = 2_000, 200_000
"""Rows of a range: the first one, and any."""
_ROUND_SECONDS = 1.0
"""About how long a round of ranges takes: for so long a DDL may wait."""
_CHANGED = frozenset({1054, 1146, 1412})
"""The table is not as it was when the snapshot was taken: no such column, no such table, another definition."""
_NO_TABLES = ("VIEW", "SYSTEM VIEW", "SEQUENCE")
_OF_THE_SERVER = ("information_schema", "performance_schema", "metrics_schema", "inspection_schema", "mysql", "sys")


class TableChanged(ApplyError):
    """A DDL has run while the table was read."""


_AGAIN = TableChanged, RetryableApplyError, SnapshotCollected


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """What is known of one table."""

    name: str
    """Upstream, ``db.table``."""
    ts: int
    """S, the last one of several."""
    left_out: Sequence[NotCompared] = ()
    """Columns that were not compared; without a tally the table."""
    tally: Tally | None = None
    """None: the table was not compared."""
    target: str = ""
    """Its name at the target, quoted; empty: it was not compared."""
    began: SnapshotRecord | None = None
    """The record at the first S, since which no DDL has run; None: it was not compared."""

    @property
    def differs(self) -> bool:
        """Whether something is not as it should be."""
        return bool(self.tally and self.tally.differing) or any(not one.by_intent for one in self.left_out)


@dataclass(slots=True)
class Pace:
    """How many rows a range has, and how fast rows are read."""

    rate: int = 0
    """Rows a second, at most; 0: any number."""
    pause: Callable[[float], None] = time.sleep
    size: int = _FIRST_ROWS

    def after(self, rows: int, seconds: float) -> None:
        """A round is over: wait for the rate, and choose the next size."""
        factor = min(max(_ROUND_SECONDS / max(seconds, 0.001), 0.25), 4.0)
        self.size = int(min(max(self.size * factor, 100), _MOST_ROWS, self.rate or _MOST_ROWS))
        if self.rate:
            self.pause(max(rows / self.rate - seconds, 0.0))


@dataclass(slots=True)
class Verification:
    """One run over all tables."""

    readers: Readers
    apply: ApplyConfig
    cluster_id: int
    patterns: Sequence[str] = ()
    """``db.table`` upstream, with ``*`` and ``?``; none: all tables."""
    pace: Pace = field(default_factory=Pace)
    shows: Callable[[str, int], None] = lambda name, rows: None
    """Gets the table and how many of its rows are compared, after each round."""
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _standing: StandingReaders | None = field(default=None, init=False)

    def run(self) -> Iterator[VerifiedTable]:
        """Compare each table that the settings replicate and a pattern names."""
        try:
            for name in self._names():
                yield self._verified(name)
        finally:
            self._leave()

    # Standing readers.

    def _stand(self, *, afresh: bool = False) -> StandingReaders:
        if afresh or self._standing is None or time.monotonic() - self._standing.opened_at > MOST_SECONDS:
            self._leave()
            self._standing = self._stack.enter_context(self.readers.standing())
        return self._standing

    def _leave(self, error: ReplicationError | None = None) -> ReplicationError | None:
        """Close the readers; ``error``: why. An error of the upstream comes back with words that name the upstream."""
        self._standing = None
        try:
            self._stack.__exit__(type(error) if error else None, error, None)
        except ReplicationError as named:
            return named
        return error

    def _names(self) -> list[TableName]:
        session, keeps = self._stand().pairs[0].upstream, Intent.of(self.apply, {}).selection.tables.keeps
        found = session.query("SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY 1, 2")
        names = [(as_text(schema), as_text(table)) for schema, table, kind in found if as_text(kind).upper() not in _NO_TABLES]
        return [name for name in names if name[0].lower() not in _OF_THE_SERVER and keeps(*name) and self._is_named(".".join(name))]

    def _is_named(self, name: str) -> bool:
        return not self.patterns or any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in self.patterns)

    # One table.

    def _verified(self, name: TableName) -> VerifiedTable:
        label, why = ".".join(name), ""
        for attempt in range(_TRIES):
            try:
                return self._once(name, self._stand(afresh=attempt > 0))
            except ApplyError as error:
                named = self._leave(error)
                if not isinstance(named, _AGAIN) and error.errno not in _CHANGED:
                    raise (named or error) from error
                why = str(named)
                _log.info("%s is read again: %s", label, why)
        return VerifiedTable(label, 0, [NotCompared(f"read {_TRIES} times in vain: {why}", by_intent=False)])

    def _once(self, name: TableName, standing: StandingReaders) -> VerifiedTable:
        label = ".".join(name)
        pair = self._pair(name, standing)
        if isinstance(pair, NotCompared):
            self._require_no_ddl(standing)
            return VerifiedTable(label, standing.at.ts, [pair])
        tally = Tally()
        if pair.key:
            self._by_ranges(pair, tally)
        else:
            TableReader(pair, standing.pairs[0]).compare_all(tally)
            self._require_no_ddl(standing)
        return VerifiedTable(label, self._stand().at.ts, pair.left_out, tally, pair.target.label, standing.at)

    def _pair(self, name: TableName, standing: StandingReaders) -> TablePair | NotCompared:
        upstream, target = standing.pairs[0].upstream, standing.pairs[0].target
        with unlocked(target):
            intent = Intent.of(self.apply, load_frozen(target, self.apply, self.cluster_id))
        to = intent.selection.routes.target(*name)
        there: Mapping[TableName, TargetTable] = read_tables(upstream, [name])
        if name not in there:
            return NotCompared(f"the upstream has no such table any more at {standing.at.ts}", by_intent=True)
        here = read_tables(target, [(to.schema, to.name)]).get((to.schema, to.name))
        return pair_of(there[name], here, intent, (upstream.flavour, target.flavour))

    def _by_ranges(self, pair: TablePair, tally: Tally) -> None:
        begin: Key = ()
        ddls = self._stand().at.ddls
        while True:
            standing, since = self._stand(), time.monotonic()
            if standing.at.ddls != ddls:
                raise TableChanged("a DDL ran before the readers were replaced")
            ranges = list(self._ranges(pair, begin, standing))
            parts = [Tally(differences=dict(tally.differences)) for _ in ranges]
            with ThreadPoolExecutor(len(ranges), "verify") as pool:
                readers = [TableReader(pair, both) for both in standing.pairs]
                done = [
                    pool.submit(reader.compare_range, within, part) for reader, within, part in zip(readers, ranges, parts, strict=False)
                ]
                for one in done:
                    one.result()
            self._require_no_ddl(standing)
            for part in parts:
                tally.add(part)
            self.shows(pair.name, tally.rows)
            self.pace.after(sum(part.rows for part in parts), time.monotonic() - since)
            begin = ranges[-1].end
            if not begin:
                return

    def _ranges(self, pair: TablePair, begin: Key, standing: StandingReaders) -> Iterator[KeyRange]:
        """The next range for each pair of readers; the table's last range is open."""
        session: Session = standing.pairs[0].upstream
        for _ in standing.pairs:
            end = boundary(session, pair.upstream, KeyRange("", begin), self.pace.size)
            yield KeyRange("", begin, end if end != begin else ())
            if not end or end == begin:
                return
            begin = end

    def _require_no_ddl(self, standing: StandingReaders) -> None:
        """Check that no DDL of the stream has begun since S: its intent would be recorded, before it ran."""
        if self.readers.ddls(standing.newest) != standing.at.ddls:
            raise TableChanged("a DDL ran while the table was read")
