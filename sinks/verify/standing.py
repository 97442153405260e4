"""Readers of both sides that stand at one S: what they read is the same moment of the upstream. [db]

    lease row           SELECT ... FOR UPDATE NOWAIT: no transaction that writes is open. Taken: again after 50 ms
    N readers           START TRANSACTION WITH CONSISTENT SNAPSHOT; the lock is released at once
    each reader         reads the record in its own snapshot: all are the same, consistent, and no DDL is half done. If not: again
    N readers upstream  ``SnapshotSource.at(S)``

At a TiDB all readers of the target set ``tidb_snapshot`` to one timestamp; no lock is needed.

    a repair            holds the lease row for one transaction, and reads upstream at the S that the record in it says (``holding``)

Promises: nothing is written. The lock never waits, so no part of a batch waits behind it. A reader holds a table's metadata lock for one ``unlocked`` block.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, NotUsableYet, SnapshotCollected
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyRecord
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, collected_words
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, REFUSED, table_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import StateTable
from pyspark_tidb_binlog.sinks.mysql.target import as_text

SETTLE_SECONDS = 60.0
"""How long a target may be half applied, or have a DDL under way, before the Drainer is asked for a rest, and again before this is an error."""
REST_SECONDS = 60.0
MOST_SECONDS = 240.0
"""After which readers are replaced by others at a newer S: TiDB keeps old versions for ``tidb_gc_life_time``, 10 minutes by default."""
NEARER = "Verify when the {side} is nearer to the present, or raise tidb_gc_life_time"
_MOMENT = 0.05
_SECONDS = 3600.0
"""How long one answer may take: that for a table without a key is about all of its rows."""
_IDLE_SECONDS = 600.0
"""After how long the target closes a reader that nobody uses, which may have a snapshot."""
_BUSY = "a transaction that writes is always open"
_NO_TABLE = 1146
_TAKEN = frozenset({1205, 3572})
"""The row is locked: MariaDB, MySQL."""
_SNAPSHOT = "START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT"
STATEMENTS: dict[Flavour, tuple[str, str]] = {
    # In any other isolation level the server ignores WITH CONSISTENT SNAPSHOT.
    Flavour.MARIADB: ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", _SNAPSHOT),
    Flavour.MYSQL: ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", _SNAPSHOT),
    Flavour.TIDB: ("SET SESSION autocommit = 1", "SET @@SESSION.tidb_snapshot = '{ts}'"),
}
"""How a reader of the target is opened, and how it takes its snapshot."""
LOCK = "SELECT life FROM {lease} WHERE cluster_id = %s"
NO_WAIT = " FOR UPDATE NOWAIT"
"""Not at a TiDB."""
SHORTLY = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"
"""Whoever makes the holder of the lease row wait, by a lock on another row, makes the stream wait. Not at a TiDB."""
NOW = "SELECT @@tidb_current_ts"
DDLS = "SELECT COUNT(*), COALESCE(SUM(CRC32(CONCAT_WS(',', job_id, state, commit_ts, began, ended))), 0) FROM {ddls} WHERE cluster_id = %s"
STATES = "SELECT job_id, state, commit_ts, began, ended FROM {ddls} WHERE cluster_id = %s"
UNSETTLED = "SELECT job_id, state FROM {ddls} WHERE cluster_id = %s AND job_id <> 0 AND state <> %s AND (state = %s OR commit_ts > %s OR (early = 1 AND version > %s)) LIMIT 1"


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The record in one snapshot of the target."""

    ts: int
    """S: the target in this snapshot is the upstream at it, if ``unsettled`` is empty."""
    ddls: tuple[int, int]
    """Number and checksum of the recorded DDLs: another pair is another list."""
    unsettled: str
    """Why the snapshot is no copy of any moment, in words."""


@dataclass(frozen=True, slots=True)
class SidePair:
    """One reader of each side."""

    upstream: Session
    target: Session


@dataclass(frozen=True, slots=True)
class StandingReaders:
    """Readers of both sides at the same S."""

    at: SnapshotRecord
    pairs: tuple[SidePair, ...]
    newest: Session
    """Reads what there is now at the target."""
    opened_at: float


