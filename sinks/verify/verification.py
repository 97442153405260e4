"""Compares the tables of an upstream and its target, one after the other, beside a running Drainer. [db]

A table is read in rounds of ranges, one range for each pair of readers. After a round the list of recorded DDLs is compared with the list at S. If it has another DDL
that may change the table, or a server refuses because a table has changed, or a connection is lost, the round is read again at a new S; the table from its begin if its
key is another. After ``standing.MOST_SECONDS`` the next round is read at a new S.

Promises: every range that counts as equal was equal at an S behind which no DDL of the stream on its table had begun. Nothing is written. Each round is an event, so
that whoever reads the events may do other work between two rounds, or end.
"""

import fnmatch
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ReplicationError, RetryableApplyError, SnapshotCollected
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Key, KeyRange
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import load_frozen, remarkable
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import TableName, TargetTable, read_tables
from pyspark_tidb_binlog.sinks.mysql.target import as_text
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.verify.definition import NotCompared, Standard
from pyspark_tidb_binlog.sinks.verify.explanation import may_concern
from pyspark_tidb_binlog.sinks.verify.repair import Values, keys_of
from pyspark_tidb_binlog.sinks.verify.standing import MOST_SECONDS, Readers, StandingReaders, unlocked
from pyspark_tidb_binlog.sinks.verify.table_comparison import TableReader, Tally, boundary
from pyspark_tidb_binlog.sinks.verify.table_pair import Intent, TablePair, pair_of

_log = logging.getLogger(__name__)

TRIES = 5
"""How often the same is read because DDLs run or connections are lost."""
_AWAY = RetryPolicy(seconds=60.0)
"""For how long a server may be restarted. Then the run ends, and can be continued."""
_FIRST_ROWS, _MOST_ROWS = 2_000, 200_000
"""Rows of a range: the first one, and any."""
_ROUND_SECONDS = 1.0
"""About how long a round of ranges takes: for so long a DDL may wait."""
_CHANGED = frozenset({1054, 1146, 1412})
"""The table is not as it was when the snapshot was taken: no such column, no such table, another definition."""
_NO_TABLES = ("VIEW", "SYSTEM VIEW", "SEQUENCE")
_ONLY_AT_TARGET = NotCompared("only the target has it: it was made there, or its DROP was not executed (ctl ddl)", by_intent=True)
_OF_THE_SERVER = ("information_schema", "performance_schema", "metrics_schema", "inspection_schema", "mysql", "sys")


class TableChanged(ApplyError):
    """A DDL has run while the table was read."""


AGAIN = TableChanged, RetryableApplyError, SnapshotCollected
"""Errors after which the same is read again at a newer S."""
_AT_ONCE = 500
"""Keys that are looked up by one statement."""


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """What is known of one table."""

    name: str
    """Upstream, ``db.table``."""
    ts: int
    """S, the last one of several."""
    left_out: Sequence[NotCompared] = ()
    """Columns that were not compared, and what differs in the definition; without a tally the table."""
    tally: Tally | None = None
    """None: the table was not compared."""
    target: str = ""
    """Its name at the target, quoted; empty: it was not compared."""
    first_ts: int = 0
    """The first S."""
    ddls: tuple[int, int] = (0, 0)
    """The recorded DDLs when it had been compared."""
    table_id: int = 0
    """TiDB's; 0: unknown."""

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


@dataclass(frozen=True, slots=True)
class EqualRows:
    """The first rows of a table by its key, which were equal."""

    key: Sequence[str]
    """Which table, by TiDB's id, and its key and columns on both sides: another table of the name, or another key or column, is read from its begin."""
    end: Key
    """Exclusive; empty: none are."""
    rows: int
    ts: int = 0
    """The first S."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What an unfinished run has found equal."""

    run: str = ""
    """Its name; empty: there is none."""
    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of each table that was equal: S, and how many rows it had."""
    parts: Mapping[str, EqualRows] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    """TiDB's ids of ``tables``; 0: unknown."""
    unreadable: str = ""
    """Why an unfinished run is not continued, in words."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A round of ranges was compared, and the table has more."""

    name: str
    """Upstream, ``db.table``."""
    ts: int
    tally: Tally
    """Of the table so far."""
    equal: EqualRows | None = None
    """None: the table is compared as a whole."""


