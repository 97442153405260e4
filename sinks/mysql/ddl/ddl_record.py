"""The record of each DDL at the target, ``spark_ddl``: intent, outcome, what was refused and left out. [db]

Promises: what is written is written under the lease, and the outcome in one transaction with the checkpoint. What people and RECOVER TABLE read
(``remarkable``, ``load_outcomes``) needs no lease; a target without the table has no records.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables, from_json, to_json
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, check, write
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import in_transaction

INTENT, REFUSED, DONE, SKIPPED, QUARANTINED, NOT_SYNCED = "intent", "refused", "done", "skipped", "quarantined", "not synced"

_MOST_TRIES = 20
"""Number of refusals kept per DDL, the newest ones."""

_TABLE = "spark_ddl"
LEFT_OUT = "left out"
"""``DdlOutcome.how`` of a DDL on a view that the target refuses: it is tried again (``executor``)."""
_FATES = {LEFT_OUT: LEFT_OUT, "found": "already there", "nothing": "not needed", "filtered": "filtered", "ignored": "ignored"}


@dataclass(frozen=True, slots=True)
class DdlOutcome:
    """The outcome of one DDL."""

    state: str
    """``done``, ``skipped``, ``quarantined`` or ``not synced``."""
    how: str
    """``text``, ``changes`` (from the table infos, change by change), ``derived`` (from the infos, as the text was refused), ``found`` (its effect was there: executed before a crash, or by an operator), ``nothing`` (no statement
    needed), ``filtered``, ``ignored``, ``left out`` (a view), ``policy`` or ``sync-ddl``."""
    sql: str
    losses: tuple[str, ...] = ()
    frozen: FrozenTables = field(default_factory=dict)
    """The tables that it freezes."""

    @property
    def freezes(self) -> bool:
        """Whether the DDL was not executed, so that its tables are frozen from here on."""
        return self.state in (SKIPPED, QUARANTINED)

    @property
    def fate(self) -> str:
        """The fate that ``DdlResult`` reports."""
        return _FATES.get(self.how, "executed in part" if self.losses else "executed") if self.state == DONE else self.state


RECORDED = "state, commit_ts, executed, losses, picture, tries, frozen"
"""The columns of a ``RecordedTry``."""


class RecordedTry(NamedTuple):
    """The row of a DDL."""

    state: str
    commit_ts: int
    executed: str | None
    losses: str | None
    picture: str | None
    tries: str | None
    frozen: str | None

    @property
    def unfinished(self) -> bool:
        """Whether it has an intent, or was refused."""
        return self.state in (INTENT, REFUSED) and bool(self.picture)

    @property
    def refused(self) -> bool:
        """Whether it was refused and had no effect; otherwise the outcome of an unfinished one is unknown."""
        return self.state == REFUSED

    @property
    def was_refused_before(self) -> bool:
        """Whether it was refused at least once, and an operator was asked to repair the target."""
        return bool(json.loads(self.tries or "[]"))

    @property
    def snapshot(self) -> SchemaSnapshot:
        """The target before an unfinished attempt."""
        return SchemaSnapshot.from_json(self.picture or "")


def ensure_ddl_table(session: Target, config: ApplyConfig) -> None:
    """Create the table of DDL records if missing."""
    schema = quote_name(config.checkpoint_schema)
    session.execute(f"CREATE DATABASE IF NOT EXISTS {schema}")
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {table_of(config)} ("
        "cluster_id BIGINT UNSIGNED NOT NULL, job_id BIGINT NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, version BIGINT NOT NULL, "
        "early TINYINT NOT NULL, state VARCHAR(16) NOT NULL, query LONGTEXT NOT NULL, executed LONGTEXT, picture LONGTEXT, losses LONGTEXT, "
        "note LONGTEXT, tries LONGTEXT, frozen LONGTEXT, began TIMESTAMP(3) NULL, ended TIMESTAMP(3) NULL, PRIMARY KEY (cluster_id, job_id)) "
        f"{made_with(_TABLE, ' DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin')}"
    )
    require_sound(session, config.checkpoint_schema, _TABLE)


def note_copied(session: Target, config: ApplyConfig, cluster_id: int, ts: int, table: TableAt, how: str, losses: Sequence[str]) -> None:
    """Record, in the caller's transaction, what a first load at ``ts`` could not make of a table or view, which has no job: the id is ``-table_id``."""
    session.execute(
        f"REPLACE INTO {table_of(config)} (cluster_id, job_id, commit_ts, version, early, state, query, losses, note, began, ended) "
        "VALUES (%s, %s, %s, %s, 0, %s, '', %s, %s, NOW(3), NOW(3))",
        [cluster_id, -table.table_id, ts, table.version, DONE, json.dumps(losses, ensure_ascii=False), how],
    )


