"""Executes one DDL on the target exactly once: intent recorded before, done recorded after; after a crash the target is inspected. [db]

Promises: the intent row (``spark_ddl``: text and ``SchemaSnapshot`` of the affected tables) is committed before the statement runs; the
done state is committed together with what ``on_done`` writes, the checkpoint. A call that finds an earlier attempt first determines from
the target whether its effect is there and never applies it a second time. Nothing is dropped silently: what the target cannot hold is in
``DdlOutcome.losses`` and in the row, and ``tries`` keeps every refusal: time, statement, and the server's message.

* A job that alters columns, keys or options (``by_changes``): the changes that the target lacks, in one statement (``alteration``); at a TiDB that lacks
  all of them, TiDB's text. After a crash the same call makes what is left. The table is read before; for ``_REFUSED_TWICE`` only after a refusal.
* Any other: TiDB's text adapted to the target, a statement derived from the table infos, the policy (``ddl-policy``). After a crash ``execution_check`` judges from
  the target.

    no row --intent--> INTENT --executed, or its effect found--> DONE
                          |--refused, policy skip / quarantine--> SKIPPED / QUARANTINED
          |  with sync-ddl = false--> NOT_SYNCED, nothing is executed: rows go on by the target's own tables
                          `--refused, policy stop--> REFUSED and DdlRefused
    REFUSED --next start, effect found (made by an operator)--> DONE
       `--next start, effect not found--> INTENT, with a new snapshot of the target
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import Job, JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, AddKey, DropColumn, TableChange
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, frozen_by, unwritten
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import (
    UNCLEAR,
    UNSEEN,
    Alteration,
    OwnColumn,
    Presence,
    alter_table,
    altered_by,
    as_there,
    by_changes,
    by_text,
    null_fills,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import (
    DONE,
    NOT_SYNCED,
    QUARANTINED,
    SKIPPED,
    DdlOutcome,
    DdlRecord,
    RecordedTry,
    load_outcomes,
    table_of,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.execution_check import (
    FREEZES,
    NOTHING_KEPT,
    ExecutionCheck,
    HandedOver,
    lacks,
    other_values,
    shows,
    snapshot_of,
    unlike,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import bare as bare_form
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import Instead, instead_of, scattered
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE, OF_NO_DEFINITION, SentDdl, around, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot, column_names, is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, joined, sql_kind, statements_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table, declare, partition_by
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import beside_gbk, dialect_of, folds_names
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Rewritten
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import DdlClock, clock_of, converted_otherwise, zone_setting
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, check, lock_name
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, alone
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import in_transaction, with_autocommit, with_settings
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_log = logging.getLogger(__name__)

_REFUSED_TWICE = (AddColumn, DropColumn, AddKey)
"""Changes that a server refuses where it has them. Their clauses need nothing of the target's columns, but that they are there. A DROP INDEX is none: an
index that was left out may have left its name to a person's."""


def why_not_restored(job: Job, flavour: Flavour) -> str:
    """Why a job that restores rows cannot be replicated; empty for all others, and where the target is a TiDB, which keeps dropped tables for a while."""
    if job.kind.effect is not JobEffect.RESTORES or (job.type == JobType.RECOVER_TABLE and flavour is Flavour.TIDB):
        return ""
    return f"{job.type_name} cannot be replicated: it restores rows that neither the target nor any binlog has"