@dataclass(slots=True)
class Verification:
    """One run over all tables."""

    readers: Readers
    apply: ApplyConfig
    cluster_id: int
    patterns: Sequence[str] = ()
    """``db.table`` upstream or at the target, with ``*`` and ``?``; none: all tables."""
    pace: Pace = field(default_factory=Pace)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _standing: StandingReaders | None = field(default=None, init=False)
    _ids: tuple[StandingReaders | None, Mapping[TableName, int]] = field(default=(None, {}), init=False)
    """TiDB's ids of the upstream's tables at the S of these readers, by names in lower case."""
    _selection: Selection = field(init=False)

    def __post_init__(self) -> None:
        """Read the settings' filters and routes, which each name is asked of."""
        self._selection = Selection.of(self.apply)

    def run(self, begun: Begun | None = None) -> Iterator[RoundDone | VerifiedTable]:
        """Compare each table that the settings replicate and a pattern names, also those that get such a name meanwhile; a table's rounds come before it.

        ``begun``: what is not compared again.
        """
        begun = begun or Begun()
        seen = {label: begun.ids.get(label, 0) for label in begun.tables}
        try:
            while fresh := {name: number for name, number in self.table_ids().items() if seen.get(".".join(name)) != number}:
                for name, number in fresh.items():
                    seen[".".join(name)] = number
                    yield from self.verified(name, begun.parts.get(".".join(name)))
            yield from self._only_at_target()
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections."""
        self._leave()

    # Standing readers.

    def _stand(self, *, afresh: bool = False) -> StandingReaders:
        if afresh or self._standing is None or time.monotonic() - self._standing.opened_at > MOST_SECONDS:
            self._leave()
            for attempt in retrying(_AWAY):
                with attempt:
                    self._standing = self._stack.enter_context(self.readers.standing())
        assert self._standing is not None
        return self._standing

    def _leave(self, error: ReplicationError | None = None) -> ReplicationError | None:
        """Close the readers; ``error``: why. An error of the upstream comes back with words that name the upstream."""
        self._standing = None
        try:
            self._stack.__exit__(type(error) if error else None, error, None)
        except ReplicationError as named:
            return named
        return error

    def names(self) -> dict[TableName, int]:
        """The tables, by their names upstream, with about how many rows each has; 0: the upstream does not say."""
        there = upstream_names(self._stand().pairs[0].upstream, self._selection.tables)
        return {name: rows for name, rows in there.items() if self.is_named(name, self.patterns)}

    def table_ids(self) -> dict[TableName, int]:
        """The tables, with TiDB's ids; 0: the upstream does not say."""
        names = self.names()
        return {name: self._id(name, self._stand()) for name in names}

    def _id(self, name: TableName, standing: StandingReaders) -> int:
        if self._ids[0] is not standing:
            self._ids = standing, self.readers.table_ids(standing.pairs[0].upstream)
        return self._ids[1].get((name[0].lower(), name[1].lower()), 0)

    def compares(self, name: TableName) -> bool:
        """Whether the settings replicate a table, and a pattern names it."""
        return is_replicated(name, self._selection.tables) and self.is_named(name, self.patterns)

    def is_named(self, name: TableName, patterns: Sequence[str]) -> bool:
        """Whether one of the patterns, if there are any, is about the table, by its name on either side."""
        to = self._selection.routes.target(*name)
        return is_named(".".join(name), patterns) or is_named(f"{to.schema}.{to.name}", patterns)

    def _only_at_target(self) -> Iterator[VerifiedTable]:
        """The tables that the target has beside those of the upstream, in the databases of these; none if a pattern says what is compared."""
        for attempt in range(TRIES if not self.patterns else 0):
            try:
                standing = self._stand(afresh=attempt > 0)
                more = list(self._more_at_target(standing))
                settled = self.readers.ddls(standing.newest) == standing.at.ddls
            except ApplyError as error:
                self._again(error)
                continue
            if settled:
                yield from (VerifiedTable(".".join(name), standing.at.ts, [_ONLY_AT_TARGET]) for name in more)
                return

    def _more_at_target(self, standing: StandingReaders) -> Iterator[TableName]:
        there = upstream_names(standing.pairs[0].upstream, self._selection.tables)
        wanted = [self._selection.routes.target(*name) for name in there]
        lower = {(to.schema.lower(), to.name.lower()) for to in wanted}
        for schema in sorted({to.schema for to in wanted}):
            yield from (name for name in tables_in(standing.newest, schema) if (name[0].lower(), name[1].lower()) not in lower)

    # One table.

    def verified(self, name: TableName, equal: EqualRows | None = None) -> Iterator[RoundDone | VerifiedTable]:
        """Compare one table. ``equal``: its first rows that are not compared again."""
        label = ".".join(name)
        so_far, tries, why = _SoFar(equal), 0, ""
        while tries < TRIES:
            standing = self._stand(afresh=tries > 0)
            try:
                found = self._next(name, standing, so_far)
            except ApplyError as error:
                tries, why = tries + 1, str(self._again(error))
                _log.info("%s is read again: %s", label, why)
                continue
            yield found
            if isinstance(found, VerifiedTable):
                return
            tries = 0
        yield in_vain(label, why)

    def _again(self, error: ApplyError) -> ReplicationError:
        """Close the readers; why the same is read again, one of ``AGAIN``. Another error is raised."""
        named = self._leave(error) or error
        if isinstance(named, AGAIN):
            return named
        if error.errno in _CHANGED:
            return TableChanged(str(named))
        raise named from error

    def at(self) -> int:
        """Stand at the newest S."""
        return self._stand(afresh=True).at.ts

    def changed(self, name: TableName, images: Iterable[Values]) -> VerifiedTable:
        """Compare the rows of a table that have the keys of ``images``, which are rows before and after changes up to S.

        Raises:
            ApplyError: of ``AGAIN``, if the rows should be compared again at a newer S.
        """
        try:
            return self._changed(name, images, self._stand())
        except ApplyError as error:
            raise self._again(error) from error

    def _changed(self, name: TableName, images: Iterable[Values], standing: StandingReaders) -> VerifiedTable:
        tally, label = Tally(), ".".join(name)
        pair = self._pair(name, standing)
        if isinstance(pair, NotCompared) or not pair.key:
            self._require_no_ddl(name, standing)
            no_key = NotCompared("it has no key by which changed rows are found", by_intent=True)
            return VerifiedTable(label, standing.at.ts, [pair if isinstance(pair, NotCompared) else no_key])
        keys = list(keys_of(pair, images))
        for first in range(0, len(keys), _AT_ONCE):
            TableReader(pair, standing.pairs[0]).compare_keys(keys[first : first + _AT_ONCE], tally)
        self._require_no_ddl(name, standing)
        return VerifiedTable(label, standing.at.ts, pair.left_out, tally)

    def _next(self, name: TableName, standing: StandingReaders, so_far: "_SoFar") -> RoundDone | VerifiedTable:
        """Compare the next round of a table."""
        label, ts = ".".join(name), standing.at.ts
        if so_far.standing is not standing:
            made = self._pair(name, standing)
            if isinstance(made, NotCompared):
                self._require_no_ddl(name, standing)
                return VerifiedTable(label, ts, [made])
            so_far.goes_on(standing, made, self._id(name, standing))
        pair, tally = so_far.pair, so_far.tally
        assert pair is not None
        if not pair.key:
            tally = Tally()
            TableReader(pair, standing.pairs[0]).compare_all(tally)
            ddls = self._require_no_ddl(name, standing)
            return VerifiedTable(label, ts, pair.left_out, tally, pair.target.label, ts, ddls, so_far.table_id)
        since = time.monotonic()
        ranges = list(self._ranges(pair, so_far.end, standing))
        parts = self._compared(pair, ranges, standing, tally)
        ddls = self._require_no_ddl(name, standing)
        so_far.add(parts, ranges)
        self.pace.after(sum(part.rows for part in parts), time.monotonic() - since)
        if so_far.end:
            return RoundDone(label, ts, tally, so_far.equal)
        return VerifiedTable(label, ts, pair.left_out, tally, pair.target.label, so_far.equal.ts, ddls, so_far.table_id)

    def _pair(self, name: TableName, standing: StandingReaders) -> TablePair | NotCompared:
        upstream, target = standing.pairs[0].upstream, standing.pairs[0].target
        with unlocked(target):
            recorded = remarkable(target, self.apply.checkpoint_schema, self.cluster_id)
            standard = Standard(self.apply, dialect_of(target, self.apply), upstream.flavour, recorded)
            intent = Intent(load_frozen(target, self.apply, self.cluster_id), standard, self._selection)
        to = self._selection.routes.target(*name)
        there: Mapping[TableName, TargetTable] = read_tables(upstream, [name])
        if name not in there:
            return NotCompared(f"the upstream has no such table any more at {standing.at.ts}", by_intent=True)
        here = read_tables(target, [(to.schema, to.name)]).get((to.schema, to.name))
        return pair_of(there[name], here, intent)

    def _compared(self, pair: TablePair, ranges: Sequence[KeyRange], standing: StandingReaders, tally: Tally) -> list[Tally]:
        """Compare ranges, each by another pair of readers."""
        parts = [Tally(differences=dict(tally.differences)) for _ in ranges]
        with ThreadPoolExecutor(len(ranges), "verify") as pool:
            readers = [TableReader(pair, both) for both in standing.pairs]
            done = [pool.submit(r.compare_range, within, part) for r, within, part in zip(readers, ranges, parts, strict=False)]
            for one in done:
                one.result()
        return parts

    def _ranges(self, pair: TablePair, begin: Key, standing: StandingReaders) -> Iterator[KeyRange]:
        """The next range for each pair of readers; the table's last range is open."""
        session: Session = standing.pairs[0].upstream
        for _ in standing.pairs:
            end = boundary(session, pair.upstream, KeyRange("", begin), self.pace.size)
            yield KeyRange("", begin, end if end != begin else ())
            if not end or end == begin:
                return
            begin = end

    def _require_no_ddl(self, name: TableName, standing: StandingReaders) -> tuple[int, int]:
        """Check that no DDL of the stream has begun since S that may change the table: its intent would be recorded, before it ran. The list of DDLs."""
        ddls, names = self.readers.ddls(standing.newest), {name[1], self._selection.routes.target(*name).name}
        if ddls != standing.at.ddls and any(may_concern(*texts, names) for texts in self.readers.ddls_since(standing)):
            raise TableChanged("a DDL ran while the table was read")
        return ddls


