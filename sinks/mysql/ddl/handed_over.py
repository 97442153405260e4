"""DDLs in a span of which another Drainer may have applied a part: this DDL, and later ones, may have been executed already. [db]

A real Drainer records no intent. After a crash it executes the DDLs behind its checkpoint again and ignores certain errors by number, whatever the
statement was (drainer.md 5.6). Here these numbers are accepted only in this span.

    EXCHANGE PARTITION        cannot be decided: executed again it would put the rows back
    RENAME                    executed if only the new names are there, to be executed if only the old names are there; otherwise undecided. If this
                              span has just made the old tables again, they are dropped and the RENAME counts as executed
    RECOVER TABLE             executed if the table is there; otherwise undecided: the span may have dropped another table, which the target would restore
    ADD INDEX, FOREIGN KEY    executed if the table has it: without a name, a second index would be made
    CREATE TABLE              an existing table is accepted if it is equal, or if a later DDL of the history explains the difference
    DROP, CHANGE, MODIFY      not of a column that a later DDL has given this name: another Drainer has dropped or renamed the one, and renamed the other
    all others                executed; an error that says "already so" is accepted

Promises: reads only.
"""

from collections.abc import Callable, Collection

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.execution_check import shows, unlike
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.target import Target

_EXISTS_TABLE = 1050
_ALREADY_SO = frozenset({1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1091, 1146, 1176, 1493, 1507, 1517, 4091, 4092})
"""It exists, or does not exist any more: database, table, column, key, partition, sequence, view."""
_TWICE = frozenset({JobType.ADD_INDEX, JobType.ADD_FOREIGN_KEY, JobType.MULTI_SCHEMA_CHANGE})
"""These may succeed a second time, and make something twice."""


class HandedOver:
    """One DDL of that span."""

    def __init__(self, session: Target, subject: Subject, dialect: Dialect, history: SchemaHistory) -> None:
        self._session = session
        self._subject = subject
        self._dialect = dialect
        self._history = history

    def made_again(self, made_since: Callable[[int], bool]) -> bool:
        """Whether a RENAME was executed, and then this program created its old names again, for a CREATE TABLE before it in the
        span. Then the renamed tables have all their rows. ``made_since``: whether this program has executed the job of this id there.
        """
        subject = self._subject
        if subject.job.kind.effect is not JobEffect.RENAMES or self._renamed() is not None:
            return False
        made = [self._history.jobs_of_table(t.table_id, 0, self._history.newest_version)[:1] for t in subject.before]
        old, new = {(t.schema, t.name) for t in subject.before}, {(t.schema, t.name) for t in subject.after}
        fresh = all(jobs and jobs[0].kind.makes_tables and made_since(jobs[0].id) for jobs in made)
        return fresh and not old & new and all(column_names(self._session, *name) for name in new)

    def undecided(self) -> str:
        """Why a person must say whether the DDL was executed; empty if that can be told."""
        job = self._subject.job
        way_out = "check the target, execute the DDL by hand if it was not executed, and then skip it"
        if job.kind.effect is JobEffect.EXCHANGES:
            return f"another Drainer may have executed it before it crashed, and executing it again would put the rows back: {way_out}"
        if job.kind.effect is JobEffect.RENAMES and self._renamed() is None:
            return f"another Drainer may have executed it before it crashed, and the names on the target do not show it: {way_out}"
        if job.kind.effect is JobEffect.RESTORES and not self._restored():
            return f"another Drainer may have dropped or truncated a later table of that name, and the target may then restore other rows: {way_out}"
        return ""

    def executed(self) -> bool:
        """Whether the target shows that it was executed."""
        job = self._subject.job
        if job.kind.effect is JobEffect.RENAMES:
            return bool(self._renamed())
        if job.kind.effect is JobEffect.RESTORES:
            return self._restored()
        return job.type in _TWICE and shows(self._session, self._subject, self._dialect)

    def already_so(self, error: ApplyError, made: TableAt | None) -> bool:
        """Whether the target refuses the DDL, which makes the table ``made``, because it, or a later one, was executed."""
        kind = self._subject.job.kind
        if kind.makes_tables and error.errno == _EXISTS_TABLE:
            return made is not None and self._stands(made)
        return kind.effect is not JobEffect.RENAMES and error.errno in _ALREADY_SO

    def another_by_now(self, name: str, there: Collection[str]) -> bool:
        """Whether the target's column of this name, which the DDL changes, is another one, under the name that a later DDL has given it.

        ``there``: lower-case names of the target's columns.
        """
        old, new = self._subject.old, self._subject.new
        if old is None or new is None:
            return False
        gone = {c.id for c in visible(new.info) if c.name.lower() not in there} & {c.id for c in visible(old.info)}
        later = self._history.jobs_of_table(new.table_id, self._subject.job.version, self._history.newest_version) if gone else ()
        tables = (table for job in later if (table := self._history.table_at(new.table_id, job.version)) is not None)
        return any(c.id in gone and c.name.lower() == name.lower() for table in tables for c in visible(table.info))

    def _stands(self, table: TableAt) -> bool:
        """Whether the existing table is the table that the DDL creates, or what later DDLs have made of it."""
        if self._history.jobs_of_table(table.table_id, self._subject.job.version, self._history.newest_version):
            return True
        return not unlike(self._session, self._subject, self._dialect, table)

    def _restored(self) -> bool:
        new = self._subject.new
        return new is not None and bool(column_names(self._session, new.schema, new.name))

    def _renamed(self) -> bool | None:
        """Whether the tables have their new names; None: some have, or old and new names are the same ones."""
        old = {(t.schema, t.name) for t in self._subject.before}
        new = {(t.schema, t.name) for t in self._subject.after}
        gone, made = old - new, new - old
        if not gone and not made:
            return None if len(old) > 1 else False
        there = {name for name in gone | made if column_names(self._session, *name)}
        return {frozenset(gone): False, frozenset(made): True}.get(frozenset(there))
