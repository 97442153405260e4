"""Executes the statements of one DDL on the target, down the ladder of forms where it refuses them (ADR 18). [db]

    the statement --refused--> in a simpler form, as long as a row of QUIRKS has one --refused--> what rows need, then each other part by itself --refused--> the policy

A DDL of the stream takes the steps one by one, because a crash may come between two (``DdlAttempt``). A first load and a rehearsal take them at once (``make``).

Promises: ``DdlRecord`` names what is left out before the statement in its place is sent. An error about rows, names, rights or room (``OF_NO_DEFINITION``) leaves
nothing out. After a crash the next call reads the target and makes the missing parts.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, ServerRefused
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, TableChange
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import AS_UPSTREAM, Alteration, OwnColumn, altered_by, by_changes, by_text
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_plan import Changes, Statements, changes_left, statements
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DONE, LEFT_OUT, QUARANTINED, SKIPPED, DdlOutcome, DdlRecord
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import bare
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import Instead, instead_of, partition_by
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import UNSEEN, Presence, has_all, unlike
from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import null_fills, other_values
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE, OF_NO_DEFINITION, SentDdl, around, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, rewrite, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table, declare
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import DdlStatement, Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import (
    SchemaSnapshot,
    TargetDdl,
    TargetHere,
    column_names,
    is_empty,
    read_after,
    snapshot_of,
)
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT, kinds_of, read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import in_transaction, with_settings

_log = logging.getLogger(__name__)


class DdlAttempt:
    """One call for one DDL, in which it is executed."""

    def __init__(self, session: Target, row: DdlRecord, ddl: TargetDdl, here: TargetHere) -> None:
        """Begin with ``ddl``, whose record is ``row``; ``here``: the target before it."""
        self._session = session
        self._row = row
        self._ddl = ddl
        self._step, self._subject, self._dialect, self._config = ddl.step, ddl.subject, ddl.dialect, ddl.config
        self._here = here
        self._clock = here.clock
        """For statements, with the definitions in the form that the target takes; comparisons with the target use the upstream's."""
        self.unfinished: SchemaSnapshot | None = None
        """The target before an attempt with unknown outcome: what was not there then was made by that attempt."""

    # ALTERs, change by change.

    def make(self, plan: Changes, how: str = "nothing") -> DdlOutcome:
        """Execute what is left of an ALTER; ``how``: the outcome where nothing is."""
        self._clock = replace(self._clock, subject=plan.subject)
        added = [c for c in plan.altered.changes if isinstance(c, AddColumn)]
        others = self.other_values() if any(c not in plan.left for c in added) else ()
        outcome = self._make(plan, how)
        return outcome if outcome.freezes else replace(outcome, losses=(*plan.losses, *outcome.losses, *others))

    def _make(self, plan: Changes, how: str = "nothing") -> DdlOutcome:
        altered, sql = plan.altered, self._step.query
        if not plan.done:
            self._fill_nulls()
            for sql in plan.statements:
                try:
                    self._send(sql)
                except ServerRefused as error:
                    return self._otherwise(plan, sql, error)
            how, sql = "text" if plan.text and by_text(altered, plan.subject) else "changes", plan.sql
        name = table_name(plan.table.schema, plan.table.name)
        return DdlOutcome(DONE, how, sql, self._declare(declare(name, altered.filled(), altered.new, self._dialect)))

    def _otherwise(self, made: Changes, sql: str, error: ServerRefused) -> DdlOutcome:
        """The next step of the ladder: the same changes in a simpler form, then what rows need and each other change by itself, then the policy."""
        left = self._left(made)
        if made.own is None and left.own is not None and left.sql != sql:
            return self.make(left)  # the table had not been read
        self._row.note_try("changes", sql, error)
        remedy = around(self._sent(sql, error, bare=made.bare))
        if left.done:
            _log.warning("the target does not need the DDL at commit_ts %d; its error is ignored: %s", self._step.commit_ts, error)
            return DdlOutcome(DONE, "nothing", sql, self.other_values())
        if remedy.sql or remedy.subject is not None:
            self._note_losses(remedy.losses)
            for before in remedy.first:
                self._send(before)
            if remedy.sql:
                return self._make(replace(left, text=remedy.sql))
            self._clock = replace(self._clock, subject=remedy.subject or self._clock.subject)
            return self.make(self._left(made))
        if made.bare or error.errno in OF_NO_DEFINITION:
            return self.by_policy(self._step.query.rstrip("; "), str(error), remedy.todo)
        outcome = self.make(left.needed)
        altered = altered_by(self._clock.subject, self._dialect) or left.altered  # the needed ones may have come in another form
        return outcome if outcome.freezes else replace(outcome, losses=(*outcome.losses, *self._parts(made.table, altered)))

    def _left(self, former: Changes) -> Changes:
        """Read the target again; the changes of ``former`` that are left."""
        there = read_whole(self._session, former.table.schema, former.table.name)
        left = changes_left(self._ddl, self._clock.subject, there, former.altered)
        self._clock = replace(self._clock, subject=left.subject)
        return left.needed if former.bare else left

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
        return each_by_itself(table, altered, left, presence.own_columns(), partial(self._part, table.label))

    def _part(self, label: str, sql: str) -> tuple[str, ...]:
        try:
            self._send(sql)
        except ServerRefused as error:
            self._row.note_try("part", sql, error)
            if error.errno in OF_NO_DEFINITION and self._config.ddl_policy == "stop":
                self.by_policy(sql, str(error))
            losses = (f"{label}: left out: {sql}: {error.said}",)
            self._note_losses(losses)
            return losses
        return ()

    def _fill_nulls(self) -> None:
        for column, sql in null_fills(self._clock.subject, self._dialect):
            try:
                with with_settings(self._session, self._clock.settings), in_transaction(self._session):
                    if rows := self._session.execute(sql):
                        self._row.note_losses(
                            f"{self._subject.label}: {rows} rows held NULL in {column}, but the upstream has no NULL there. They were updated: {sql}"
                        )
            except ServerRefused as error:
                self._row.note_try("fill", sql, error)

    # All other DDLs, statement by statement.

    def rebuilt(self, now: SchemaSnapshot) -> SchemaSnapshot:
        """The target after what must be rebuilt for the job's statement, which changes no row and no definition."""
        first = around(self._sent(now=now)).first
        for sql in first:
            _log.info(
                "DDL at commit_ts %d: changed first, because the server refuses the statement otherwise: %s", self._step.commit_ts, sql
            )
            self._tried("rebuild", sql)
        return snapshot_of(self._session, self._subject) if first else now

    def execute(self, plan: Statements, now: SchemaSnapshot) -> DdlOutcome:
        """Execute the job's statements; ``now``: the target before them."""
        texts, outcomes = plan.texts, list[DdlOutcome]()
        for number in range(len(texts)):
            clock = self._clock
            outcomes.append(self._one(number, texts[number], now))
            if outcomes[-1].freezes:
                return outcomes[-1]
            if self._clock is not clock:
                texts = statements(self._ddl, self._clock.subject)
        how = next((how for how in (LEFT_OUT, "derived", "text") if how in {one.how for one in outcomes}), "nothing")
        return DdlOutcome(DONE, how, "; ".join(one.sql for one in outcomes), tuple(loss for one in outcomes for loss in one.losses))

    def complete(self, plan: Statements, executed: str | None) -> DdlOutcome:
        """Do what comes after the statements, whose effect is there; ``executed``: the statements that an earlier attempt has sent."""
        losses = (*plan.losses, *self.other_values(), *(loss for text in plan.texts for loss in self._declare(*text.then)))
        if executed != plan.sql:  # a table was made in another form, and may lack parts that the target takes
            losses = (*losses, *(loss for number in range(len(plan.texts)) for loss in self._completed(self._made(number))))
        return DdlOutcome(DONE, "found", self._step.query, losses)

    def _one(self, number: int, text: DdlStatement, now: SchemaSnapshot, *, bare: bool = False) -> DdlOutcome:
        """Execute one of the job's statements; ``now``: the target before the first; ``bare``: the table has only what rows need."""
        made, subject = self._made(number), self._subject
        try:
            self._send(text.sql)
        except ServerRefused as error:
            self._row.note_try("text", text.sql, error)
            refused = replace(self._sent(text.sql, error, bare=bare), number=number if made is not None else None)
            remedy, instead = around(refused), instead_of(subject, self._here.table, error)
            rows_stay = instead is not None and bool(instead.delete)  # also of a table that another Drainer passed over
            if text.may_fail or (not rows_stay and remedy.subject is None and self._already_so(error, made)):
                _log.warning("the target does not need the DDL at commit_ts %d; its error is ignored: %s", self._step.commit_ts, error)
                rest = self._completed(made) if self._is_from_here(made) else ()
                return DdlOutcome(DONE, "nothing", text.sql, (*text.losses, *self.other_values(), *rest))
            if made is not None and error.errno == EXISTS_TABLE:
                return self.by_policy(text.sql, f"{error}; {self._in_the_way(made)}", remedy.todo)
            # CREATE TABLES may make hundreds.
            seen = snapshot_of(self._session, subject if made is None else replace(subject, after=(made,)))
            if not seen.same_as(now if made is None else replace(now, objects={made.label: now.objects[made.label]})):
                raise
            if (step := lower(refused)) is not None:
                below, losses = step
                self._clock = replace(self._clock, subject=below.subject)
                simpler = form(statements(self._ddl, below.subject)[number], below)
                self._note_losses(losses, simpler.sql)
                return self._one(number, simpler, now, bare=below.bare)
            if instead is not None:
                return self._instead(text.sql, error, instead)
            if subject.job.type == JobType.CREATE_VIEW and subject.before and error.errno not in OF_NO_DEFINITION:
                self._tried("former", f"DROP VIEW IF EXISTS {table_name(subject.schema, subject.name)}")
            return self.by_policy(text.sql, str(error), remedy.todo)
        losses = (*text.losses, *self._declare(*text.then), *(self._completed(made) if bare else ()))
        return DdlOutcome(DONE, "derived" if bare else "text", text.sql, losses)

    def _made(self, number: int) -> TableAt | None:
        """The table that the statement makes, in the form that the target was given."""
        after = self._clock.subject.after
        return after[number] if self._subject.job.kind.makes_tables and number < len(after) else None

    def _completed(self, made: TableAt | None) -> tuple[str, ...]:
        """Make what a table lacks that this DDL has made of what rows need, here or before a crash; what the target refuses, in words."""
        altered = made and parts_of(made, self._dialect)
        if made is None or not altered:
            return ()
        there, whole = read_whole(self._session, made.schema, made.name), partition_by(made.info, self._dialect)
        divide = bool(whole) and there is not None and not there.partitions
        divided = self._part(made.label, f"ALTER TABLE {table_name(made.schema, made.name)} {whole}") if divide else ()
        return (*divided, *self._parts(made, altered))

    def _instead(self, sql: str, error: ApplyError, instead: Instead) -> DdlOutcome:
        """Do what the DDL does to the rows of a table that lacks its partitions."""
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

    def _already_so(self, error: ApplyError, made: TableAt | None) -> bool:
        """Whether the target already is as the DDL makes it: an existing database, a dropped table, an equal and empty table, ``made``."""
        job, subject = self._subject.job, self._subject
        if job.type == JobType.CREATE_VIEW and subject.new is not None:
            return error.errno == EXISTS_TABLE and has_view(self._session, subject.new)
        if error.errno in sql_kind(job).already_so or (self._ddl.in_doubt and error.errno in ABSENT):  # a later DDL has dropped it
            return True
        if made is not None and error.errno == EXISTS_TABLE:
            return not self._in_the_way(made)
        return sql_kind(job).judged is Judged.CHANGES and has_all(subject, self._dialect, read_after(self._session, subject.after))

    def _is_from_here(self, table: TableAt | None) -> bool:
        """Whether an earlier attempt of this DDL has made it."""
        return table is not None and self.unfinished is not None and not self.unfinished.holds(table)

    def _in_the_way(self, table: TableAt) -> str:
        """Why the existing table of this name cannot serve as the one to be created; empty if it can: it is equal to it and has no rows."""
        if not self._is_from_here(table):
            differing = unlike(self._subject, self._dialect, table, read_whole(self._session, table.schema, table.name))
            if differing:
                return f"the existing table is a different one: {'; '.join(lack.words for lack in differing)}"
        else:
            names = column_names(self._session, table.schema, table.name)
            if names != tuple(c.name for c in visible(table.info) if c.name in names or not c.generated or c.generated_stored):
                return "the existing table has other columns"
        empty = self._ddl.in_doubt or is_empty(self._session, table.schema, table.name)
        return "" if empty else "the existing table is not empty"

    # What both have in common.

    def other_values(self) -> tuple[str, ...]:
        """Compare rows of columns that the job adds and somebody else has added. Frozen, the table would lack these columns: so a difference is a loss then.

        Raises:
            DdlRefused: something is, and the policy is ``stop``.
        """
        if self._ddl.in_doubt:
            return ()  # rows may have later values
        with with_settings(self._session, self._clock.settings):
            words = other_values(self._session, self._clock.subject)
        if words and self._config.ddl_policy == "stop":
            self._row.note_try("rows", self._step.query, ApplyError("; ".join(words)))
            self.by_policy(self._step.query, "; ".join(words))
        return words

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
        if not by_changes(self._subject, self._dialect):
            self._row.losses = ()  # a refused statement has made nothing
        if config.ddl_policy == "stop":
            self._row.write_refused()
            raise DdlRefused(text)
        _log.warning("%s (policy %s)", text, config.ddl_policy)
        state = SKIPPED if config.ddl_policy == "skip" else QUARANTINED
        return DdlOutcome(state, "policy", sql, (frozen_words(self._ddl, state, sql),))

    def _note_losses(self, losses: Collection[str], sql: str = "") -> None:
        """Commit the losses, and the statement that is sent next. After a crash only this row has them."""
        with in_transaction(self._session):
            self._row.note_losses(*losses, sql=sql)

    def _declare(self, *then: str) -> tuple[str, ...]:
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
        schema = self._subject.schema if self._subject.job.type not in (JobType.CREATE_SCHEMA, JobType.DROP_SCHEMA) else ""
        if schema and self._session.database != schema:  # since ``begin_ddl``
            try:
                self._session.use(schema)
            except ServerRefused as error:
                _log.debug("executing the DDL without a current database: %s", error)
        with with_settings(self._session, self._clock.settings):
            execute(self._sent(sql))

    def _sent(self, sql: str = "", error: ApplyError | None = None, now: SchemaSnapshot | None = None, *, bare: bool = False) -> SentDdl:
        return SentDdl(self._session, self._clock.subject, self._dialect, sql, error, now, bare=bare)