def apply_ddl(
    session: Target,
    step: DdlStep,
    history: SchemaHistory,
    config: ApplyConfig,
    lease: Lease,
    on_done: Callable[[Target], None],
    frozen: FrozenTables = NONE_FROZEN,
    *,
    safe_from: int | None = None,
    pause: Callable[[float], None] = lambda seconds: None,
) -> DdlOutcome:
    """Complete ``step`` on the target, however much of it a crashed predecessor has done.

    Args:
        session: no transaction may be open on it, and no database but the DDL's may be current (``session.begin_ddl``).
        step: from ``segments.plan_steps``.
        history: the one ``step`` was planned with.
        config: policy, filters and the schema of the table of DDL records.
        lease: checked before everything that is written or executed; its cluster is the one of the DDL.
        on_done: writes the checkpoint; runs in the transaction that records the DDL as done, before its commit.
        frozen: the tables of which a DDL was not executed on the target.
        safe_from: where the span begins in which another Drainer may have executed this DDL, and later ones (``sinks.mysql.ddl.execution_check``);
            None: it cannot have.
        pause: called every few seconds while a statement of a predecessor is still running; may raise to end the wait.

    Raises:
        DdlRefused: the target refused every form and the policy is ``stop``.
        LeaseLost: another Drainer has the lease; nothing was executed.
        RetryableApplyError: the connection was lost; call again with a new session.
        ApplyError: after a crash it cannot be determined whether the statement ran.
    """
    return _Run(session, step, history, config, lease, on_done, frozen, safe_from, pause).run()


