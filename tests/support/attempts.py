"""One piece of work at the target in one call, as the sinks spell it out: attempts, a session or a transaction, checked effects."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.mysql.checked import checked
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session, Sessions, begin_use, session_for, transaction
from pyspark_tidb_binlog.sinks.mysql.statements import Statement

T = TypeVar("T")


def run_transaction(sessions: Sessions, work: Callable[[Session], T], policy: RetryPolicy = FEW) -> T:
    for attempt in retrying(policy):
        with attempt, transaction(sessions, attempt) as session:
            done = work(session)
    return done


def run_retried(sessions: Sessions, work: Callable[[Session], T], policy: RetryPolicy, first: Callable[[Session], None] = begin_use) -> T:
    for attempt in retrying(policy):
        with attempt, session_for(sessions, attempt, first) as session:
            done = work(session)
    return done


def run_checked(session: Session, config: ApplyConfig, statements: Iterable[Statement]) -> tuple[Finding, ...]:
    for effects in checked(session, config):
        effects.run(statements)
    return tuple(effects.findings)
