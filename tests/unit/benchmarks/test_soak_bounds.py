"""What a soak takes for flat."""

import pytest

from benchmarks.soak_bounds import Allowed, Verdict, allowed, verdicts

FIVE_MINUTES = 300.0


@pytest.mark.parametrize(
    ("name", "start", "end", "flat"),
    [
        ("JVM heap after GC, MiB", 100.0, 168.0, True),
        ("JVM heap after GC, MiB", 100.0, 169.0, False),
        ("delta-dir data files", 10.0, 218.0, True),
        ("delta-dir data files", 10.0, 219.0, False),
        ("tidb_binlog.checkpoint rows", 1.0, 2.0, False),
        ("Python open", 40.0, 1000.0, False),
        ("a measure without a bound", 0.0, 1e9, True),
    ],
)
def test_flat_or_not(name: str, start: float, end: float, flat: bool) -> None:
    (verdict,) = verdicts({name: start}, {name: end}, allowed(FIVE_MINUTES))
    assert verdict.flat is flat
    assert ("NOT FLAT" in str(verdict)) is not flat


def test_what_only_the_end_has_began_with_nothing() -> None:
    assert list(verdicts({}, {"x files": 3.0}, {"x files": Allowed(2.0, 2.0)})) == [Verdict("x files", 0.0, 3.0, 2.0)]
