"""Compares the mirrors of a lake with the upstream, beside a running Drainer. [db, deltalake]

A lake publishes moments: at S each mirror is at a version that has exactly what was committed up to S. The version stays, and TiDB shows itself at S. So both
sides stand still, and the Drainer goes on. A moment serves several tables for ``standing.MOST_SECONDS``, so S is not much older than the read of one table.

Promises: nothing is written. Tables that the lake has set aside, or has not loaded, are named. A lake has no other tables that are no copy by intent: its start
refuses conditions and lists of columns of routes, and rules.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, RetryableApplyError, SnapshotCollected
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.bootstrap.mirror_rows import ranges_of
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SchemaMoves, SnapshotSource, collected_words
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorUnreadable, rows_of_version
from pyspark_tidb_binlog.sinks.lake.mirrors import followed_history
from pyspark_tidb_binlog.sinks.lake.moments import DROPPED, LOADING, MIRRORED, Snapshots, TablePlace, published_of
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions
from pyspark_tidb_binlog.sinks.mysql.structure import TableName
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.verify.definition import NotCompared
from pyspark_tidb_binlog.sinks.verify.mirror_comparison import MirrorComparison, upstream_rows
from pyspark_tidb_binlog.sinks.verify.row_hashes import RowShape
from pyspark_tidb_binlog.sinks.verify.standing import MOST_SECONDS, NEARER
from pyspark_tidb_binlog.sinks.verify.verification import TRIES, Begun, RoundDone, VerifiedTable, in_vain, is_named, upstream_names

_log = logging.getLogger(__name__)

_PAUSE = 2.0
"""Seconds before a table is read again: the Drainer may publish a moment meanwhile."""
_AGAIN = SchemaMoves, RetryableApplyError, SnapshotCollected


@dataclass(frozen=True, slots=True)
class LakeMoment:
    """A published moment of a lake."""

    ts: int
    tables: Mapping[int, TablePlace]
    """By table id, also dropped ones."""
    history: SchemaHistory
    """What the mirrors follow."""
    read_at: float
    """``monotonic``."""

    @classmethod
    def of(cls, lake: str) -> "LakeMoment":
        """The newest one.

        Raises:
            ConfigError: there is none.
        """
        published = published_of(lake)
        ts = published.followed_ts
        return cls(ts, published.at(ts), followed_history(lake, Snapshots(lake), published.newest), time.monotonic())

    def table_at(self, place: TablePlace) -> TableAt | None:
        """A table as the upstream has it."""
        return self.history.table_at(place.table_id, self.history.newest_version)


@dataclass(slots=True)
class LakeComparison:
    """One run over all tables."""

    lake: str
    """Its directory or URI."""
    source: SnapshotSource
    apply: ApplyConfig
    patterns: Sequence[str] = ()
    """``db.table`` upstream, with ``*`` and ``?``; none: all tables."""
    pause: Callable[[float], None] = time.sleep
    _first: tuple[LakeMoment, dict[TableName, int]] | None = field(default=None, init=False)
    """The moment at which the run began, and ``names`` there."""
    _moment: LakeMoment | None = field(default=None, init=False)
    """The one that was read last."""

    def names(self) -> dict[TableName, int]:
        """The upstream's tables when the run began, with about how many rows each has; 0: the upstream does not say.

        Raises:
            SnapshotCollected: the lake is so far behind that TiDB does not keep the moment any more.
        """
        return self._begun()[1]

    def run(self, begun: Begun | None = None) -> Iterator[RoundDone | VerifiedTable]:
        """Compare each table that the settings replicate and a pattern names; a table's rounds come before it. ``begun``: tables that are not compared again."""
        moment, names = self._begun()
        upstream = {".".join(name): name for name in names}
        mirrors = {_name(moment, place): place.table_id for place in moment.tables.values() if place.state != DROPPED}
        named = {name: table_id for name, table_id in mirrors.items() if is_named(name, self.patterns)}
        for name in sorted((upstream.keys() | named.keys()) - (begun.tables.keys() if begun is not None else set())):
            if name in named:
                yield from self._verified(name, named[name])
            else:
                yield _absent(upstream[name], moment)

    def _begun(self) -> tuple[LakeMoment, dict[TableName, int]]:
        if self._first is None:
            moment = self._stand()
            try:
                with self.source.at(moment.ts) as session:
                    there = upstream_names(session, TableFilter.of(self.apply))
            except SnapshotCollected as error:
                raise SnapshotCollected(self._collected(moment.ts)) from error
            self._first = moment, {name: rows for name, rows in there.items() if is_named(".".join(name), self.patterns)}
        return self._first

    def _stand(self, *, afresh: bool = False) -> LakeMoment:
        """A moment that is new enough."""
        if afresh or self._moment is None or time.monotonic() - self._moment.read_at > MOST_SECONDS:
            self._moment = LakeMoment.of(self.lake)
        return self._moment

    def _verified(self, name: str, table_id: int) -> Iterator[RoundDone | VerifiedTable]:
        why = ""
        for attempt in range(TRIES):
            if attempt:
                self.pause(_PAUSE)
            moment = self._stand(afresh=attempt > 0)
            with closing(self.source.sessions_at(moment.ts)) as sessions:
                try:
                    yield from self._once(name, moment, moment.tables.get(table_id), sessions)
                    return
                except MirrorUnreadable as error:
                    yield VerifiedTable(name, moment.ts, [NotCompared(str(error), by_intent=False)])
                    return
                except _AGAIN as error:
                    why = self._collected(moment.ts) if isinstance(error, SnapshotCollected) else str(error)
                    _log.info("%s is read again: %s", name, why)
        yield in_vain(name, why)

    def _once(self, name: str, moment: LakeMoment, place: TablePlace | None, sessions: KeptSessions) -> Iterator[RoundDone | VerifiedTable]:
        at = moment.table_at(place) if place is not None else None
        why = _why_not(moment, place, at)
        if why is not None:
            yield VerifiedTable(name, moment.ts, [why])
            return
        assert place is not None and place.version is not None and at is not None
        try:
            with self.source.at(moment.ts, sessions) as session:
                ranges = ranges_of(self.source, session, at, self.source.table_ids(session))
        except _AGAIN:
            raise
        except BootstrapRefused as error:
            yield VerifiedTable(name, moment.ts, [NotCompared(f"{error}. lake verify --dir compares it with the ledger", by_intent=True)])
            return
        upstream = [partial(upstream_rows, self.source, sessions, moment.ts, at, within) for within in ranges]
        mirror = [partial(rows_of_version, f"{self.lake}/{place.path}", place.version)]
        for tally in MirrorComparison(RowShape.of(at.info), upstream, mirror, self.apply.parts).compare():
            yield RoundDone(name, moment.ts, tally)
        computed = [
            NotCompared(f"{c.name}: it is computed", by_intent=True) for c in at.info.public_columns() if c.generated and not c.hidden
        ]
        yield VerifiedTable(name, moment.ts, computed, tally)

    def _collected(self, ts: int) -> str:
        return collected_words(ts, self.source.where, NEARER.format(side="lake"))


