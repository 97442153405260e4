"""Each step of a Pump's log counts once, however often it is shown."""

from pyspark_tidb_binlog.binlog_source.source.admission import LogStep, TailView
from pyspark_tidb_binlog.binlog_source.source.stream_report import ReceivedSteps
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position


def view(*steps: tuple[int, int], anew: bool = False) -> TailView:
    return TailView(Position(0, 0), 0, tuple(LogStep(Position(1, at), at, at, size) for at, size in steps), anew=anew)


def test_a_step_counts_once() -> None:
    received = ReceivedSteps()
    received.note({"a": view((10, 10), (30, 20)), "b": view()})
    received.note({"a": view((10, 10), (30, 20)), "b": view((5, 5))})
    assert received.totals() == {"a": (2, 30), "b": (1, 5)}
    received.note({"a": view((60, 30))})
    received.note({"a": view()})
    received.note({"a": view((60, 30), (61, 1))})
    assert received.totals() == {"a": (4, 61), "b": (1, 5)}


def test_a_log_that_begins_again_is_counted_on() -> None:
    received = ReceivedSteps()
    received.note({"a": view((100, 100))})
    received.note({"a": view((7, 7))})
    assert received.totals() == {"a": (2, 107)}
    received.note({"a": view((8, 1), (9, 1), anew=True)})
    assert received.totals() == {"a": (4, 109)}
