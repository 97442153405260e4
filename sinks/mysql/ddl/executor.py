"""Executes one DDL on the target exactly once: intent recorded before, done recorded after; after a crash the target is inspected. [db]

Promises: the intent row (``spark_ddl``: text and ``SchemaSnapshot`` of the affected tables) is committed before the statement runs; the
done state is committed together with what ``on_done`` writes, the checkpoint. A call that finds an earlier attempt first determines from
the target whether its effect is there and never applies it a second time. Nothing is dropped silently: what the target cannot hold is in
``DdlOutcome.losses`` and in the row, and ``tries`` keeps every refusal: time, statement, and the server's message.

* A job that alters columns, keys or options (``by_changes``): the changes that the target lacks. After a crash the same call makes what is left.
* Any other: statements made of the table infos, at a TiDB its text. After a crash ``execution_check`` judges from the target.
* What the target refuses goes down the ladder of ``attempt``; the policy (``ddl-policy``) is asked last.

    no row --intent--> INTENT --executed, or its effect found--> DONE
                          |--refused, policy skip / quarantine--> SKIPPED / QUARANTINED
          |  with sync-ddl = false--> NOT_SYNCED, nothing is executed: rows go on by the target's own tables
                          `--refused, policy stop--> REFUSED and DdlRefused
    REFUSED --next start, effect found (made by an operator)--> DONE
       `--next start, effect not found--> INTENT, with a new snapshot of the target
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, AddKey, DropColumn
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, frozen_by, unwritten
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import UNCLEAR, altered_by, by_changes, by_text
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import DdlAttempt, losses_of
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import (
    DONE,
    NOT_SYNCED,
    SKIPPED,
    DdlOutcome,
    DdlRecord,
    RecordedTry,
    load_outcomes,
    table_of,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.execution_check import FREEZES, NOTHING_KEPT, ExecutionCheck, HandedOver, lacks, other_values
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import scattered
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, joined, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import EXECUTED, DdlForm, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of, folds_names
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Rewritten
from pyspark_tidb_binlog.sinks.mysql.ddl.views import LeftOutViews, out_of_place
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import clock_of, converted_otherwise
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, check, lock_name
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, alone
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import with_autocommit
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_log = logging.getLogger(__name__)

_REFUSED_TWICE = (AddColumn, DropColumn, AddKey)
"""Changes that a server refuses where it has them. Their clauses need nothing of the target's columns, but that they are there. A DROP INDEX is none: an
index that was left out may have left its name to a person's."""


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
    policy: RetryPolicy = FEW,
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
        policy: hears what is waited for while a statement of a predecessor is still running; its ``pause`` may raise to end the wait.

    Raises:
        DdlRefused: the target refused every form and the policy is ``stop``.
        LeaseLost: another Drainer has the lease; nothing was executed.
        RetryableApplyError: the connection was lost; call again with a new session.
        ApplyError: after a crash it cannot be determined whether the statement ran.
    """
    return _Run(session, step, history, config, lease, on_done, frozen, safe_from, policy).run()


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
        policy: RetryPolicy,
    ) -> None:
        self._session = session
        self._policy = policy
        self._step = step
        self._config = config
        self._lease = lease
        self._on_done = on_done
        self._history = history
        self._frozen = frozen
        outcomes = load_outcomes(session, config.checkpoint_schema, lease.cluster_id) if step.job.type == JobType.RECOVER_TABLE else {}
        self._subject = subject_of(step, history, frozen, Routes.of(config), outcomes)
        self._dialect = dialect_of(session, config, self._subject.after)
        if self._subject.job.kind.effect is JobEffect.RENAMES:
            self._dialect = replace(self._dialect, folds_names=folds_names(session))
        self._handed_over = None if safe_from is None else HandedOver(session, self._subject, self._dialect, history)
        self._safe_from = safe_from or 0
        self._row = DdlRecord(session, step, config, lease)
        self._attempt = DdlAttempt(session, self._row, self._subject, self._dialect, config, self._handed_over)
        self._views = LeftOutViews(session, config, lease.cluster_id, self._dialect, history)

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
            return DdlOutcome(SKIPPED, "ignored", self._step.query, (self._attempt.frozen_words(SKIPPED, self._step.query),))
        lacking = [lack for lack in lacks(self._session, self._subject, self._dialect) if lack.kind in FREEZES]
        if not lacking:
            others = () if self._handed_over is not None else other_values(self._session, self._subject)
            return DdlOutcome(DONE, "ignored", self._step.query, others)
        return DdlOutcome(SKIPPED, "ignored", self._step.query, (self._attempt.frozen_words(SKIPPED, self._step.query),))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Run the block with autocommit on (MariaDB 10.11 blocks itself in EXCHANGE PARTITION without it), the DDL lock and the lease.

        No other process can take the lease while the block runs. If this process is suspended in it, the server closes its connection, which releases
        the lock, before another process can continue. So the statement cannot be executed late.
        """
        name = lock_name(DDL, self._lease.schema, self._lease.cluster_id)
        with alone(self._session, name, self._policy), with_autocommit(self._session):
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
            return self._finish(self._attempt.pass_by("filter" if refused else "frozen", self._subject.given.why))
        self._attempt.clock = clock_of(self._session, self._subject)
        if by_changes(self._subject, self._dialect):
            return self._run_changes(earlier)
        elsewhere = scattered(self._session, self._subject)
        texts = self._attempt.statements()
        if self._subject.job.kind.effect is JobEffect.RENAMES and not joined(texts):
            _log.info("DDL at commit_ts %d needs no statement: the names are the same at the target", self._step.commit_ts)
            return self._finish(DdlOutcome(DONE, "nothing", ""))
        now = self._attempt.snapshot()
        if earlier is not None and earlier.refused:
            self._row.told = ()  # that attempt has made nothing
        judge = ExecutionCheck(self._session, self._step, self._subject, self._dialect, table_of(self._config))
        if earlier is not None and not elsewhere and judge.has_run(earlier, now):
            losses = (
                *losses_of(texts),
                *self._attempt.other_values(),
                *(loss for text in texts for loss in self._attempt.declare(*text.then)),
            )
            if earlier.executed != joined(texts):  # a table was made in another form, and may lack parts that the target takes
                losses = (*losses, *(loss for number in range(len(texts)) for loss in self._attempt.completed(self._attempt.made(number))))
            return self._finish(DdlOutcome(DONE, "found", self._step.query, losses))
        begun_here = earlier is not None and not earlier.refused and not earlier.was_refused_before
        if self._handed_over and not begun_here and not self._attempt.never and (found := self._by_another(texts)):
            return found
        if earlier is None or earlier.refused:
            now = now if elsewhere else self._attempt.rebuilt(now)
            self._write_intent(joined(texts), now)
        else:
            self._attempt.unfinished = earlier.snapshot
        self._point("after-ddl-intent")
        why = ("partition", elsewhere) if elsewhere else self._why_not()
        outcome = self._attempt.pass_by(*why) if why else self._attempt.execute(texts, now)
        self._point("after-ddl")
        return self._finish(outcome)

    def _run_changes(self, earlier: RecordedTry | None) -> DdlOutcome:
        """Make the changes that the target does not have; after a crash the same again."""
        step, altered = self._step, altered_by(self._attempt.clock.subject, self._dialect)
        why = self._why_not()
        if altered is None or why:
            self._write_intent(self._step.query, NOTHING_KEPT)
            return self._finish(self._attempt.pass_by(*(why or ("changes", UNCLEAR))))
        by_itself = all(isinstance(change, _REFUSED_TWICE) for change in altered.changes)
        unseen = by_itself and earlier is None and self._handed_over is None and not by_text(altered, self._subject)
        left = replace(self._attempt.whole(altered), unseen=True) if unseen else self._attempt.lacking(altered)
        if earlier is None or earlier.refused:
            self._write_intent(left.sql or step.query, NOTHING_KEPT)
        self._point("after-ddl-intent")
        outcome = self._attempt.execute_left(left, "nothing" if earlier is None else "found")
        self._point("after-ddl")
        if not outcome.freezes:
            losses = tuple(f"{self._subject.label}: {loss}" for loss in altered.losses())
            converted = () if by_itself else converted_otherwise(self._subject, self._dialect.flavour)
            outcome = replace(outcome, losses=(*outcome.losses, *losses, *converted))
        else:
            outcome = replace(outcome, losses=(*self._row.told, *outcome.losses))  # rows that were updated before the refusal
        return self._finish(outcome)

    def _why_not(self) -> tuple[str, str] | None:
        """The step at which the job is passed by, and why; None: the job is executed."""
        if self._attempt.never:
            return "policy", self._attempt.never
        if self._attempt.clock.why_not:
            return "time zone", self._attempt.clock.why_not
        if self._subject.given.form is DdlForm.REFUSED:
            return "policy", self._subject.given.why
        if why := out_of_place(self._subject, self._history, self._config):
            return "view", why
        return None

    def _by_another(self, texts: Sequence[Rewritten]) -> DdlOutcome | None:
        """The outcome of the DDL if another Drainer has executed it; an error if nobody can tell; None: it is to be executed."""
        assert self._handed_over is not None
        if self._handed_over.made_again(lambda job_id: self._row.made_since(job_id, self._safe_from)):
            for table in self._subject.before:
                self._session.execute(f"DROP TABLE IF EXISTS {quote_name(table.schema)}.{quote_name(table.name)}")
        if why := self._handed_over.undecided():
            self._row.note_try("safe mode", self._step.query, ApplyError(why))  # in the intent, too: it is none to be executed
            self._write_intent(joined(texts), self._attempt.snapshot())
            return self._finish(self._attempt.by_policy(self._step.query, why))
        if not self._handed_over.executed():
            return None
        _log.warning("safe mode: the DDL at commit_ts %d was executed by another Drainer already: %s", self._step.commit_ts, joined(texts))
        return self._finish(DdlOutcome(DONE, "found", joined(texts), losses_of(texts)))

    def _point(self, name: str) -> None:
        """A failpoint, and one for this type of DDL: ``after-ddl`` and ``after-ddl-exchange-partition``."""
        failpoints.point(name)
        failpoints.point(f"{name}-{self._subject.job.type_name.replace(' ', '-')}")

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

        made = self._views.try_again(self._subject.job) if outcome.how in EXECUTED else {}

        def done(session: Target) -> None:
            self._views.note_made(made)
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
