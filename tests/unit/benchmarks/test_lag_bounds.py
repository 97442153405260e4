"""What bench_lag names as the bounds of the lag."""

from benchmarks.bench_lag import bounds


def test_a_row_waits_for_half_a_batch_and_is_applied_by_the_next() -> None:
    text = bounds([{"triggerExecution": 400.0, "addBatch": 350.0}], [300.0], 0.002)
    assert "one and a half batches 600 ms" in text
    assert "150 ms (Spark's own part of a batch 100 ms)" in text
    assert text.endswith("one commit of the target 2.0 ms")


def test_nothing_was_measured() -> None:
    assert "one and a half batches 0 ms" in bounds([], [], 0.0)
