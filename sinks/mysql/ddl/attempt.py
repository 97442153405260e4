"""Executes the statements of one DDL on the target, down the ladder of forms where it refuses them. [db]

    the statement --refused--> in a simpler form, as long as a row of QUIRKS has one --refused--> what rows need, then each other part by itself --refused--> the policy

Promises: ``DdlRecord`` names what is left out before the statement in its place is sent. An error about rows, names, rights or room (``OF_NO_DEFINITION``) leaves
nothing out. After a crash the next call reads the target and makes the missing parts.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, ServerRefused
from pyspark_tidb_binlog.schemas.history import Job, JobType, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, ModifyColumn, TableChange
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import (
    UNSEEN,
    Alteration,
    OwnColumn,
    Presence,
    altered_by,
    as_there,
    by_text,
    null_fills,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DONE, LEFT_OUT, QUARANTINED, SKIPPED, DdlOutcome, DdlRecord
from pyspark_tidb_binlog.sinks.mysql.ddl.execution_check import HandedOver, other_values, shows, snapshot_of, unlike
from pyspark_tidb_binlog.sinks.mysql.ddl.ladder import each_by_itself, form, left_out, lower, parts_of
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import may_overflow
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import Instead, instead_of
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE, FORCE, OF_NO_DEFINITION, SentDdl, around, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot, column_names, is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import joined, sql_kind, statements_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import declare, partition_by
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Rewritten
from pyspark_tidb_binlog.sinks.mysql.ddl.views import stands, view_waits
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import DdlClock, zone_setting
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import in_transaction, with_settings

_log = logging.getLogger(__name__)


def why_not_restored(job: Job, flavour: Flavour) -> str:
    """Why a job that restores rows cannot be replicated; empty for all others, and where the target is a TiDB, which keeps dropped tables for a while."""
    if job.kind.effect is not JobEffect.RESTORES or (job.type == JobType.RECOVER_TABLE and flavour is Flavour.TIDB):
        return ""
    return f"{job.type_name} cannot be replicated: it restores rows that neither the target nor any binlog has"


@dataclass(frozen=True, slots=True)
class DdlLeft:
    """What is left of an ALTER, and what makes it."""

    altered: Alteration
    changes: tuple[TableChange, ...]
    table: TableAt
    own: Mapping[str, OwnColumn] | None = None
    """The target's columns; None: they are as the upstream's."""
    text: str = ""
    """A statement in place of the one for ``changes``."""
    losses: tuple[str, ...] = ()
    unseen: bool = False
    """The target's table is read where it refuses a statement."""
    bare: bool = False
    """Only what rows need is left."""

    @property
    def statements(self) -> list[str]:
        """The statements in their order; none if nothing is left."""
        if self.text:
            return [self.text]
        found, dialect = self.altered.statements(self.table, self.changes, self.own), self.altered.dialect
        grows = dialect.flavour is Flavour.MARIADB and any(isinstance(c, AddColumn | ModifyColumn) for c in self.changes)
        return [sql + FORCE for sql in found] if grows and may_overflow(self.altered.new, dialect) else found

    @property
    def sql(self) -> str:
        """Them together, for records."""
        return "; ".join(self.statements)

    @property
    def needed(self) -> "DdlLeft":
        """Only what rows need."""
        return replace(self, changes=tuple(c for c in self.changes if self.altered.is_needed(c)), text="", bare=True)


