"""When a machine counts as quiet, as far as a run's moments tell."""

import subprocess
import sys

import pytest

from benchmarks.quiet import Moment, disturbance, watched


def moments(*used: tuple[float, float, float]) -> list[Moment]:
    """Moments two seconds apart; per interval the cores that others, the hypervisor and the run itself took."""
    found = [Moment(100.0, 5000.0, 70.0, 10.0)]
    for others, stolen, ours in used:
        last = found[-1]
        found.append(Moment(last.at + 2, last.busy + 2 * (others + ours), last.stolen + 2 * stolen, last.ours + 2 * ours))
    return found


@pytest.mark.parametrize(
    ("used", "load", "words"),
    [
        pytest.param([(0.02, 0.01, 1.9)] * 20, 0.3, "", id="the run itself may use all cores"),
        pytest.param([(0.4, 0.0, 1.0)] * 20, 0.0, "other processes used 20% of the cores (at most 10%)", id="another program"),
        pytest.param([(0.0, 0.1, 1.0)] * 20, 0.0, "the hypervisor withheld 5% of the cores (at most 2%)", id="another machine"),
        pytest.param([(0.0, 0.0, 0.0)] * 3, 3.0, "the load average is 150% of the cores (at most 50%)", id="load before"),
        pytest.param([(0.0, 0.0, 1.0)] * 15 + [(1.5, 0.0, 0.5)] * 5, 0.0, "other processes used 75% of the cores", id="a part of the run"),
        pytest.param([(0.0, 0.0, 1.0)] * 19 + [(1.5, 0.0, -1.0)], 0.0, "", id="a process of ours ends and was not waited for"),
        pytest.param([(1.0, 1.0, 0.0)] * 3, 2.0, "the load average is 100%", id="all: load"),
        pytest.param([(1.0, 1.0, 0.0)] * 3, 2.0, "50% of the cores (at most 10%); the hypervisor withheld 50%", id="all: the others"),
    ],
)
def test_what_disturbs_a_run_is_named(used: list[tuple[float, float, float]], load: float, words: str) -> None:
    found = disturbance(moments(*used), 2, load)
    assert words in found and bool(found) == bool(words)


def test_a_run_without_an_interval_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="two moments"):
        disturbance(moments(), 2)


def test_what_a_process_of_ours_uses_is_ours() -> None:
    with watched() as found:
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    first, *_, last = found
    assert last.at > first.at and last.ours - first.ours >= 0.4 and last.busy - first.busy >= 0.4
