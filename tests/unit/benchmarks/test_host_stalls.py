"""What the machine withheld, in a line; that it is measured shows a process of its own on each core."""

import pytest

from benchmarks.host_stalls import HostStalls, watched


@pytest.mark.parametrize(
    ("stalls", "words"),
    [
        (HostStalls(), "not measured: that needs root"),
        (HostStalls(measured=True), "0 stalls over 10 ms, the longest 0 ms, in all 0.0 s"),
        (HostStalls(True, [0.02, 0.6]), "2 stalls over 10 ms, the longest 600 ms, in all 0.6 s"),
        (HostStalls(True, [], [0.002] * 8 + [0.001] + [0.003] * 3), "a fixed loop took 2.00 times its best in the median, 3.00 at p90"),
    ],
)
def test_in_words(stalls: HostStalls, words: str) -> None:
    assert words in str(stalls)


def test_the_processes_end_with_the_block() -> None:
    with watched() as stalls:
        assert not stalls.measured
    assert all(late > 0.01 for late in stalls.seconds) and all(took > 0 for took in stalls.loops)