class _Patience:
    """Waits for a target that is no copy of a moment. Batches may follow each other so closely that it is none between two looks: then the Drainer is asked for a rest."""

    def __init__(self, rest: Callable[[float], str], pause: Callable[[float], None]) -> None:
        self._rest, self._pause = rest, pause
        self._until = time.monotonic() + SETTLE_SECONDS
        self._answer: str | None = None
        """To the question for a rest; None: it was not asked."""

    def __enter__(self) -> "_Patience":
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer == "":
            self._rest(0.0)

    def wait(self, words: str, seconds: float) -> None:
        """Wait a moment. ``words``: why the target is none."""
        late = time.monotonic() > self._until
        if late and self._answer is None:
            self._answer, self._until = self._rest(REST_SECONDS), time.monotonic() + SETTLE_SECONDS
        elif late or self._answer:
            asked = f" The Drainer was asked to rest: {self._answer}." if self._answer else ""
            raise NotUsableYet(
                f"the target is no copy of any moment for {SETTLE_SECONDS:.0f} s: {words}. Verify when the Drainer has finished this. If the Drainer is "
                f"stopped, start it.{asked}"
            )
        self._pause(seconds)


class Readers:
    """Opens readers again and again, each time at the newest S."""

    def __init__(
        self,
        config: DrainerConfig,
        cluster_id: int,
        source: SnapshotSource,
        count: int,
        rest: Callable[[float], str] = lambda seconds: "",
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Accesses nothing. ``count``: pairs of sessions. ``rest``: asks the Drainer to begin no batch for so many seconds; why it does not, in words."""
        self._config = config
        self._cluster_id = cluster_id
        self._source = source
        self._count = count
        self._rest = rest
        self._pause = pause
        schema = config.apply.checkpoint_schema
        self._checkpoint = TargetCheckpoint(cluster_id, schema, table_in_target(config))
        self._state = StateTable(schema, cluster_id)
        self._lock = LOCK.format(lease=f"{quote_name(schema)}.`spark_lease`")
        self._ddls = table_of(config.apply)

    @contextmanager
    def standing(self) -> Iterator[StandingReaders]:
        """Readers at one S.

        Raises:
            NotUsableYet: the target is half applied for ``SETTLE_SECONDS``, or no Drainer of this project writes to it.
            SnapshotCollected: the stream is so far behind that TiDB does not keep S any more.
        """
        target = replace(self._config.target, read_timeout=max(self._config.target.read_timeout, _SECONDS))
        apply = replace(self._config.apply, lease_timeout=_IDLE_SECONDS)
        with ExitStack() as stack:
            newest, *targets = [stack.enter_context(connect(target, apply)) for _ in range(self._count + 1)]
            newest.execute("SET SESSION autocommit = 1")
            at = self._stood(newest, targets)
            try:
                upstreams = [stack.enter_context(self._source.at(at.ts)) for _ in range(self._count)]
            except SnapshotCollected as error:
                raise SnapshotCollected(collected_words(at.ts, self._source.where, NEARER.format(side="stream"))) from error
            yield StandingReaders(at, tuple(map(SidePair, upstreams, targets)), newest, time.monotonic())

    def table_ids(self, upstream: Session) -> dict[tuple[str, str], int]:
        """``SnapshotSource.table_ids``."""
        return self._source.table_ids(upstream)

    def ddls(self, session: Session) -> tuple[int, int]:
        """Number and checksum of the recorded DDLs, in the session's snapshot."""
        ((count, total),) = session.query(DDLS.format(ddls=self._ddls), [self._cluster_id])
        return int(count), int(total)

    def ddls_since(self, standing: StandingReaders) -> list[tuple[str, str]]:
        """What TiDB wrote, and what the target was given, of each DDL whose record is another now than at S."""
        sessions, found = (standing.newest, standing.pairs[0].target), list[tuple[str, str]]()
        with unlocked(sessions[1]):
            states = [{tuple(row) for row in one.query(STATES.format(ddls=self._ddls), [self._cluster_id])} for one in sessions]
            jobs = sorted({row[0] for row in states[0] ^ states[1]})
            texts = f"SELECT query, executed FROM {self._ddls} WHERE cluster_id = %s AND job_id IN ({', '.join(['%s'] * len(jobs))})"
            for one in sessions if jobs else ():
                found += [(as_text(query), as_text(given or "")) for query, given in one.query(texts, [self._cluster_id, *jobs])]
        return found

    @contextmanager
    def holding(self) -> Iterator[tuple[SnapshotRecord, SidePair]]:
        """The target's record, and a reader of each side at its S, while the stream writes nothing. The block commits the target's transaction, or rolls it back.

        Raises:
            NotUsableYet: as ``standing``.
            SnapshotCollected: as ``standing``.
        """
        upstreams = self._source.within(self._config.target.read_timeout)
        with upstreams.newest():
            pass  # or the stream would wait for an upstream that does not answer
        with connect(self._config.target, self._config.apply) as session:
            if session.flavour is not Flavour.TIDB:
                session.execute(SHORTLY)
            at = self._held(session)
            with upstreams.at(at.ts) as upstream:
                yield at, SidePair(upstream, session)

    def _held(self, session: Session) -> SnapshotRecord:
        with _Patience(self._rest, self._pause) as patience:
            while True:
                words, wait = _BUSY, _MOMENT
                if self._locked(session):
                    at = self._record(session)
                    if not at.unsettled:
                        return at
                    words, wait = at.unsettled, 10 * _MOMENT
                session.rollback()
                patience.wait(words, wait)

    def _stood(self, newest: Session, targets: Sequence[Session]) -> SnapshotRecord:
        for session in targets:
            session.execute(STATEMENTS[session.flavour][0])
        with _Patience(self._rest, self._pause) as patience:
            while True:
                words, wait = _BUSY, _MOMENT
                if self._take(newest, targets):
                    found = {self._read(session) for session in targets}
                    words, wait = next((at.unsettled for at in found if at.unsettled), ""), 10 * _MOMENT
                    if len(found) == 1 and not words:
                        return found.pop()
                patience.wait(words or "its snapshots differ", wait)

    def _take(self, newest: Session, targets: Sequence[Session]) -> bool:
        """Take the snapshots while no transaction that writes is open; False: one is."""
        try:
            if not self._locked(newest):
                return False
            ts = newest.query(NOW)[0][0] if newest.flavour is Flavour.TIDB else 0
            for session in targets:
                session.execute(STATEMENTS[session.flavour][1].format(ts=ts))
        finally:
            newest.rollback()
        return True

    def _locked(self, session: Session) -> bool:
        """Begin a transaction that has the lease row, so that no transaction that writes is open; False: one is."""
        session.execute("BEGIN")
        try:
            # At a TiDB the later one of two transactions with the lease row fails when it commits.
            rows = session.query(self._lock + (" FOR UPDATE" if session.flavour is Flavour.TIDB else NO_WAIT), [self._cluster_id])
        except ApplyError as error:
            if error.errno == _NO_TABLE:
                rows = []
            elif error.errno in _TAKEN:
                return False
            else:
                raise
        if not rows or rows[0][0] == lease.PROMOTED:
            why = "applications write to it: it is promoted" if rows else "no Drainer of this project has written to it yet"
            raise ConfigError(f"the target is no copy of an upstream: {why} (cluster {self._cluster_id})")
        return True

    def _read(self, session: Session) -> SnapshotRecord:
        with unlocked(session):
            return self._record(session)

    def _record(self, session: Session) -> SnapshotRecord:
        found = self._checkpoint.load(session)
        if found is None:
            return SnapshotRecord(0, (0, 0), "it has no checkpoint")
        state = self._state.read(session)
        whole = found.consistent and state.unfinished(found.commit_ts) is None and not state.relayed_upto(found.commit_ts)
        rows = session.query(UNSETTLED.format(ddls=self._ddls), [self._cluster_id, REFUSED, INTENT, found.commit_ts, found.schema_version])
        half = "" if whole else f"a span behind {found.commit_ts} is half applied"
        copy = CopyRecord(session, self._cluster_id, self._config.apply.checkpoint_schema).load()
        if copy is not None and copy.begun:
            half = half or "tables are being copied (--bootstrap)"
        ddl = f"the DDL of job {rows[0][0]} is {'under way' if rows[0][1] == INTENT else 'executed before its time'}" if rows else ""
        return SnapshotRecord(found.commit_ts, self.ddls(session), half or ddl)


@contextmanager
def unlocked(session: Session) -> Iterator[None]:
    """Read in the block; afterwards the session holds no metadata lock, so that DDLs need not wait for its snapshot to end."""
    if session.autocommit:
        yield
        return
    session.execute("SAVEPOINT verified")
    yield
    session.execute("ROLLBACK TO SAVEPOINT verified")