class _Run:
    def __init__(
        self,
        session: Target,
        step: DdlStep,
        history: SchemaHistory,
        config: ApplyConfig,
        lease: Lease,
        on_done: Callable[[Target], None],
        frozen: FrozenTables,
        safe_from: int | None,
        pause: Callable[[float], None],
    ) -> None:
        self._session = session
        self._pause = pause
        self._step = step
        self._config = config
        self._lease = lease
        self._on_done = on_done
        self._history = history
        self._frozen = frozen
        outcomes = load_outcomes(session, config.checkpoint_schema, lease.cluster_id) if step.job.type == JobType.RECOVER_TABLE else {}
        self._subject = subject_of(step, history, frozen, Routes.of(config), outcomes)
        self._dialect = beside_gbk(session, dialect_of(session, config), self._subject.after)
        if self._subject.job.kind.effect is JobEffect.RENAMES:
            self._dialect = replace(self._dialect, folds_names=folds_names(session))
        self._never = why_not_restored(self._subject.job, self._dialect.flavour)
        self._handed_over = None if safe_from is None else HandedOver(session, self._subject, self._dialect, history)
        self._safe_from = safe_from or 0
        self._clock = DdlClock(self._subject)
        """For executing statements; comparisons with the target use ``_subject``."""
        self._unfinished: SchemaSnapshot | None = None
        """The target before an attempt with unknown outcome: what was not there then was made by that attempt."""
        self._row = DdlRecord(session, step, config, lease)

    def run(self) -> DdlOutcome:
        fate = self._step.decision.fate
        if fate is DdlFate.FILTERED:
            return self._finish(DdlOutcome(DONE, "filtered", ""))
        if not self._config.sync_ddl:
            _log.info("DDL at commit_ts %d is not synced (syncer.sync-ddl = false): %s", self._step.commit_ts, self._step.query)
            return self._finish(DdlOutcome(NOT_SYNCED, "sync-ddl", ""))
        if fate is DdlFate.LEFT_OUT or self._step.skip_ts in self._config.ignore_txn_commit_ts:
            return self._finish(self._ignored())
        if self._subject.given.form is DdlForm.NOTHING:
            _log.info("DDL at commit_ts %d needs no statement on the target: %s", self._step.commit_ts, self._subject.given.why)
            return self._finish(DdlOutcome(DONE, "nothing", ""))
        with self._alone():
            return self._run_locked()

    def _ignored(self) -> DdlOutcome:
        """The DDL is listed in ``ignore-txn-commit-ts``, or a rule leaves it out: if rows need what the target lacks then, the table is frozen from here on."""
        if self._subject.given.form is DdlForm.FROZEN:
            return DdlOutcome(SKIPPED, "ignored", self._step.query, (self._frozen_words(SKIPPED, self._step.query),))
        lacking = [lack for lack in lacks(self._session, self._subject, self._dialect) if lack.kind in FREEZES]
        if not lacking:
            others = () if self._handed_over is not None else other_values(self._session, self._subject)
            return DdlOutcome(DONE, "ignored", self._step.query, others)
        return DdlOutcome(SKIPPED, "ignored", self._step.query, (self._frozen_words(SKIPPED, self._step.query),))

    def _frozen_words(self, state: str, sql: str) -> str:
        given = self._subject.given
        why = f"because {given.why}" if given.form is DdlForm.FROZEN else "so the table is frozen on the target"
        return f"{self._subject.label}: DDL {state} at commit_ts {self._step.commit_ts}, {why}: {sql}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Run the block with autocommit on (MariaDB 10.11 blocks itself in EXCHANGE PARTITION without it), the DDL lock and the lease.

        No other process can take the lease while the block runs. If this process is suspended in it, the server closes its connection, which releases
        the lock, before another process can continue. So the statement cannot be executed late.
        """
        name = lock_name(DDL, self._lease.schema, self._lease.cluster_id)
        with alone(self._session, name, self._pause), with_autocommit(self._session):
            check(self._session, self._lease)
            yield

    def _run_locked(self) -> DdlOutcome:
        record = self._row.read()
        ended = self._row.ended(record)
        if ended is not None:
            return ended
        earlier = record if record is not None and record.unfinished else None
        refused = self._step.decision.fate is DdlFate.REFUSED
        if refused or self._subject.given.form is DdlForm.FROZEN:
            # Never taken for done because the target looks like it: rows may still be being copied.
            self._write_intent(self._step.query, NOTHING_KEPT)
            return self._finish(self._pass_by("filter" if refused else "frozen", self._subject.given.why))
        self._clock = clock_of(self._session, self._subject)
        if by_changes(self._subject, self._dialect):
            return self._run_changes(earlier)
        elsewhere = scattered(self._session, self._subject)
        texts = self._statements()
        if self._subject.job.kind.effect is JobEffect.RENAMES and not joined(texts):
            _log.info("DDL at commit_ts %d needs no statement: the names are the same at the target", self._step.commit_ts)
            return self._finish(DdlOutcome(DONE, "nothing", ""))
        now = self._snapshot()
        if earlier is not None and earlier.refused:
            self._row.told = ()  # that attempt has made nothing
        judge = ExecutionCheck(self._session, self._step, self._subject, self._dialect, table_of(self._config))
        if earlier is not None and not elsewhere and judge.has_run(earlier, now):
            losses = (*_losses(texts), *self._other_values(), *(loss for text in texts for loss in self._declare(*text.then)))
            if earlier.executed != joined(texts):  # a table was made in another form, and may lack parts that the target takes
                losses = (*losses, *(loss for number in range(len(texts)) for loss in self._completed(self._made(number))))
            return self._finish(DdlOutcome(DONE, "found", self._step.query, losses))
        begun_here = earlier is not None and not earlier.refused and not earlier.was_refused_before
        if self._handed_over and not begun_here and not self._never and (found := self._by_another(texts)):
            return found
        if earlier is None or earlier.refused:
            now = now if elsewhere else self._rebuilt(now)
            self._write_intent(joined(texts), now)
        else:
            self._unfinished = earlier.snapshot
        self._point("after-ddl-intent")
        why = ("partition", elsewhere) if elsewhere else self._why_not()
        outcome = self._pass_by(*why) if why else self._execute(texts, now)
        self._point("after-ddl")
        return self._finish(outcome)

    def _run_changes(self, earlier: RecordedTry | None) -> DdlOutcome:
        """Make the changes that the target does not have; after a crash the same again."""
        step, altered = self._step, altered_by(self._clock.subject, self._dialect)
        why = self._why_not()
        if altered is None or why:
            self._write_intent(self._step.query, NOTHING_KEPT)
            return self._finish(self._pass_by(*(why or ("changes", UNCLEAR))))
        by_itself = all(isinstance(change, _REFUSED_TWICE) for change in altered.changes)
        unread = by_itself and earlier is None and self._handed_over is None and not by_text(altered, self._subject)
        left = self._whole(altered) if unread else self._lacking(altered)
        if earlier is None or earlier.refused:
            self._write_intent(left.sql or step.query, NOTHING_KEPT)
        self._point("after-ddl-intent")
        outcome = self._make_left(left, "nothing" if earlier is None else "found", unread=unread)
        self._point("after-ddl")
        if not outcome.freezes:
            losses = tuple(f"{self._subject.label}: {loss}" for loss in altered.losses())
            converted = () if by_itself else converted_otherwise(self._subject, self._dialect.flavour)
            outcome = replace(outcome, losses=(*outcome.losses, *losses, *converted))
        else:
            outcome = replace(outcome, losses=(*self._row.told, *outcome.losses))  # rows that were updated before the refusal
        return self._finish(outcome)

    def _why_not(self) -> tuple[str, str] | None:
        """At which step the job is passed by, and why; None: it is executed."""
        if self._never:
            return "policy", self._never
        if self._clock.why_not:
            return "time zone", self._clock.why_not
        if self._subject.given.form is DdlForm.REFUSED:
            return "policy", self._subject.given.why
        return None

    def _whole(self, altered: Alteration) -> "_Left":
        """Where nothing of the job is there yet."""
        text = joined(self._statements()) if by_text(altered, self._clock.subject) else ""
        return _Left(altered, altered.changes, self._table, text=text)

    def _lacking(self, altered: Alteration) -> "_Left":
        """The changes that the target does not have; from here on its table is what an earlier DDL has left it."""
        there = read_whole(self._session, self._table.schema, self._table.name)
        if there is None:
            return self._whole(altered)
        subject, lost = as_there(self._clock.subject, there)
        self._clock = replace(self._clock, subject=subject)
        altered = altered_by(subject, self._dialect) or altered
        presence = Presence(altered, there)
        left = presence.missing()
        if self._handed_over is not None:
            names = {c.name.lower() for c in there.columns}
            left = tuple(c for c in left if not self._handed_over.another_by_now(altered.changed_column(c), names))
        if left == altered.changes and by_text(altered, subject):
            return self._whole(altered)
        losses = tuple(f"{subject.label}: {loss}" for loss in lost)
        return _Left(altered, left, self._table, presence.own_columns(), losses=losses)

    @property
    def _table(self) -> TableAt:
        assert self._subject.old is not None
        return self._subject.old

    def _declared(self, altered: Alteration) -> tuple[str, ...]:
        return self._declare(declare(table_name(self._table.schema, self._table.name), altered.filled(), altered.new, self._dialect))

    def _make_left(self, left: "_Left", how: str = "nothing", *, unread: bool = False, bare: bool = False) -> DdlOutcome:
        """``how``: the outcome where nothing is to be made."""
        added = [c for c in left.altered.changes if isinstance(c, AddColumn)]
        others = self._other_values() if any(c not in left.changes for c in added) else ()
        outcome = (
            self._make(left, unread=unread, bare=bare)
            if left.sql
            else DdlOutcome(DONE, how, self._step.query, self._declared(left.altered))
        )
        return outcome if outcome.freezes else replace(outcome, losses=(*left.losses, *outcome.losses, *others))

    def _make(self, left: "_Left", *, unread: bool = False, bare: bool = False) -> DdlOutcome:
        """``unread``: what the target has is read where it refuses a statement. ``bare``: only what rows need is made."""
        if not unread:
            self._fill_nulls()
        sql = left.sql
        try:
            self._send(sql)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            return self._otherwise(left, sql, error, unread=unread, bare=bare)
        how = "text" if by_text(left.altered, self._clock.subject) and sql == joined(self._statements()) else "changes"
        return DdlOutcome(DONE, how, sql, self._declared(left.altered))

    def _otherwise(self, made: "_Left", sql: str, error: ApplyError, *, unread: bool, bare: bool) -> DdlOutcome:
        """The next step of the ladder: the same changes in a simpler form, then what rows need and each other change by itself, then the policy."""
        left = self._lacking(made.altered)
        left = left.needed if bare else left
        if unread and left.sql != sql:
            return self._make_left(left)
        self._row.note_try("changes", sql, error)
        if self._handed_over is not None and self._handed_over.already_so(error, None):
            return DdlOutcome(DONE, "nothing", sql)
        if not left.sql:
            _log.warning("the target does not need the DDL at commit_ts %d; its error is ignored: %s", self._step.commit_ts, error)
            return DdlOutcome(DONE, "nothing", sql, self._other_values())
        quirk = around(self._sent(sql, error, bare=bare))
        if quirk.sql:
            return self._make(replace(left, text=quirk.sql), bare=bare)
        if quirk.subject is not None:
            self._told(quirk.losses)
            self._clock = replace(self._clock, subject=quirk.subject)
            left = self._lacking(made.altered)
            return self._make_left(left.needed if bare else left, bare=bare)
        if bare or error.errno in OF_NO_DEFINITION:
            return self._by_policy(self._step.query.rstrip("; "), str(error), quirk.todo)
        outcome = self._make_left(left.needed, bare=True)
        if outcome.freezes:
            return outcome
        return replace(outcome, losses=(*outcome.losses, *self._one_by_one(self._table, left.altered)))

    def _one_by_one(self, table: TableAt, altered: Alteration) -> tuple[str, ...]:
        """Make each change that the target's ``table`` lacks by itself; what it refuses, in words.

        Raises:
            DdlRefused: rows, rights or room are in the way of one, and the policy is ``stop``.
        """
        losses, tried = list[str](), set[TableChange]()
        while there := read_whole(self._session, table.schema, table.name):
            presence = Presence(altered, there)
            left = (c for c in presence.missing() if c not in tried and not (altered.is_needed(c) and presence.lack(c) == UNSEEN))
            if (change := next(left, None)) is None:
                break
            tried.add(change)
            if sql := alter_table(table, altered.clauses((change,), presence.own_columns())):
                losses += self._part(table, altered.words_of(change), sql)
        return tuple(losses)

    def _part(self, table: TableAt, what: str, sql: str) -> tuple[str, ...]:
        """Make a part of a definition that rows do not need; the loss, if the target refuses it."""
        try:
            self._send(sql)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            self._row.note_try("part", sql, error)
            if error.errno in OF_NO_DEFINITION and self._config.ddl_policy == "stop":
                self._by_policy(sql, str(error))
            loss = f"{table.schema}.{table.name}: {what} left out: {error.words or error}"
            self._told((loss,))
            return (loss,)
        return ()

    def _by_another(self, texts: Sequence[Rewritten]) -> DdlOutcome | None:
        """The outcome of the DDL if another Drainer has executed it; an error if nobody can tell; None: it is to be executed."""
        assert self._handed_over is not None
        if self._handed_over.made_again(lambda job_id: self._row.made_since(job_id, self._safe_from)):
            for table in self._subject.before:
                self._session.execute(f"DROP TABLE IF EXISTS {quote_name(table.schema)}.{quote_name(table.name)}")
        if why := self._handed_over.undecided():
            self._row.note_try("safe mode", self._step.query, ApplyError(why))  # in the intent, too: it is none to be executed
            self._write_intent(joined(texts), self._snapshot())
            return self._finish(self._by_policy(self._step.query, why))
        if not self._handed_over.executed():
            return None
        _log.warning("safe mode: the DDL at commit_ts %d was executed by another Drainer already: %s", self._step.commit_ts, joined(texts))
        return self._finish(DdlOutcome(DONE, "found", joined(texts), _losses(texts)))

    def _point(self, name: str) -> None:
        """A failpoint, and one for this type of DDL: ``after-ddl`` and ``after-ddl-exchange-partition``."""
        failpoints.point(name)
        failpoints.point(f"{name}-{self._subject.job.type_name.replace(' ', '-')}")

    def _statements(self) -> tuple[Rewritten, ...]:
        if self._never:
            return ()
        restored = not self._step.early and self._step.query != self._subject.job.query
        return statements_of(self._clock.subject, self._dialect, restored=restored)

    def _snapshot(self, only: TableAt | None = None) -> SchemaSnapshot:
        """The target's tables of the job, or ``only`` the one that it makes: CREATE TABLES may make hundreds."""
        return snapshot_of(self._session, self._subject if only is None else replace(self._subject, after=(only,)))

    def _rebuilt(self, now: SchemaSnapshot) -> SchemaSnapshot:
        """The target after what must be rebuilt for the job's statement, which changes no row and no definition."""
        found = around(self._sent(now=now)).first
        for sql in found:
            _log.info(
                "DDL at commit_ts %d: changed first, because the server refuses the statement otherwise: %s", self._step.commit_ts, sql
            )
            self._tried("rebuild", sql)
        return self._snapshot() if found else now

    def _execute(self, texts: Sequence[Rewritten], now: SchemaSnapshot) -> DdlOutcome:
        given, found = self._subject.given, list[DdlOutcome]()
        if given.form is DdlForm.INFOS and not all(text.by_infos for text in texts):
            return self._by_policy(self._step.query, given.why)
        if not joined(texts):
            return DdlOutcome(DONE, "nothing", "", _losses(texts))
        for number in range(len(texts)):
            clock = self._clock
            found.append(self._one(number, texts[number], now))
            if found[-1].freezes:
                return found[-1]
            if self._clock is not clock:
                texts = self._statements()
        how = next((how for how in ("derived", "text") if how in {one.how for one in found}), "nothing")
        return DdlOutcome(DONE, how, "; ".join(one.sql for one in found), tuple(loss for one in found for loss in one.losses))

    def _one(self, number: int, text: Rewritten, now: SchemaSnapshot, *, bare: bool = False) -> DdlOutcome:
        """Execute one of the job's statements; ``now``: the target before the first; ``bare``: the table has only what rows need."""
        made = self._made(number)
        try:
            self._send(text.sql)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            self._row.note_try("text", text.sql, error)
            instead = instead_of(self._session, self._subject, error)
            rows_stay = instead is not None and bool(instead.delete)  # also of a table that another Drainer passed over
            if text.may_fail or (not rows_stay and self._already_so(error, made)):
                _log.warning("the target does not need the DDL at commit_ts %d; its error is ignored: %s", self._step.commit_ts, error)
                rest = self._completed(made) if self._is_from_here(made) else ()
                return DdlOutcome(DONE, "nothing", text.sql, (*text.losses, *self._other_values(), *rest))
            if made is not None and error.errno == EXISTS_TABLE:
                return self._by_policy(text.sql, f"{error}; {self._in_the_way(made)}", around(self._sent(text.sql, error)).todo)
            if not self._snapshot(made).same_as(now if made is None else now.only(made.schema, made.name)):
                raise
            quirk = around(replace(self._sent(text.sql, error, bare=bare), made=made))
            if quirk.subject is not None:
                self._clock = replace(self._clock, subject=quirk.subject)
                simpler = self._statement(number, bare=bare)
                self._told(quirk.losses, simpler.sql)
                return self._one(number, simpler, now, bare=bare)
            if instead is not None:
                return self._instead(text.sql, error, instead)
            if made is not None and not bare and error.errno not in OF_NO_DEFINITION:
                simpler = self._statement(number, bare=True)
                self._told((), simpler.sql)
                return self._one(number, simpler, now, bare=True)
            return self._by_policy(text.sql, str(error), quirk.todo)
        losses = (*text.losses, *self._declare(*text.then), *(self._completed(made) if bare else ()))
        return DdlOutcome(DONE, "derived" if bare else "text", text.sql, losses)

    def _made(self, number: int) -> TableAt | None:
        """The table that the statement makes, in the form that the target was given."""
        after = self._clock.subject.after
        return after[number] if self._subject.job.kind.makes_tables and number < len(after) else None

    def _statement(self, number: int, *, bare: bool) -> Rewritten:
        text, made = self._statements()[number], self._made(number)
        if not bare or made is None:
            return text
        return replace(text, sql=create_table(made.schema, bare_form(replace(made.info, name=made.name)), self._dialect).sql)

    def _completed(self, made: TableAt | None) -> tuple[str, ...]:
        """Make what a table lacks that this DDL has made of what rows need, here or before a crash; what the target refuses, in words."""
        altered = made and Alteration.of(bare_form(made.info), made.info, "", self._dialect, made.schema)
        if made is None or not altered:
            return ()
        there, whole = read_whole(self._session, made.schema, made.name), partition_by(made.info, self._dialect)
        divide = bool(whole) and there is not None and not there.partitions
        parts = self._part(made, "partitions", f"ALTER TABLE {table_name(made.schema, made.name)} {whole}") if divide else ()
        return (*parts, *self._one_by_one(made, altered))

    def _told(self, losses: Collection[str], sql: str = "") -> None:
        """Record what is left out, and the statement in place of a refused one: after a crash nothing else tells it."""
        with in_transaction(self._session):
            self._row.note_told(*losses, sql=sql)

    def _instead(self, sql: str, error: ApplyError, instead: Instead) -> DdlOutcome:
        """What the DDL does to the rows of a table that lacks its partitions."""
        if instead.why_not:
            return self._by_policy(sql, f"{error}; {instead.why_not}")
        if not instead.delete:
            return DdlOutcome(DONE, "nothing", sql, (instead.loss,) if instead.loss else ())
        rows = instead.most
        while rows >= instead.most:
            try:
                with in_transaction(self._session):
                    rows = self._session.execute(instead.delete)
            except RetryableApplyError:
                raise
            except ApplyError as refused:
                self._row.note_try("rows", instead.delete, refused)
                return self._by_policy(sql, f"{error}; {refused}")
        return DdlOutcome(DONE, "derived", instead.delete)

    def _fill_nulls(self) -> None:
        for column, sql in null_fills(self._clock.subject, self._dialect):
            try:
                with with_settings(self._session, zone_setting(self._clock.zone)), in_transaction(self._session):
                    if rows := self._session.execute(sql):
                        self._row.note_told(
                            f"{self._subject.label}: {rows} rows held NULL in {column}, but the upstream has no NULL there. They were updated: {sql}"
                        )
            except RetryableApplyError:
                raise
            except ApplyError as error:
                self._row.note_try("fill", sql, error)

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
        except RetryableApplyError:
            raise
        except ApplyError as error:
            self._row.note_try(step, sql, error)
            return False
        return True

    def _send(self, sql: str) -> None:
        if self._subject.schema and self._subject.job.type not in (JobType.CREATE_SCHEMA, JobType.DROP_SCHEMA):
            self._use()
        with with_settings(self._session, self._clock.settings):
            execute(self._sent(sql))

    def _sent(self, sql: str = "", error: ApplyError | None = None, now: SchemaSnapshot | None = None, *, bare: bool = False) -> SentDdl:
        return SentDdl(self._session, self._clock.subject, self._dialect, sql, error, now, bare=bare)

    def _use(self) -> None:
        if self._session.database == self._subject.schema:
            return  # since ``begin_ddl``
        try:
            self._session.use(self._subject.schema)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            _log.debug("executing the DDL without a current database: %s", error)

    def _already_so(self, error: ApplyError, made: TableAt | None) -> bool:
        """Whether the target already is as the DDL makes it: an existing database, a dropped table, an equal and empty table, ``made``."""
        job, subject = self._subject.job, self._subject
        if self._handed_over is not None and self._handed_over.already_so(error, made):
            return True
        kind = sql_kind(job)
        if error.errno in kind.already_so:
            return True
        if made is not None and error.errno == EXISTS_TABLE:
            return not self._in_the_way(made)
        return shows(self._session, subject, self._dialect)

    def _other_values(self) -> tuple[str, ...]:
        """What is wrong in rows of columns that the job adds and somebody else has added. Frozen, the table would lack them: so it is a loss then.

        Raises:
            DdlRefused: something is, and the policy is ``stop``.
        """
        if self._handed_over is not None:
            return ()  # rows may have later values
        with with_settings(self._session, zone_setting(self._clock.zone)):
            words = other_values(self._session, self._clock.subject)
        if words and self._config.ddl_policy == "stop":
            self._pass_by("rows", "; ".join(words))
        return words

    def _is_from_here(self, table: TableAt | None) -> bool:
        """Whether an earlier attempt of this DDL has made it."""
        return table is not None and self._unfinished is not None and not self._unfinished.holds(table.schema, table.name)

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

    def _pass_by(self, step: str, words: str) -> DdlOutcome:
        """Apply the policy without executing anything; the reason is kept in ``tries``."""
        self._row.note_try(step, self._step.query, ApplyError(words))
        return self._by_policy(self._step.query, words)

    def _by_policy(self, sql: str, words: str, mending: str = "") -> DdlOutcome:
        step, config = self._step, self._config
        skipping = f"skip the DDL with syncer.ignore-txn-commit-ts = [{step.skip_ts}], or set spark.ddl-policy to skip or quarantine"
        what = f"DDL of job {step.job.id} on {self._subject.label} at commit_ts {step.commit_ts} refused: {sql!r}: {words}"
        text = f"{what}. {mending or f'Repair the target, or {skipping}'}."
        if config.ddl_policy == "stop":
            self._row.write_refused()
            raise DdlRefused(text)
        _log.warning("%s (policy %s)", text, config.ddl_policy)
        state = SKIPPED if config.ddl_policy == "skip" else QUARANTINED
        return DdlOutcome(state, "policy", sql, (self._frozen_words(state, sql),))

    def _write_intent(self, sql: str, snapshot: SchemaSnapshot) -> None:
        kept = NOTHING_KEPT if sql_kind(self._subject.job).judged is Judged.GONE else snapshot
        self._row.write_intent(sql, kept.to_json())

    def _finish(self, outcome: DdlOutcome) -> DdlOutcome:
        """Record the outcome, the tables that it freezes, and the checkpoint in one transaction."""
        if not outcome.freezes:
            outcome = replace(outcome, losses=tuple(dict.fromkeys((*self._row.told, *outcome.losses))))
        else:
            frozen = frozen_by(self._step.job, self._history, self._frozen, Selection.of(self._config).keeps)
            outcome = replace(outcome, frozen=frozen, losses=(*outcome.losses, *self._left_columns({**self._frozen, **frozen})))

        def done(session: Target) -> None:
            self._on_done(session)
            self._point("before-ddl-done")

        self._row.write_done(outcome, done)
        return outcome

    def _left_columns(self, frozen: FrozenTables) -> Iterator[str]:
        """The columns that rows have from here on, and that are not written, in words."""
        for table_id in self._history.tables_of_job(self._step.job):
            table, at = self._history.table_at(table_id, self._step.job.version), frozen.get(table_id)
            if table is not None and at is not None and at.columns is not None and (names := unwritten(table, at)):
                yield f"{at.schema}.{at.name}: columns not written from here on: {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left of an ALTER, and what makes it."""

    altered: Alteration
    changes: tuple[TableChange, ...]
    table: TableAt
    own: Mapping[str, OwnColumn] | None = None
    """The target's columns; None: they are as the upstream's."""
    text: str = ""
    """A statement in place of the one for ``changes``."""
    losses: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        """The statement; empty if nothing is left."""
        return self.text or alter_table(self.table, self.altered.clauses(self.changes, self.own))

    @property
    def needed(self) -> "_Left":
        """Only what rows need."""
        return replace(self, changes=tuple(c for c in self.changes if self.altered.is_needed(c)), text="")


def _losses(texts: Sequence[Rewritten]) -> tuple[str, ...]:
    return tuple(loss for text in texts for loss in text.losses)