def load_applied(session: Target, config: ApplyConfig, cluster_id: int, version: int) -> AppliedJobs:
    """The jobs executed on the target: all up to ``version`` (the checkpoint's schema-version), and those recorded beyond it."""
    rows = session.query(
        f"SELECT job_id FROM {table_of(config)} WHERE cluster_id = %s AND state NOT IN (%s, %s) AND version > %s",
        [cluster_id, INTENT, REFUSED, version],
    )
    return AppliedJobs(version, frozenset(int(job_id) for (job_id,) in rows))


def begin_record(session: Target, config: ApplyConfig, cluster_id: int, commit_ts: int, *, afresh: bool) -> None:
    """Record, in the caller's transaction, the commit_ts where this program began, as job 0. No DDL has this id.

    Without ``afresh``, and where it is recorded, nothing changes.
    """
    if afresh:
        session.execute(f"DELETE FROM {table_of(config)} WHERE cluster_id = %s AND job_id = 0", [cluster_id])
    columns = "cluster_id, job_id, commit_ts, version, early, state, query, note"
    values = [cluster_id, 0, commit_ts, 0, 0, DONE, "", ""]
    session.execute(f"INSERT IGNORE INTO {table_of(config)} ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", values)


def forget_later(session: Target, config: ApplyConfig, cluster_id: int, commit_ts: int) -> tuple[int, ...]:
    """Delete the records of jobs finished after the target's checkpoint, in the caller's transaction; returns their ids.

    Intents are kept: whether they were executed is judged from the target.
    """
    which = f"FROM {table_of(config)} WHERE cluster_id = %s AND commit_ts > %s AND state NOT IN (%s, %s)"
    values = [cluster_id, commit_ts, INTENT, REFUSED]
    jobs = tuple(int(job_id) for (job_id,) in session.query(f"SELECT job_id {which} ORDER BY commit_ts", values))
    if jobs:
        session.execute(f"DELETE {which}", values)
    return jobs


def load_frozen(session: Target, config: ApplyConfig, cluster_id: int) -> FrozenTables:
    """The frozen tables. The row of the job since when a table is frozen, set to ``done``, unfreezes it, also under its later ids."""
    rows = session.query(
        f"SELECT job_id, frozen FROM {table_of(config)} WHERE cluster_id = %s AND state IN (%s, %s) AND frozen IS NOT NULL",
        [cluster_id, SKIPPED, QUARANTINED],
    )
    since = {int(job_id) for job_id, _ in rows}
    return {i: table for _, text in rows for i, table in from_json(text).items() if table.since in since}