class _SoFar:
    """How far a table is compared."""

    def __init__(self, equal: EqualRows | None) -> None:
        self.standing: StandingReaders | None = None
        """With which the pair was made."""
        self.pair: TablePair | None = None
        self.tally = Tally(rows=equal.rows if equal else 0)
        self.equal = equal or EqualRows((), (), 0, 0)
        self.end = self.equal.end
        """Of what is compared, exclusive."""
        self.table_id = 0

    def goes_on(self, standing: StandingReaders, pair: TablePair, table_id: int) -> None:
        """The next rounds are read by these readers. Ranges of another table or key say nothing of this one's, and rows that were compared by other columns nothing of these."""
        columns = [*(pair.columns[place] for place in pair.key), *pair.columns]
        key = [f"table {table_id}", f"key of {len(pair.key)}"]
        key += [f"{one.name} {one.type} {one.collation}" for column in columns for one in (column.upstream, column.target)]
        if list(self.equal.key) != key or (self.tally.differing and self.pair != pair):
            self.equal, self.end, self.tally = EqualRows(key, (), 0, standing.at.ts), (), Tally()
        self.standing, self.pair, self.table_id = standing, pair, table_id

    def add(self, parts: Sequence[Tally], ranges: Sequence[KeyRange]) -> None:
        """A round is over."""
        for part, within in zip(parts, ranges, strict=True):
            if self.end == self.equal.end and part.differences.keys() <= self.tally.differences.keys() and not part.unlisted:
                self.equal = replace(self.equal, end=within.end, rows=self.equal.rows + part.rows)
            self.tally.add(part)
            self.end = within.end


