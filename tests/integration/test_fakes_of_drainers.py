"""Fakes of Drainers besides transactions and a Pump's own fakes, by WriteBinlog in every order: no promise is false, and none is missing.

An order is one of moments, not of records: when PD gave a commit_ts or the ts of a fake, and when the record reached the Pump. TiDB asks for
a commit_ts after its Prewrite was acknowledged, and nobody else is bound to anything.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter
from tests.support.binlogs import payload
from tests.support.pump_pulls import RAW, TIP, Pull, iter_until
from tests.support.pump_writes import CLUSTER, commit, config_of, fake, prewrite

pytestmark = pytest.mark.grpc

TXN = ("prewrite", "commit_ts", "commit")
ROLLED_BACK = ("prewrite", "rollback")
FAKE = ("fake_ts", "fake")


def orders(*actors: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Every order of the actors' moments that keeps each actor's own: (actor, moment). Of two alike the first begins: the rest is the same again."""
    turns = [number for number, moments in enumerate(actors) for _ in moments]
    alike = [(one, other) for one, other in itertools.combinations(range(len(actors)), 2) if actors[one] == actors[other]]
    for order in sorted(set(itertools.permutations(turns))):
        if any(order.index(one) > order.index(other) for one, other in alike):
            continue
        left = [iter(moments) for moments in actors]
        yield [(number, next(left[number])) for number in order]


def record(moment: str, start_ts: int, ts: int) -> bytes:
    """What an actor writes at a moment."""
    if moment == "prewrite":
        return prewrite(start_ts)
    if moment == "rollback":
        return payload(2, start_ts)
    return commit(start_ts, ts) if moment == "commit" else fake(ts)


class Timeline:
    """Writes orders one after another to one Pump, with timestamps that rise as PD's, and keeps what was promised before each commit_ts."""

    def __init__(self, pump: PumpServer, writer: PumpWriter) -> None:
        self.pump, self.writer = pump, writer
        self.now = 10
        self.commits: list[int] = []
        self.fakes: list[int] = []
        self.written: list[int] = []
        """The commit_ts of Commits and fakes in log order."""

    def tick(self) -> int:
        self.now += 1
        return self.now

    def run(self, order: list[tuple[int, str]]) -> None:
        started: dict[int, int] = {}
        stamped: dict[int, int] = {}
        promised: list[tuple[int, int]] = []
        closed: list[tuple[int, int]] = []
        for actor, moment in order:
            started.setdefault(actor, self.tick())
            if moment.endswith("_ts"):
                stamped[actor] = self.tick()
                continue
            if moment == "commit":
                closed.append((len(promised), stamped[actor]))
                self.commits.append(stamped[actor])
            if moment == "fake":
                self.fakes.append(stamped[actor])
            if moment in ("commit", "fake"):
                self.written.append(stamped[actor])
            self.writer.write(record(moment, started[actor], stamped.get(actor, 0)))
            state = self.pump.service.store.catch_up()
            promised.append((state.raw_promise, state.sorted_promise))
        for before, commit_ts in closed:
            assert all(max(pair) < commit_ts for pair in promised[:before]), (order, commit_ts, promised)
        assert promised[-1] == (max(stamped.values()),) * 2, (order, promised)


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    pump = PumpServer(config_of(tmp_path, 1)).start()
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    yield Timeline(pump, writer)
    writer.close()
    pump.stop()


@pytest.mark.parametrize("actors", [(TXN, TXN, FAKE), (TXN, FAKE, FAKE), (TXN, ROLLED_BACK, FAKE)])
def test_no_promise_is_false_and_none_is_missing(timeline: Timeline, actors: tuple[Sequence[str], ...]) -> None:
    address = timeline.pump.address
    with Pull(address, cluster=CLUSTER) as in_order, Pull(address, RAW, cluster=CLUSTER) as raw, Pull(address, TIP, cluster=CLUSTER) as tip:
        for order in orders(*actors):
            timeline.run(order)
        last = timeline.tick()
        timeline.writer.write(fake(last))
        delivered = [entity.meta.commitTs for entity in iter_until(in_order, lambda entity: entity.meta.commitTs == last)]
        of_log = list(iter_until(raw, lambda entity: entity.meta.commitTs == last))
        steps = list(iter_until(tip, lambda entity: entity.meta.commitTs == last))
    commits, fakes = set(timeline.commits), {*timeline.fakes, last}
    # a fake that comes too late may be left out, a Commit never
    assert delivered == sorted(set(delivered)) and commits <= set(delivered) <= commits | fakes
    assert_raw(of_log, [*timeline.written, last], commits)
    for promises in ([step.meta.startTs for step in steps], [step.meta.commitTs for step in steps]):
        assert promises == sorted(promises)


def assert_raw(entities: Sequence[Any], written: Sequence[int], commits: set[int]) -> None:
    """The log is delivered as it was written, and no Commit follows a promise at or above its commit_ts."""
    at, promised, found = (0, 0), 0, []
    for entity in entities:
        reached = entity.pos.suffix, entity.pos.offset
        if reached == at:
            promised = entity.meta.commitTs
            continue
        at = reached
        if entity.meta.commitTs:
            found.append(entity.meta.commitTs)
            assert entity.meta.commitTs > promised or entity.meta.commitTs not in commits
    assert found == list(written)