class DdlRecord:
    """The row of one DDL. What is written is written under the lease."""

    def __init__(self, session: Target, step: DdlStep, config: ApplyConfig, lease: Lease) -> None:
        """Name the record of ``step``, in the cluster of the lease."""
        self._session = session
        self.step = step
        self._config = config
        self._lease = lease
        self._tries: list[dict[str, str]] = []
        """Refusals of earlier calls and of this one."""
        self.losses: tuple[str, ...] = ()
        """What earlier calls and this one have updated in rows, or left out, in words."""

    def read(self) -> RecordedTry | None:
        """Read the row that earlier calls have left."""
        rows = self._session.query(
            f"SELECT {RECORDED} FROM {table_of(self._config)} WHERE cluster_id = %s AND job_id = %s",
            [self._lease.cluster_id, self.step.job.id],
        )
        found = RecordedTry(*rows[0]) if rows else None
        unfinished = found if found is not None and found.unfinished else RecordedTry("", 0, None, None, None, None, None)
        self._tries, self.losses = json.loads(unfinished.tries or "[]"), tuple(json.loads(unfinished.losses or "[]"))
        return found

    def ended(self, found: RecordedTry | None) -> DdlOutcome | None:
        """The outcome of an earlier call for the same step, when the answer to its commit was lost."""
        if found is None or found.state in (INTENT, REFUSED) or found.commit_ts != self.step.commit_ts:
            return None
        frozen = from_json(found.frozen or "{}")
        return DdlOutcome(found.state, "found", found.executed or "", tuple(json.loads(found.losses or "[]")), frozen)

    def note_try(self, step: str, sql: str, error: ApplyError) -> None:
        """Keep a refusal; written with the next state."""
        at = str(self._session.query("SELECT UTC_TIMESTAMP(3)")[0][0])
        self._tries = [*self._tries, {"at": at, "step": step, "sql": sql, "words": str(error)}][-_MOST_TRIES:]

    def note_losses(self, *words: str, sql: str = "") -> None:
        """Record what rows were updated, or what is left out, in the caller's transaction: a later call, which cannot see it, has these words, too.

        ``sql``: the statement that is sent from here on, because the target has refused the one before.
        """
        check(self._session, self._lease)
        self.losses = tuple(dict.fromkeys((*self.losses, *words)))
        self._session.execute(
            f"UPDATE {table_of(self._config)} SET losses = %s, executed = IF(%s = '', executed, %s) WHERE cluster_id = %s AND job_id = %s",
            [json.dumps(self.losses, ensure_ascii=False), sql, sql, self._lease.cluster_id, self.step.job.id],
        )

    def note_made(self, views: Mapping[int, tuple[str, ...]]) -> None:
        """Record, in the caller's transaction, that views of earlier jobs, which were left out, are there; with the losses of each."""
        for job_id, losses in views.items():
            self._session.execute(
                f"UPDATE {table_of(self._config)} SET note = 'text', losses = %s WHERE cluster_id = %s AND job_id = %s",
                [json.dumps(losses, ensure_ascii=False), self._lease.cluster_id, job_id],
            )

    def write_refused(self) -> None:
        """Record the refusal; the next start takes a new snapshot."""
        with in_transaction(self._session):
            check(self._session, self._lease)
            row = self._columns(REFUSED, losses=json.dumps(self.losses, ensure_ascii=False))
            self._session.execute(
                f"UPDATE {table_of(self._config)} SET state = %s, tries = %s, losses = %s WHERE cluster_id = %s AND job_id = %s AND state IN (%s, %s)",
                [*(row[name] for name in ("state", "tries", "losses", "cluster_id", "job_id")), INTENT, REFUSED],
            )

    def _columns(self, state: str, **more: object) -> dict[str, object]:
        step, tries = self.step, json.dumps(self._tries, ensure_ascii=False) if self._tries else None
        key = {"cluster_id": self._lease.cluster_id, "job_id": step.job.id, "commit_ts": step.commit_ts, "version": step.job.version}
        return {**key, "early": int(step.early), "state": state, "query": step.query, "tries": tries, **more}

    def write_intent(self, sql: str, picture: str) -> None:
        """Record what is about to be executed; ``picture``: the target before it, as JSON."""
        losses = json.dumps(self.losses, ensure_ascii=False)
        row = self._columns(INTENT, executed=sql, picture=picture, losses=losses)
        into = f"REPLACE INTO {table_of(self._config)} ({', '.join(row)}, began) SELECT {'%s, ' * len(row)}NOW(3)"
        write(self._session, self._lease, into, list(row.values()))

    def write_done(self, outcome: DdlOutcome) -> None:
        """Record the outcome, in the caller's transaction."""
        check(self._session, self._lease)
        losses = json.dumps((*self.step.losses, *outcome.losses), ensure_ascii=False)
        frozen = to_json(outcome.frozen) if outcome.frozen else None
        row = self._columns(outcome.state, executed=outcome.sql, losses=losses, note=outcome.how, frozen=frozen)
        self._session.execute(
            f"INSERT INTO {table_of(self._config)} ({', '.join(row)}, began, ended) VALUES ({'%s, ' * len(row)}NOW(3), NOW(3)) "
            f"ON DUPLICATE KEY UPDATE picture = NULL, {', '.join(f'{name} = VALUES({name})' for name in (*row, 'ended'))}",
            list(row.values()),
        )


