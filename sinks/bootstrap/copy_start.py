"""Begins the copy that is asked for, or continues the one that is recorded, and refuses before anything is changed; the target of a copy. [db]"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import TABLE, CopiedTable, CopyHead, CopyKind, CopyRecord, RecordedCopy
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, require_same
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables, not_empty, require_up_to_date
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import fenced
from pyspark_tidb_binlog.sinks.mysql.retry_policy import Attempt, patient, retrying
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, connect, session_for
from pyspark_tidb_binlog.sinks.mysql.structure import TableName
from pyspark_tidb_binlog.sinks.routing.replicated import Selection


class CopyTarget:
    """One target, for one thread. Whatever it gives belongs to the latest of its ``attempts``."""

    def __init__(self, config: DrainerConfig, held: Lease, pause: Callable[[float], None]) -> None:
        """``pause``: between two attempts; it may raise."""
        self.apply = config.apply
        self.lease = held
        self.sessions = KeptSessions(lambda: connect(config.target, config.apply), config.apply.lease_timeout)
        self._ddl_sessions = KeptSessions(lambda: connect(config.target, config.apply, for_ddls=True), config.apply.lease_timeout)
        self.policy = patient(config.apply.retry_seconds, pause)
        self._attempt = Attempt(self.policy)

    def attempts(self) -> Iterator[Attempt]:
        """Attempts for ``retry-seconds``; each one goes on from the record, as a later life would."""
        for attempt in retrying(self.policy):
            self._attempt = attempt
            yield attempt

    @contextmanager
    def record(self) -> Iterator[CopyRecord]:
        """The record, outside of a transaction."""
        with session_for(self.sessions.use, self._attempt) as session:
            yield CopyRecord(session, self.lease.cluster_id, self.lease.schema)

    @contextmanager
    def transaction(self) -> Iterator[CopyRecord]:
        """The record in a transaction that has checked the lease, and is committed unless the block fails."""
        with fenced(self.sessions.use, self.lease, self._attempt) as session:
            yield CopyRecord(session, self.lease.cluster_id, self.lease.schema)

    @contextmanager
    def tables(self) -> Iterator[TargetTables]:
        """The tables, over a session for DDLs."""
        with session_for(self._ddl_sessions.use, self._attempt) as session:
            yield TargetTables(session, self.apply, self.lease)

    def close(self) -> None:
        """Close the sessions."""
        self.sessions.close()
        self._ddl_sessions.close()


@dataclass(frozen=True, slots=True)
class CopyStart:
    """The start of one copy, of ``tables`` at ``head.ts``."""

    target: CopyTarget
    upstream: SnapshotSource
    selection: Selection
    history: SchemaHistory
    head: CopyHead
    tables: Sequence[TableAt]
    removes: bool
    """Whether a copy that is recorded is given up, even if it is complete."""

    def recorded(self) -> RecordedCopy:
        """What is recorded of the copy then. Tables that filters leave out, and that are half done, stay recorded as such.

        Raises:
            BootstrapRefused: a table has rows that are not the stream's, or is not as the history says (``SchemaMoves``).
        """
        with self.target.record() as record:
            record.ensure()
            found = record.load()
        goes_on = found is not None and not self.removes and found.goes_on_at(self.head)
        to = {(t.schema, t.name): self.destination(t) for t in self.tables}
        # A table that has another route since, and nothing at the target, is planned again.
        known = {t.key: t for t in found.tables if t.touched or t.to == to.get(t.key, t.to)} if found is not None and goes_on else {}
        self._require_as_recorded(known, to)
        former = self._given_up(found, to) if found is not None and not goes_on else {}
        planned = self._planned([t for t in self.tables if (t.schema, t.name) not in known], to, former)
        left = [t for key, t in former.items() if key not in to] if self.head.kind is CopyKind.FIRST else []
        # What a filter leaves out half done is copied by whoever takes it in again.
        left += [t for t in found.unfinished if t.key not in to and not self.keeps(t)] if found is not None else []
        with self.target.transaction() as record:
            if not goes_on:
                record.begin(self.head, [*planned, *(t.as_given_up() for t in left)])
            elif planned:
                record.add(self.head, planned)
        return self.load()

    def load(self) -> RecordedCopy:
        """What is recorded of the copy."""
        with self.target.record() as record:
            found = record.load()
        if found is None:
            raise BootstrapRefused(f"{self.target.lease.schema}.{TABLE} has lost its rows; start with --bootstrap-restart")
        return found

    def destination(self, table: TableAt) -> str:
        """The table as the routes make it, for the record."""
        routes = self.selection.routes
        target = routes.target(table.schema, table.name)
        return json.dumps([target.schema, target.name, sorted(routes.columns_of(table)), routes.condition_of(table)])

    def _planned(self, fresh: Sequence[TableAt], to: Mapping[TableName, str], former: Mapping[TableName, CopiedTable]) -> list[CopiedTable]:
        """The record of tables that nothing was copied of; ``former``: what a copy that is not continued has at the target."""
        planned = []
        for table, rows in zip(fresh, self._sizes(fresh), strict=True):
            key = table.schema, table.name
            # What is there under another name, which a route gives it since, is somebody's.
            old = next((t for t in former.values() if t.key == key and t.to == to[key]), CopiedTable(*key))
            planned.append(CopiedTable(*key, rows=rows, to=to[key], made=old.made, given_up=old.touched))
        with self.target.tables() as tables:
            if self.head.kind is CopyKind.FIRST:
                if filled := tables.rows_in(t.place for t in planned if not t.given_up):
                    raise BootstrapRefused(not_empty(filled))
            else:
                kept = [table for table, t in zip(fresh, planned, strict=True) if not t.made]
                require_up_to_date(tables.session, self.target.apply, self.target.lease, self.history, kept)
        return planned

    def _sizes(self, tables: Sequence[TableAt]) -> list[int]:
        """About how many rows each table has, which is as the history says."""
        if not tables:
            return []
        with self.upstream.at(self.head.ts) as source:
            ids = self.upstream.table_ids(source)
            for table in tables:
                require_same(table, self.upstream.columns(source, table), ids.get((table.schema.lower(), table.name.lower()), 0))
            return [self.upstream.size(source, table)[0] for table in tables]

    def _given_up(self, found: RecordedCopy, to: Mapping[TableName, str]) -> dict[TableName, CopiedTable]:
        """The objects at the target of a copy that is not continued. Tables that are done and joined belong to the stream, unless they are to be removed."""
        first = found.head.kind is CopyKind.FIRST
        if not (found.begun or (self.removes and first and self.head.kind is CopyKind.FIRST)):
            return {}
        # A table of a stream that is done has been the stream's since: it is emptied, and keeps what the target has added to it.
        tables = found.tables if first or self.head.kind is CopyKind.FIRST else found.unfinished
        # The stream may have dropped what the upstream has no more, and somebody else may have made one of that name.
        ours = (t for t in tables if not found.joined or t.key in to)
        return {t.key: t for t in (*ours, *found.others) if t.touched and self.keeps(t)}

    def _require_as_recorded(self, known: Mapping[TableName, CopiedTable], to: Mapping[TableName, str]) -> None:
        """Check that the copy that continues is about the same tables and routes as now, and that the target still has what was copied."""
        with self.target.tables() as tables:
            tables.require_still_there(t for key, t in known.items() if key in to)
        gone = [".".join(key) for key, t in known.items() if key not in to and not t.given_up and self.keeps(t)]
        if gone:
            raise BootstrapRefused(
                f"{', '.join(gone[:5])}: a copy of this table began at {self.head.ts}, but the DDL history does not have the table. Start with --bootstrap-restart"
            )
        # What is to be emptied, or was made, has the name that it had then: under another one is somebody's.
        moved = [".".join(key) for key, t in known.items() if t.to != to.get(key, t.to)]
        if moved:
            raise BootstrapRefused(
                f"{', '.join(moved[:5])}: copied, wholly or in part, at {self.head.ts} with another [[spark.route]] (name, columns or where). Restore that route. Or start "
                "with --bootstrap-restart; unless it is a first load, name the tables again with --bootstrap"
            )

    def keeps(self, table: CopiedTable) -> bool:
        """Whether filters let the table in."""
        return self.selection.tables.keeps(table.schema, table.name)
