"""The Pump client's parts by themselves: what follows a failure, the connection, the settings."""

import pickle
from collections.abc import Callable

import pytest

from pyspark_tidb_binlog.binlog_source.pump_client.connection import CallCounters, PumpConnection
from pyspark_tidb_binlog.binlog_source.pump_client.retry import AfterFailure, after_failed_outcome, after_failed_prewrite
from pyspark_tidb_binlog.binlog_source.pump_client.settings import DEFAULTS, PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed
from tests.support.fakes.pump_world import Wire, World, fails

A = "a:1"


@pytest.fixture
def world():
    return World()


FAILED = WriteFailed("", "UNAVAILABLE")


class Meanwhile(Wire):
    """What its ``todo`` says happens once, while a call is under way."""

    todo: Callable[[], None] | None = None

    def write(self, payload):
        todo, Meanwhile.todo = Meanwhile.todo, None
        if todo is not None:
            todo()
        super().write(payload)


@pytest.mark.parametrize(
    "failure, elapsed, retries, then",
    [
        (FAILED, 0, 0, AfterFailure.AGAIN),
        (FAILED, 15, 99, AfterFailure.AGAIN),
        (FAILED, 15.1, 3, AfterFailure.AGAIN),
        (FAILED, 15.1, 4, AfterFailure.EVERYONE),
        (FAILED, 99, 0, AfterFailure.AGAIN),
        (WriteFailed("", "RESOURCE_EXHAUSTED"), 99, 99, AfterFailure.REFUSE),
        (WriteFailed("", "UNKNOWN", "code = ResourceExhausted"), 0, 0, AfterFailure.REFUSE),
    ],
)
def test_what_follows_a_failed_prewrite(failure, elapsed, retries, then):
    assert after_failed_prewrite(failure, elapsed, retries, 3, DEFAULTS) is then


@pytest.mark.parametrize(
    "elapsed, left, then",
    [
        (0, False, AfterFailure.AGAIN),
        (600, False, AfterFailure.AGAIN),
        (600.1, False, AfterFailure.GIVE_UP),
        (0, True, AfterFailure.GIVE_UP),
    ],
)
def test_what_follows_a_failed_outcome(elapsed, left, then):
    assert after_failed_outcome(elapsed, left, DEFAULTS) is then


def test_a_reset_spares_the_call_under_way(world):
    counted = []
    connection = PumpConnection(
        "a", A, lambda address: Meanwhile(world, address), CallCounters(lambda: counted.append("+"), lambda: counted.append("-"))
    )

    def reset_meanwhile():
        connection.reset()
        assert world.hung_up == []

    Meanwhile.todo = reset_meanwhile
    connection.write([b"x"])
    assert (world.hung_up, counted) == ([A], ["+"])
    connection.write([b"y"])
    assert world.dialled == [A, A]
    connection.close()
    with pytest.raises(WriteFailed, match="closed"):
        connection.write([b"z"])


@pytest.mark.parametrize(
    "wrong", [{"write_timeout": 0}, {"probe_interval": -1}, {"max_errors": -1}, {"gather": -1}, {"socket": "/tmp/pump.sock"}]
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PumpClientSettings(**wrong)


def test_a_failure_keeps_its_code_through_pickling():
    copy = pickle.loads(pickle.dumps(WriteFailed("message", "UNAVAILABLE", "text")))
    assert (str(copy), copy.code, copy.text) == ("message", "UNAVAILABLE", "text")


def test_a_lost_connection_is_dialled_anew_once(world):
    connection = PumpConnection("a", A, lambda address: Meanwhile(world, address), CallCounters(lambda: None, lambda: None))

    def another_call_fails_meanwhile():
        with pytest.raises(WriteFailed):
            connection.write([b"y"])

    world.rules = {A: fails()}
    Meanwhile.todo = another_call_fails_meanwhile
    with pytest.raises(WriteFailed):
        connection.write([b"x"])
    assert Meanwhile.todo is None
    world.rules = {}
    connection.write([b"z"])
    assert (world.dialled, world.hung_up) == ([A, A], [A])
    connection.close()