def frozen_words(ddl: TargetDdl, state: str, sql: str) -> str:
    """Words for what a DDL that is not executed does to its table."""
    given = ddl.subject.given
    why = f"because {given.why}" if given.form is DdlForm.FROZEN else "so the table is frozen on the target"
    return f"{ddl.subject.label}: DDL {state} at commit_ts {ddl.step.commit_ts}, {why}: {sql}"


def lower(refused: SentDdl) -> tuple[SentDdl, tuple[str, ...]] | None:
    """The step below a refused one, and its losses; None: there is none."""
    remedy = around(refused)
    if remedy.subject is not None:
        return replace(refused, subject=remedy.subject, error=None), remedy.losses
    if refused.made is None or refused.bare or (refused.error is not None and refused.error.errno in OF_NO_DEFINITION):
        return None
    return replace(refused, bare=True, error=None), ()


def form(text: DdlStatement, ddl: SentDdl) -> DdlStatement:
    """``text``, the statement of this step, with only what rows need if the step is that."""
    if not ddl.bare or ddl.made is None:
        return text
    return replace(text, sql=create_table(ddl.made.schema, bare(replace(ddl.made.info, name=ddl.made.name)), ddl.dialect).sql)


def parts_of(table: TableAt, dialect: Dialect) -> Alteration | None:
    """Changes that make ``table``, but for partitions, of a table with only what rows need."""
    return Alteration.of(bare(table.info), table.info, "", dialect, table.schema)


