"""Lag from probes and sightings, and its percentiles."""

from pyspark_tidb_binlog.jobs.lab.lag import lags, percentile


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