def in_vain(name: str, why: str) -> VerifiedTable:
    """A table that was read ``TRIES`` times. ``why``: the last error."""
    return VerifiedTable(name, 0, [NotCompared(f"read {TRIES} times in vain: {why}", by_intent=False)])


def tables_in(session: Session, schema: str) -> Iterator[TableName]:
    """The tables of a database."""
    found = session.query("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s ORDER BY 1", [schema])
    return ((schema, as_text(table)) for table, kind in found if as_text(kind).upper() not in _NO_TABLES)


def upstream_names(session: Session, filters: TableFilter) -> dict[TableName, int]:
    """The tables that filters keep, with about how many rows each has; 0: the upstream does not say."""
    found = session.query("SELECT table_schema, table_name, table_type, table_rows FROM information_schema.tables ORDER BY 1, 2")
    names = {
        (as_text(schema), as_text(table)): int(rows or 0) for schema, table, kind, rows in found if as_text(kind).upper() not in _NO_TABLES
    }
    return {name: rows for name, rows in names.items() if is_replicated(name, filters)}


def is_replicated(name: TableName, filters: TableFilter) -> bool:
    """Whether the filters keep a table, and it is not the server's own."""
    return name[0].lower() not in _OF_THE_SERVER and filters.keeps(*name)


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns, if there are any, is about ``db.table``."""
    return not patterns or any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)