def each_by_itself(
    table: TableAt,
    altered: Alteration,
    changes: Iterable[TableChange],
    there: Mapping[str, OwnColumn],
    part: Callable[[str], tuple[str, ...]],
) -> tuple[str, ...]:
    """Make each change by a statement of its own; the losses. ``there``: the target's columns before; ``part``: executes a statement, and returns its loss if the server refuses it."""
    losses, columns = list[str](), dict(there)
    for change in changes:
        for sql in altered.statements(table, (change,), columns):
            lost = part(sql)
            losses += lost
            if isinstance(change, AddColumn) and not lost:
                columns[change.column.name.lower()] = AS_UPSTREAM
    return tuple(losses)


def make(ddl: SentDdl, send: Callable[[SentDdl], None]) -> tuple[str, ...]:
    """Make the table, view or sequence of ``ddl`` by ``send``; what it lacks, in words. Nothing is sent of what the target cannot hold at all.

    Raises:
        ServerRefused: the server takes no form of a table that holds and finds rows, or no form of the view.
    """
    losses = list[str]()
    while (text := form(rewrite(ddl.subject, ddl.dialect, restored=False), ddl)).sql:
        try:
            send(replace(ddl, sql=text.sql))
            break
        except ServerRefused as error:
            step = lower(replace(ddl, sql=text.sql, error=error))
            if step is None:
                raise
            ddl, more = step
            losses += more

    def part(sql: str) -> tuple[str, ...]:
        try:
            send(replace(ddl, sql=sql))
        except ServerRefused as error:
            if error.errno in OF_NO_DEFINITION:
                raise
            return (f"{ddl.subject.label}: left out: {sql}: {error.said}",)
        return ()

    table = ddl.made
    if table is None or not ddl.bare or (altered := parts_of(table, ddl.dialect)) is None:
        return (*losses, *text.losses)
    whole = partition_by(table.info, ddl.dialect)
    divided = part(f"ALTER TABLE {table_name(table.schema, table.name)} {whole}") if whole else ()
    there = {c.name.lower(): AS_UPSTREAM for c in visible(bare(table.info))}
    return (*losses, *text.losses, *divided, *each_by_itself(table, altered, altered.changes, there, part))


def view_waits(label: str, words: str) -> str:
    """The loss."""
    return f"{label}: the view is left out, and tried again after each CREATE and RENAME: {words}"


def has_view(session: Target, view: TableAt) -> bool:
    """Whether the target has a view of this name with these columns."""
    columns = tuple(c.name for c in view.info.public_columns())
    return kinds_of(session, view.schema, view.name) == ["VIEW"] and column_names(session, view.schema, view.name) == columns