def table_of(config: ApplyConfig) -> str:
    """The table's name, quoted."""
    return f"{quote_name(config.checkpoint_schema)}.{quote_name(_TABLE)}"


@dataclass(frozen=True, slots=True)
class RecordedDdl:
    """One DDL that has left something to know."""

    cluster_id: int
    job_id: int
    commit_ts: int
    state: str
    """``refused`` (the stream stops before it), ``intent`` (it is running, or a crash interrupted it), ``skipped``, ``quarantined``, ``not synced``, ``done``."""
    how: str
    """``text``, ``derived``, ``found``, ``nothing``, ``filtered``, ``ignored``, ``left out``, ``policy``, ``sync-ddl``; empty while it is not done."""
    query: str
    """TiDB's text."""
    executed: str
    """What the target was given; empty = nothing."""
    losses: tuple[str, ...]
    """What the target could not take."""
    refusals: tuple[str, ...]
    """The server's messages, oldest first."""


def remarkable(session: Session, schema: str, cluster_id: int = 0) -> list[RecordedDdl]:
    """The DDLs that were not executed as TiDB wrote them, or not in full, by commit_ts; ``cluster_id`` 0: of every cluster."""
    wanted = "(state <> 'done' OR note IN (%s, %s) OR (losses IS NOT NULL AND losses NOT IN ('', '[]')))"
    values = ["derived", "ignored", *([cluster_id] if cluster_id else [])]
    cluster = " AND cluster_id = %s" if cluster_id else ""
    try:
        rows = session.query(
            f"SELECT cluster_id, job_id, commit_ts, state, note, query, executed, losses, tries FROM {quote_name(schema)}.spark_ddl "
            f"WHERE {wanted}{cluster} ORDER BY commit_ts, job_id",
            values,
        )
    except ApplyError as error:
        if error.errno in ABSENT:
            return []
        raise
    found = []
    for cluster, job, ts, state, how, query, executed, losses, tries in rows:
        refusals = tuple(f"{one['at']} {one['step']}: {one['words']} ({one['sql']})" for one in json.loads(tries or "[]"))
        lost = tuple(json.loads(losses or "[]"))
        found.append(RecordedDdl(int(cluster), int(job), int(ts), str(state), how or "", str(query), executed or "", lost, refusals))
    return found


def applied_at(session: Target, config: ApplyConfig, cluster_id: int, stand: tuple[int, int], history: SchemaHistory) -> AppliedJobs:
    """The jobs that are executed on the target where its checkpoint says ``stand`` = (commit_ts, schema version)."""
    commit_ts, version = stand
    applied = load_applied(session, config, cluster_id, version)
    records = table_of(config)
    began = session.query(f"SELECT commit_ts FROM {records} WHERE cluster_id = %s AND job_id = 0", [cluster_id])
    applied = replace(applied, since=int(began[0][0]) if began else commit_ts)
    if doubtful := [job.id for job in history.behind(version, commit_ts, applied.since)]:
        which = f"cluster_id = %s AND state NOT IN (%s, %s) AND job_id IN ({', '.join(['%s'] * len(doubtful))})"
        rows = session.query(f"SELECT job_id FROM {records} WHERE {which}", [cluster_id, INTENT, REFUSED, *doubtful])
        applied = replace(applied, early=applied.early | {int(job_id) for (job_id,) in rows})
    return applied.at(commit_ts, history)