class DdlAttempt:
    """One call for one DDL, in which it is executed."""

    def __init__(
        self, session: Target, row: DdlRecord, subject: Subject, dialect: Dialect, config: ApplyConfig, handed_over: HandedOver | None
    ) -> None:
        """Begin with the step of ``row``, whose tables at the target are ``subject``; ``handed_over``: another Drainer may have executed it."""
        self._session = session
        self._row = row
        self._step = row.step
        self._subject = subject
        self._dialect = dialect
        self._config = config
        self._handed_over = handed_over
        self.never = why_not_restored(subject.job, dialect.flavour)
        """Why it cannot be executed at all; empty if it can."""
        self.clock = DdlClock(subject)
        """For statements, with the definitions in the form that the target takes; comparisons with the target use the upstream's."""
        self.unfinished: SchemaSnapshot | None = None
        """The target before an attempt with unknown outcome: what was not there then was made by that attempt."""

    def frozen_words(self, state: str, sql: str) -> str:
        """What a DDL that is not executed does to its table."""
        given = self._subject.given
        why = f"because {given.why}" if given.form is DdlForm.FROZEN else "so the table is frozen on the target"
        return f"{self._subject.label}: DDL {state} at commit_ts {self._step.commit_ts}, {why}: {sql}"

    def whole(self, altered: Alteration) -> DdlLeft:
        """All changes of the job: the target has none of them."""
        text = joined(self.statements()) if by_text(altered, self.clock.subject) else ""
        return DdlLeft(altered, altered.changes, self._table, text=text)

    def lacking(self, altered: Alteration) -> DdlLeft:
        """The changes that the target does not have; from here on its table is what an earlier DDL has left it."""
        there = read_whole(self._session, self._table.schema, self._table.name)
        if there is None:
            return self.whole(altered)
        subject, lost = as_there(self.clock.subject, there)
        self.clock = replace(self.clock, subject=subject)
        altered = altered_by(subject, self._dialect) or altered
        presence = Presence(altered, there)
        left = presence.missing()
        if self._handed_over is not None:
            names = {c.name.lower() for c in there.columns}
            left = tuple(c for c in left if not self._handed_over.another_by_now(altered.changed_column(c), names))
        if left == altered.changes and by_text(altered, subject):
            return self.whole(altered)
        losses = tuple(f"{subject.label}: {loss}" for loss in lost)
        return DdlLeft(altered, left, self._table, presence.own_columns(), losses=losses)

    @property
    def _table(self) -> TableAt:
        assert self._subject.old is not None
        return self._subject.old

    def _declared(self, altered: Alteration) -> tuple[str, ...]:
        return self.declare(declare(table_name(self._table.schema, self._table.name), altered.filled(), altered.new, self._dialect))

    def execute_left(self, left: DdlLeft, how: str = "nothing") -> DdlOutcome:
        """Execute what is left of an ALTER; ``how``: the outcome where nothing is."""
        added = [c for c in left.altered.changes if isinstance(c, AddColumn)]
        others = self.other_values() if any(c not in left.changes for c in added) else ()
        if left.sql:
            outcome = self._make(left)
        else:
            outcome = DdlOutcome(DONE, how, self._step.query, self._declared(left.altered))
        return outcome if outcome.freezes else replace(outcome, losses=(*left.losses, *outcome.losses, *others))

    def _make(self, left: DdlLeft) -> DdlOutcome:
        if not left.unseen:
            self._fill_nulls()
        for sql in left.statements:
            try:
                self._send(sql)
            except ServerRefused as error:
                return self._otherwise(left, sql, error)
        sql = left.sql
        how = "text" if by_text(left.altered, self.clock.subject) and sql == joined(self.statements()) else "changes"
        return DdlOutcome(DONE, how, sql, self._declared(left.altered))

    def _otherwise(self, made: DdlLeft, sql: str, error: ServerRefused) -> DdlOutcome:
        """The next step of the ladder: the same changes in a simpler form, then what rows need and each other change by itself, then the policy."""
        left = self.lacking(made.altered)
        left = left.needed if made.bare else left
        if made.unseen and left.sql != sql:
            return self.execute_left(left)
        self._row.note_try("changes", sql, error)
        remedy = around(self._sent(sql, error, bare=made.bare))
        if remedy.subject is None and self._handed_over is not None and self._handed_over.already_so(error, None):
            return DdlOutcome(DONE, "nothing", sql)
        if not left.sql:
            _log.warning("the target does not need the DDL at commit_ts %d; its error is ignored: %s", self._step.commit_ts, error)
            return DdlOutcome(DONE, "nothing", sql, self.other_values())
        if remedy.sql:
            self._told(remedy.losses)
            for before in remedy.first:
                self._send(before)
            return self._make(replace(left, text=remedy.sql))
        if remedy.subject is not None:
            self._told(remedy.losses)
            self.clock = replace(self.clock, subject=remedy.subject)
            left = self.lacking(made.altered)
            return self.execute_left(left.needed if made.bare else left)
        if made.bare or error.errno in OF_NO_DEFINITION:
            return self.by_policy(self._step.query.rstrip("; "), str(error), remedy.todo)
        outcome = self.execute_left(left.needed)
        altered = altered_by(self.clock.subject, self._dialect) or left.altered  # the needed ones may have come in another form
        return outcome if outcome.freezes else replace(outcome, losses=(*outcome.losses, *self._parts(self._table, altered)))

    def _parts(self, table: TableAt, altered: Alteration) -> tuple[str, ...]:
        """Make each change that ``table`` lacks by itself; what the target refuses, in words.

        Raises:
            DdlRefused: rows, rights or room are in the way of one, and the policy is ``stop``.
        """
        there = read_whole(self._session, table.schema, table.name)
        if there is None:
            return ()
        presence = Presence(altered, there)
        left = [c for c in presence.missing() if not (altered.is_needed(c) and presence.lack(c) == UNSEEN)]
        return each_by_itself(table, altered, left, presence.own_columns(), partial(self._part, f"{table.schema}.{table.name}"))

    def _part(self, label: str, sql: str) -> tuple[str, ...]:
        try:
            self._send(sql)
        except ServerRefused as error:
            self._row.note_try("part", sql, error)
            if error.errno in OF_NO_DEFINITION and self._config.ddl_policy == "stop":
                self.by_policy(sql, str(error))
            losses = (left_out(sql, error, label),)
            self._told(losses)
            return losses
        return ()

    def statements(self) -> tuple[Rewritten, ...]:
        """The job's statements, of the definitions in the form that the target takes."""
        if self.never:
            return ()
        restored = not self._step.early and self._step.query != self._subject.job.query
        return statements_of(self.clock.subject, self._dialect, restored=restored)

    def snapshot(self, only: TableAt | None = None) -> SchemaSnapshot:
        """The target's tables of the job, or ``only`` the one that it makes: CREATE TABLES may make hundreds."""
        return snapshot_of(self._session, self._subject if only is None else replace(self._subject, after=(only,)))

    def rebuilt(self, now: SchemaSnapshot) -> SchemaSnapshot:
        """The target after what must be rebuilt for the job's statement, which changes no row and no definition."""
        found = around(self._sent(now=now)).first
        for sql in found:
            _log.info(
                "DDL at commit_ts %d: changed first, because the server refuses the statement otherwise: %s", self._step.commit_ts, sql
            )
            self._tried("rebuild", sql)
        return self.snapshot() if found else now

    def execute(self, texts: Sequence[Rewritten], now: SchemaSnapshot) -> DdlOutcome:
        """Execute the job's statements; ``now``: the target before them."""
        given, found = self._subject.given, list[DdlOutcome]()
        if given.form is DdlForm.INFOS and not all(text.by_infos for text in texts):
            return self.by_policy(self._step.query, given.why)
        if not joined(texts):
            return DdlOutcome(DONE, "nothing", "", losses_of(texts))
        for number in range(len(texts)):
            clock = self.clock
            found.append(self._one(number, texts[number], now))
            if found[-1].freezes:
                return found[-1]
            if self.clock is not clock:
                texts = self.statements()
        how = next((how for how in (LEFT_OUT, "derived", "text") if how in {one.how for one in found}), "nothing")
        return DdlOutcome(DONE, how, "; ".join(one.sql for one in found), tuple(loss for one in found for loss in one.losses))

    def _one(self, number: int, text: Rewritten, now: SchemaSnapshot, *, bare: bool = False) -> DdlOutcome:
        """Execute one of the job's statements; ``now``: the target before the first; ``bare``: the table has only what rows need."""
        made = self.made(number)
        try:
            self._send(text.sql)
        except ServerRefused as error:
            self._row.note_try("text", text.sql, error)
            refused = replace(self._sent(text.sql, error, bare=bare), number=number if made is not None else None)
            instead = instead_of(self._session, self._subject, error)
            rows_stay = instead is not None and bool(instead.delete)  # also of a table that another Drainer passed over
            if text.may_fail or (not rows_stay and around(refused).subject is None and self._already_so(error, made)):
                _log.warning("the target does not need the DDL at commit_ts %d; its error is ignored: %s", self._step.commit_ts, error)
                rest = self.completed(made) if self._is_from_here(made) else ()
                return DdlOutcome(DONE, "nothing", text.sql, (*text.losses, *self.other_values(), *rest))
            if made is not None and error.errno == EXISTS_TABLE:
                return self.by_policy(text.sql, f"{error}; {self._in_the_way(made)}", around(self._sent(text.sql, error)).todo)
            if not self.snapshot(made).same_as(now if made is None else now.only(made.schema, made.name)):
                raise
            if (step := lower(refused)) is not None:
                below, losses = step
                self.clock = replace(self.clock, subject=below.subject)
                simpler = form(self.statements()[number], below)
                self._told(losses, simpler.sql)
                return self._one(number, simpler, now, bare=below.bare)
            if instead is not None:
                return self._instead(text.sql, error, instead)
            if self._subject.job.type == JobType.CREATE_VIEW and self._subject.before and error.errno not in OF_NO_DEFINITION:
                self._tried("former", f"DROP VIEW IF EXISTS {table_name(self._subject.schema, self._subject.name)}")
            return self.by_policy(text.sql, str(error), around(refused).todo)
        losses = (*text.losses, *self.declare(*text.then), *(self.completed(made) if bare else ()))
        return DdlOutcome(DONE, "derived" if bare else "text", text.sql, losses)

    def made(self, number: int) -> TableAt | None:
        """The table that the statement makes, in the form that the target was given."""
        after = self.clock.subject.after
        return after[number] if self._subject.job.kind.makes_tables and number < len(after) else None

    def completed(self, made: TableAt | None) -> tuple[str, ...]:
        """Make what a table lacks that this DDL has made of what rows need, here or before a crash; what the target refuses, in words."""
        altered = made and parts_of(made, self._dialect)
        if made is None or not altered:
            return ()
        there, whole = read_whole(self._session, made.schema, made.name), partition_by(made.info, self._dialect)
        divide = bool(whole) and there is not None and not there.partitions
        label = f"{made.schema}.{made.name}"
        divided = self._part(label, f"ALTER TABLE {table_name(made.schema, made.name)} {whole}") if divide else ()
        return (*divided, *self._parts(made, altered))

    def _told(self, losses: Collection[str], sql: str = "") -> None:
        """Commit the losses, and the statement that is sent next. After a crash only this row has them."""
        with in_transaction(self._session):
            self._row.note_told(*losses, sql=sql)

    def _instead(self, sql: str, error: ApplyError, instead: Instead) -> DdlOutcome:
        """What the DDL does to the rows of a table that lacks its partitions."""
        if instead.why_not:
            return self.by_policy(sql, f"{error}; {instead.why_not}")
        if not instead.delete:
            return DdlOutcome(DONE, "nothing", sql, (instead.loss,) if instead.loss else ())
        rows = instead.most
        while rows >= instead.most:
            try:
                with in_transaction(self._session):
                    rows = self._session.execute(instead.delete)
            except ServerRefused as refused:
                self._row.note_try("rows", instead.delete, refused)
                return self.by_policy(sql, f"{error}; {refused}")
        return DdlOutcome(DONE, "derived", instead.delete)

    def _fill_nulls(self) -> None:
        for column, sql in null_fills(self.clock.subject, self._dialect):
            try:
                with with_settings(self._session, zone_setting(self.clock.zone)), in_transaction(self._session):
                    if rows := self._session.execute(sql):
                        self._row.note_told(
                            f"{self._subject.label}: {rows} rows held NULL in {column}, but the upstream has no NULL there. They were updated: {sql}"
                        )
            except ServerRefused as error:
                self._row.note_try("fill", sql, error)

    def declare(self, *then: str) -> tuple[str, ...]:
        """Declare what the statement itself could not, as defaults of added columns. The rows are correct without it, so a refusal is only a loss."""
        then = tuple(filter(None, then))
        if then:
            failpoints.point("after-ddl-fill")
        return tuple(f"{self._subject.label}: left out: {sql}" for sql in then if not self._tried("default", sql))

    def _tried(self, step: str, sql: str) -> bool:
        """Execute what the job can do without; False, and a note, where the target refuses it."""
        try:
            self._send(sql)
        except ServerRefused as error:
            self._row.note_try(step, sql, error)
            return False
        return True

    def _send(self, sql: str) -> None:
        if self._subject.schema and self._subject.job.type not in (JobType.CREATE_SCHEMA, JobType.DROP_SCHEMA):
            self._use()
        with with_settings(self._session, self.clock.settings):
            execute(self._sent(sql))

    def _sent(self, sql: str = "", error: ApplyError | None = None, now: SchemaSnapshot | None = None, *, bare: bool = False) -> SentDdl:
        return SentDdl(self._session, self.clock.subject, self._dialect, sql, error, now, bare=bare)

    def _use(self) -> None:
        if self._session.database == self._subject.schema:
            return  # since ``begin_ddl``
        try:
            self._session.use(self._subject.schema)
        except ServerRefused as error:
            _log.debug("executing the DDL without a current database: %s", error)

    def _already_so(self, error: ApplyError, made: TableAt | None) -> bool:
        """Whether the target already is as the DDL makes it: an existing database, a dropped table, an equal and empty table, ``made``."""
        job, subject = self._subject.job, self._subject
        if job.type == JobType.CREATE_VIEW and subject.new is not None:
            return error.errno == EXISTS_TABLE and (self._handed_over is not None or stands(self._session, subject.new))
        if self._handed_over is not None and self._handed_over.already_so(error, made):
            return True
        kind = sql_kind(job)
        if error.errno in kind.already_so:
            return True
        if made is not None and error.errno == EXISTS_TABLE:
            return not self._in_the_way(made)
        return shows(self._session, subject, self._dialect)

    def other_values(self) -> tuple[str, ...]:
        """What is wrong in rows of columns that the job adds and somebody else has added. Frozen, the table would lack them: so it is a loss then.

        Raises:
            DdlRefused: something is, and the policy is ``stop``.
        """
        if self._handed_over is not None:
            return ()  # rows may have later values
        with with_settings(self._session, zone_setting(self.clock.zone)):
            words = other_values(self._session, self.clock.subject)
        if words and self._config.ddl_policy == "stop":
            self.pass_by("rows", "; ".join(words))
        return words

    def _is_from_here(self, table: TableAt | None) -> bool:
        """Whether an earlier attempt of this DDL has made it."""
        return table is not None and self.unfinished is not None and not self.unfinished.holds(table.schema, table.name)

    def _in_the_way(self, table: TableAt) -> str:
        """Why the existing table of this name cannot serve as the one to be created; empty if it can: it is equal to it and has no rows."""
        if not self._is_from_here(table):
            differing = unlike(self._session, self._subject, self._dialect, table)
            if differing:
                return f"the existing table is a different one: {'; '.join(lack.words for lack in differing)}"
        else:
            names = column_names(self._session, table.schema, table.name)
            if names != tuple(c.name for c in visible(table.info) if c.name in names or not c.generated or c.generated_stored):
                return "the existing table has other columns"
        return "" if is_empty(self._session, table.schema, table.name) else "the existing table is not empty"

    def pass_by(self, step: str, words: str) -> DdlOutcome:
        """Apply the policy without executing anything; the reason is kept in ``tries``."""
        self._row.note_try(step, self._step.query, ApplyError(words))
        return self.by_policy(self._step.query, words)

    def by_policy(self, sql: str, words: str, mending: str = "") -> DdlOutcome:
        """Apply ``spark.ddl-policy`` to a statement that the target takes in no form.

        Raises:
            DdlRefused: the policy is ``stop``.
        """
        step, config = self._step, self._config
        if self._subject.of_views:
            return DdlOutcome(DONE, LEFT_OUT, sql, (view_waits(self._subject.label, words),))
        skipping = f"skip the DDL with syncer.ignore-txn-commit-ts = [{step.skip_ts}], or set spark.ddl-policy to skip or quarantine"
        what = f"DDL of job {step.job.id} on {self._subject.label} at commit_ts {step.commit_ts} refused: {sql!r}: {words}"
        text = f"{what}. {mending or f'Repair the target, or {skipping}'}."
        if config.ddl_policy == "stop":
            self._row.write_refused()
            raise DdlRefused(text)
        _log.warning("%s (policy %s)", text, config.ddl_policy)
        state = SKIPPED if config.ddl_policy == "skip" else QUARANTINED
        return DdlOutcome(state, "policy", sql, (self.frozen_words(state, sql),))


def losses_of(texts: Sequence[Rewritten]) -> tuple[str, ...]:
    """What the statements leave out."""
    return tuple(loss for text in texts for loss in text.losses)
