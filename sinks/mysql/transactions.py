"""Autocommit, transactions and session variables around the statements of DDLs. [db]

Promises: an error leaves no transaction open, and autocommit and the variables as they were.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.errors import RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.retry_policy import connection_lost
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

_log = logging.getLogger(__name__)


@contextmanager
def with_autocommit(session: Target) -> Iterator[None]:
    """Run the block with autocommit on; an error leaves no transaction open."""
    switched = not session.autocommit
    if switched:
        session.execute("SET SESSION autocommit = 1")
    try:
        yield
    except BaseException:
        _unless_lost(session.rollback)  # or switching autocommit back would commit it
        raise
    finally:
        if switched:
            _unless_lost(lambda: session.execute("SET SESSION autocommit = 0"))


@contextmanager
def with_settings(session: Target, settings: Mapping[str, str]) -> Iterator[None]:
    """Run the block with these session variables, whose values are SQL; afterwards they are as they were, and the time goes on."""
    own = {name: value for name in settings if name != "timestamp" for ((value,),) in [session.query(f"SELECT @@SESSION.{name}")]}
    # A server takes no number in quotes.
    was = {name: str(value) if isinstance(value, int) else quote_string(as_text(value)) for name, value in own.items()}
    try:
        for name, value in settings.items():
            session.execute(f"SET SESSION {name} = {value}")
        yield
    finally:
        for name in settings:
            _unless_lost(partial(session.execute, f"SET SESSION {name} = {was.get(name, 'DEFAULT')}"))


@contextmanager
def in_transaction(session: Target) -> Iterator[None]:
    """Run the block, which writes rows, in a transaction of its own, so that it is marked where the target is in a ring."""
    session.begin()
    try:
        yield
    except BaseException:
        _unless_lost(session.rollback)
        raise
    session.commit()


def _unless_lost(do: Callable[[], object]) -> None:
    try:
        do()
    except RetryableApplyError as error:
        if not connection_lost(error.errno):
            raise
        _log.debug("the connection was lost, which ended the transaction and released the lock")
