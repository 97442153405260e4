"""Durations and pauses as settings write them."""

import pytest

from pyspark_tidb_binlog.conf.model import (
    SourceConfig,
)
from pyspark_tidb_binlog.conf.units import go_duration, pause_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m30s", 90), ("1.5h", 5400), ("100ms", 0.1), ("2us", 2e-6), ("3µs", 3e-6), ("-2s", -2), ("0", 0), (".5s", 0.5)]
)
def test_a_duration_of_go(text: str, seconds: float) -> None:
    assert go_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "1d", "s", "1m 30s", "1.5.5s", "1e3s", "m1s"])
def test_what_is_no_duration_of_go(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        go_duration(text)


@pytest.mark.parametrize(("text", "seconds"), [("200ms", 0.2), (" 1.5s ", 1.5), ("0", 0.0), ("0s", 0.0), ("1ms", 0.001), ("1m", 60.0)])
def test_a_pause(text: str, seconds: float) -> None:
    assert pause_of(text) == pytest.approx(seconds)
    assert SourceConfig(wake_idle_pumps=text).wake_interval == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "200", "-1s", "ms", "1e3ms", "1 s"])
def test_what_is_no_pause_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(ValueError, match="spark.wake-idle-pumps: .* is not a pause: write 200ms, 1.5s, or 0"):
        SourceConfig(wake_idle_pumps=text)