def load_again(name: str) -> str:
    """What to do about a mirror that differs; ``name``: upstream."""
    return f"keep the lake as it is while you look for the cause; then load the table again: ctl reload-tables -config FILE -tables {name}"


def _name(moment: LakeMoment, place: TablePlace) -> str:
    at = moment.table_at(place)
    return f"{at.schema}.{at.name}" if at is not None else str(place)


def _why_not(moment: LakeMoment, place: TablePlace | None, at: TableAt | None) -> NotCompared | None:
    """Why a table is not compared; None: it is."""
    if place is None or place.state == DROPPED:
        return NotCompared(f"it was dropped up to {moment.ts}", by_intent=True)
    if place.state == LOADING:
        return NotCompared("it is not loaded yet", by_intent=True)
    if place.state != MIRRORED:
        return NotCompared(f"it is set aside: {place.why}", by_intent=True)
    if at is None:
        return NotCompared("the ledger has no definition of it", by_intent=False)
    return None


def _absent(name: TableName, moment: LakeMoment) -> VerifiedTable:
    """A table of the upstream that the lake does not have."""
    known, label = moment.history.find(*name, moment.history.newest_version), ".".join(name)
    words = f"the lake does not have it; to load it: ctl reload-tables -config FILE -tables {label}"
    return VerifiedTable(label, moment.ts, [NotCompared(words, by_intent=known is None)])
