"""One script of binlogs and collections for every fault test, run on a store until it ends or the store refuses; and what must be left.

Promises: the same operations of the disk in the same order at every run, so that "the n-th operation" names one step of the work.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.storage.record import Record, RecordKind, fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from tests.support.store_model import Model, commit, prewrite, pulled, raw, rollback

SETTINGS = StoreSettings(max_file_size=220, span=100)
LATER = dataclasses.replace(SETTINGS, sync=False)
"""For the lives after the death: what they write is not put at risk."""
SLACK = 15
"""No transaction of the script lasts longer."""


def script(rounds: int, ts: int = 0) -> list[Sequence[Record] | int]:
    """Groups of records, and now and then a number: the gc_ts to collect at."""
    clock = itertools.count(ts + 1)
    steps: list[Sequence[Record] | int] = []
    slow = 0
    for number in range(rounds):
        a, b = next(clock), next(clock)
        steps.append([prewrite(a, b"a" * (number * 17 % 60)), prewrite(b)])
        done = [commit(a, next(clock)), rollback(b) if number % 3 else commit(b, next(clock))]
        if number % 2:
            steps.append([*done, commit(slow, next(clock))])
        else:
            slow = next(clock)
            steps.append([prewrite(slow), *done, fake(next(clock))])
        if number % 3 == 2:
            steps.append(next(clock) - SLACK)
    return steps


@dataclass
class Run:
    """What became of a script."""

    submitted: list[Record] = field(default_factory=list)
    durable: list[Record] = field(default_factory=list)
    """What was acknowledged, or seen by a reader though its group was refused."""
    collected: int = 0
    """The highest gc_ts that was asked for."""
    told: int = 0
    """The highest one that was answered."""

    def on(self, store: Store, steps: Sequence[Sequence[Record] | int]) -> "Run":
        """Do the steps; what the disk refuses is passed over."""
        for step in steps:
            if isinstance(step, int):
                self._collect(store, step)
            else:
                self._write(store, step)
        return self

    def _write(self, store: Store, group: Sequence[Record]) -> None:
        self.submitted += group
        try:
            store.write(group)
            self.durable += group
        except OSError:
            seen = {entity.payload for entity in raw(store)}
            self.durable += [record for record in group if record.payload in seen]

    def _collect(self, store: Store, gc_ts: int) -> None:
        store.catch_up()
        self.collected = max(self.collected, gc_ts)
        with contextlib.suppress(OSError):
            if store.collect(gc_ts, SLACK):
                self.told = gc_ts


def kept_of(store: Store, run: Run) -> list[Record]:
    """The records that are there, checked: whole ones only, in the order of submission, all durable ones but the oldest, collected ones."""
    place = {record.payload: number for number, record in enumerate(run.submitted)}
    got = [place[entity.payload] for entity in raw(store)[:-1]]
    assert got == sorted(set(got))
    kept = [run.submitted[number] for number in got]
    gone = run.durable[: len(run.durable) - len([record for record in run.durable if record in kept])]
    assert not set(gone) & set(kept), "only the oldest are collected"
    assert all(record.ts <= run.collected - SLACK for record in gone)
    assert all(record.commit_ts <= store.gc_ts for record in gone), "readers are told of what is gone"
    return kept


def check(store: Store, records: Sequence[Record]) -> None:
    """The promises and sorted delivery are what the model says of ``records``, which may begin with collected ones."""
    model = Model(list(records))
    state = store.catch_up()
    assert (state.sorted_promise, state.raw_promise) == (model.sorted_promise(), model.raw_promise())
    assert [entity.payload for entity in pulled(store)] == model.delivered(store.gc_ts)


def comes_back(directory: Path, run: Run, remembers: bool = True) -> None:
    """The next life: what was durable is there, it goes on over some more files, and the life after that agrees.

    ``remembers``: the index still knows the promises of what was collected.
    """
    with closing(Store(directory, LATER)) as store:
        kept = kept_of(store, run)
        assert store.gc_ts >= run.told or not remembers
        gone = [record for record in run.durable if record not in kept]
        records = [*gone, *kept] if remembers else kept
        check(store, records)
        ended = {record.start_ts for record in kept if record.kind is not RecordKind.PREWRITE}
        waiting = [record.start_ts for record in kept if record.kind is RecordKind.PREWRITE and record.start_ts not in ended]
        more = [fake(999), *map(rollback, waiting), *itertools.chain.from_iterable(script(2, 1000))]
        for record in more:
            store.write([record])
        check(store, [*records, *more])
        state, end = store.state, raw(store)
        assert [entity.payload for entity in end[:-1]] == [record.payload for record in [*kept, *more]]
    with closing(Store(directory, LATER)) as store:
        assert store.state == state and raw(store) == end
        check(store, [*records, *more])
