"""Durations, pauses and sizes as settings write them."""

import pytest

from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.conf.units import duration_of, go_duration, pause_of, size_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m30s", 90), ("1.5h", 5400), ("100ms", 0.1), ("2us", 2e-6), ("3µs", 3e-6), ("-2s", -2), ("0", 0), (".5s", 0.5)]
)
def test_a_duration_of_go(text: str, seconds: float) -> None:
    assert go_duration(text) == pytest.approx(seconds)


def test_a_duration_may_be_whole_days_or_nothing_and_is_never_below_it() -> None:
    assert [duration_of(text) for text in ("0", "0s", " 7 ", "1h")] == [0, 0, 7 * 86_400, 3600]
    with pytest.raises(ValueError, match="'-1s' is below 0"):
        duration_of("-1s")


def test_a_size() -> None:
    assert [size_of(f"1{prefix}b") for prefix in "kMgTp"] == [1000**n for n in range(1, 6)]
    assert [size_of(f"1 {prefix}iB") for prefix in "KMGTP"] == [1024**n for n in range(1, 6)]
    assert [size_of(text) for text in ("", "7", "7b", "1.5 kB", "2m")] == [0, 7, 7, 1500, 2_000_000]


@pytest.mark.parametrize("text", ["x", "1 xb", "1ib", "1 e", "-1", "1,5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write bytes, 42 MB or 10 GiB"):
        size_of(text)


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
