"""Prewrites that gather: each caller gets the fate of its own group, and none is lost or written twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from binlog_source.pump.writer import Pending
from binlog_source.upstream.pump_client import _Gate
from schemas.errors import PumpUnavailable


class Writer:
    """Keeps what it is given; refuses groups that hold ``b"bad"``."""

    def __init__(self):
        self.groups = []

    def start_many(self, payloads):
        self.groups.append(list(payloads))

        def result():
            if b"bad" in payloads:
                raise PumpUnavailable("the disk is full")

        return Pending(result)


def test_what_is_begun_together_goes_together_and_nothing_is_lost():
    writer = Writer()
    gate = _Gate(writer, gather=0.05)
    barrier = threading.Barrier(8)
    payloads = [b"%d" % number for number in range(8)]

    def write(payload):
        barrier.wait()
        gate.write(payload)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, payloads))
    assert sorted(payload for group in writer.groups for payload in group) == payloads
    assert len(writer.groups) < 8


def test_one_caller_alone_is_served():
    writer = Writer()
    gate = _Gate(writer, gather=0.001)
    gate.write(b"a")
    gate.write(b"b")
    assert writer.groups == [[b"a"], [b"b"]]


def test_a_refused_group_is_refused_to_each_of_it_and_the_next_one_is_tried():
    writer = Writer()
    gate = _Gate(writer, gather=0.001)
    with pytest.raises(PumpUnavailable, match="the disk is full"):
        gate.write(b"bad")
    gate.write(b"good")
    assert writer.groups == [[b"bad"], [b"good"]]
