"""The Pump client's parts by themselves: what follows a failure, the connection, the settings."""

import pickle
from collections.abc import Callable

import pytest

from pyspark_tidb_binlog.binlog_source.pump_client.connection import PumpConnection
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed
from tests.support.fakes.pump_world import Wire, World, fails

A = "a:1"


@pytest.fixture
def world():
    return World()


class Meanwhile(Wire):
    """What its ``todo`` says happens once, while a call is under way."""

    todo: Callable[[], None] | None = None

    def write(self, payload):
        todo, Meanwhile.todo = Meanwhile.todo, None
        if todo is not None:
            todo()
        super().write(payload)


@pytest.mark.parametrize(
    "failure, large",
    [
        (WriteFailed("", "UNAVAILABLE"), False),
        (WriteFailed("", "RESOURCE_EXHAUSTED"), True),
        (WriteFailed("", "UNKNOWN", "code = ResourceExhausted"), True),
    ],
)
def test_what_is_too_large_is_known_by_its_status(failure, large):
    assert failure.too_large is large


def test_a_reset_spares_the_call_under_way(world):
    counted = []
    connection = PumpConnection(
        "a", A, lambda address: Meanwhile(world, address), lambda answered: counted.append("+" if answered else "-")
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
    connection = PumpConnection("a", A, lambda address: Meanwhile(world, address), lambda answered: None)

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
