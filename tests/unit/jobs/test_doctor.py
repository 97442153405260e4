"""The lines of ``ctl doctor``, from what was found out; and a question that nobody answers."""

import threading
import time
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.jobs.check import doctor
from pyspark_tidb_binlog.jobs.check.doctor import Examined, lines
from pyspark_tidb_binlog.jobs.check.node_report import Question
from pyspark_tidb_binlog.schemas.alarms import Check, Facts
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from tests.unit.schemas.test_alarms import WELL

WORDS = {check: f"words on {check}" for check in Check}


def test_eleven_lines_when_all_is_well() -> None:
    said = list(lines(Examined(WELL, WORDS)))
    assert [good for _, good in said] == [True] * 11
    assert said[1][0] == "ok        lag          words on lag" and said[6][0] == "ok        GC distance  words on GC distance"


def test_what_is_wrong_and_what_is_not_known() -> None:
    found = Examined(
        replace(WELL, target="cannot connect\nto it", rights=None, lease=None, disks=None, pumps=None), WORDS, frozenset({Check.DISK})
    )
    bad = [line for line, good in lines(found) if not good]
    assert bad[0].startswith(
        "critical  target       cannot connect to it; correct host, port, user or password, or start the server (docs/"
    )
    assert bad[1:] == ["unknown   rights       words on rights", "unknown   GC distance  words on GC distance"]
    assert ("-         disk         words on disk", True) in lines(found)


def test_nothing_that_a_terminal_obeys_is_shown() -> None:
    (line, *_) = (line for line, _ in lines(Examined(replace(WELL, findings=1, newest_finding="\x1b[2J"), WORDS)) if "\\x1b[2J" in line)
    assert line.startswith("warning   findings     1 findings, the newest: ")


def test_answers_and_what_takes_their_place() -> None:
    def refuse() -> int:
        raise PumpUnavailable("nobody is there")

    held, begun = threading.Event(), time.monotonic()
    late = Question(lambda: held.wait(60), 0.05)
    assert (Question(lambda: 7, 60).answer, Question(refuse, 60).answer, late.answer) == (7, "nobody is there", "no answer within 0 s")
    assert time.monotonic() - begun < 30
    held.set()


@pytest.mark.parametrize(
    ("at", "gc_ts", "seconds"), [(0, 5, None), (0, 0, float("inf")), (9, None, None), (3600_000 << 18, 1 << 18, 3599.999)]
)
def test_the_distance_to_what_was_collected(at: int, gc_ts: int | None, seconds: float | None) -> None:
    assert doctor._ahead(at, gc_ts) == seconds


def test_nothing_known_is_not_well() -> None:
    assert [good for _, good in lines(Examined(Facts(), {}))] == [False] * 11
