"""Which errors of the target pass, and how long they are waited for."""

import pickle

import pytest

from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, RetryPolicy, TransientError, passing, what_is_wrong
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.attempts import run_retried


@pytest.mark.parametrize(
    ("errno", "words", "what"),
    [
        (1290, "The MariaDB server is running with the --read-only option so it cannot execute this statement", "read-only"),
        (1290, "The MySQL server is running with the --super-read-only option so it cannot execute this statement", "read-only"),
        (1290, "The MariaDB server is running with the --read_only=NO_LOCK option so it cannot execute this statement", "read-only"),
        (1290, "The MariaDB server is running with the --secure-file-priv option so it cannot execute this statement", ""),
        (1290, "The MySQL server is running with the --innodb-read-only option so it cannot execute this statement", ""),
        (1836, "Running in read-only mode", "read-only"),
        (3989, "Schema 'd' is in read only mode.", "read-only"),
        (1792, "Cannot execute statement in a READ ONLY transaction.", "read-only"),
        (2003, "Can't connect", "not reachable"),
        (2013, "Lost connection", "connection lost"),
        (1213, "Deadlock found", "in conflict with another transaction"),
        (1040, "Too many connections", "busy"),
        (1226, "User 'drainer' has exceeded the 'max_user_connections' resource (current value: 2)", "busy"),
        (1969, "Query execution was interrupted (max_statement_time exceeded)", "ending statements that take long"),
        (3024, "Query execution was interrupted, maximum statement execution time exceeded", "ending statements that take long"),
        (1047, "WSREP has not yet prepared node for application use", "not in sync with its cluster"),
        (1047, "Unknown command", ""),
        (1045, "Access denied for user", ""),
        (1044, "Access denied to database", ""),
        (1142, "INSERT command denied", ""),
        (1049, "Unknown database", ""),
        (1146, "Table doesn't exist", ""),
        (1129, "Host is blocked because of many connection errors", ""),
    ],
)
def test_what_passes_and_what_does_not(errno: int, words: str, what: str) -> None:
    assert passing(errno, words) == what


def test_both_bounds_are_lower_ones() -> None:
    patience = RetryPolicy(retries=3, seconds=60.0)
    assert [patience.gives_up(attempt, waited) for attempt, waited in [(0, 0), (3, 59), (2, 61), (3, 60), (9, 600)]] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert FEW.gives_up(10, 0.0) and not FEW.gives_up(9, 1e9)


def test_what_is_waited_for_is_told_and_taken_back() -> None:
    told: list[str] = []
    tries = 0

    def refuse() -> Session:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise RetryableApplyError("error 1836, Running in read-only mode", 1836, where="db:3306")
        raise ApplyError("error 1045, Access denied", 1045, where="db:3306")

    with pytest.raises(ApplyError, match="Access denied"):
        run_retried(refuse, lambda session: None, RetryPolicy(pause=lambda seconds: None, tell=lambda waited: told.append(str(waited))))
    assert [text.partition(" since ")[0] for text in told] == ["target db:3306: read-only"] * 3
    assert len(set(told)) == 1, "since the first"


def test_for_people() -> None:
    assert str(TransientError("target db:3306: read-only", 0.0)) == "target db:3306: read-only since 1970-01-01 00:00:00"
    assert what_is_wrong(RetryableApplyError("error 2006, gone", 2006, where="db:1")) == "target db:1: connection lost"


def test_an_error_keeps_its_place_through_pickling() -> None:
    error = pickle.loads(pickle.dumps(RetryableApplyError("words", 1836, where="db:3306")))
    assert (str(error), error.errno, error.where) == ("words", 1836, "db:3306")
