"""Lag from probes and sightings, and its percentiles."""

from pyspark_tidb_binlog.jobs.demo import counts_line, lag_lines
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import Status
from pyspark_tidb_binlog.jobs.lab.lag import lags, percentile, start_up_end
from pyspark_tidb_binlog.jobs.stream.report import Progress


def test_a_probe_is_seen_with_the_first_sighting_that_reaches_it():
    second = 1_000_000_000
    probes = [(1, 1 * second), (2, 2 * second), (3, 3 * second), (4, 4 * second)]
    sightings = [(2, 5 * second // 2), (3, 10 * second)]
    assert lags(probes, sightings) == [1.5, 0.5, 7.0]
    assert lags(probes, []) == []


def test_percentiles():
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51.0
    assert percentile(values, 0.99) == 100.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([], 0.5) == 0.0


def test_the_start_up_ends_when_a_row_is_visible_that_was_committed_after_the_first_was():
    second = 1_000_000_000
    probes = [(n, n * second) for n in range(1, 21)]
    sightings = [(2, 8 * second), (8, 12 * second), (12, 13 * second), (20, 21 * second)]
    assert start_up_end(probes, sightings) == 13 * second
    assert start_up_end(probes, sightings[:2]) is None and start_up_end(probes, []) is None


def test_the_demo_says_the_lag_after_the_start_up_apart_from_that_during_it():
    second = 1_000_000_000
    probes = [(n, n * second) for n in range(1, 21)]
    slow_at_first = [(2, 8 * second), (8, 12 * second), (12, 13 * second), *((n, n * second + second // 2) for n in range(13, 21))]
    assert list(lag_lines(probes, slow_at_first)) == [
        "lag from commit to visible: p50 0.50 s, p99 0.50 s over 8 probe rows",
        "lag during the start-up, its first 12.0 s: p50 6.00 s, p99 9.00 s over 12 probe rows",
    ]
    for never_over in (slow_at_first[:1], [(2, 8 * second), (20, 21 * second)]):
        assert list(lag_lines(probes, never_over)) == [
            "lag from commit to visible: not measured, because the start-up lasted as long as the workload; give more --seconds"
        ]
    assert list(lag_lines([], [])) == []


def test_the_demo_says_both_counts_only_where_they_differ():
    written = Status(transactions=2000, changes=5000, first_ddls=10, ddls=20, upto_ts=1, failure="", running=True)
    assert counts_line(written, Progress(transactions=2000, row_events=5000, ddls=30)) == (
        "the upstream wrote 2,000 transactions, 5,000 row changes and 30 DDLs, and the Drainer applied as many"
    )
    assert counts_line(written, Progress(transactions=1999, row_events=4000, ddls=30)).endswith("the Drainer applied 1,999, 4,000 and 30")
