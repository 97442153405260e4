"""The store against a model: any writes, restarts, torn tails, collections and lost indexes; and the promises against their definition."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, fake
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import NOTHING, LogRecord, Sorter
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.examples import examples
from tests.support.store_model import Model, commit, drained, prewrite, pulled, raw, rollback

MEMORY = Path("/dev/shm")
"""Where syncs cost nothing: no test here is about them."""
SETTINGS = StoreSettings(max_file_size=200, sync=False, span=100)


class StoreMachine(RuleBasedStateMachine):
    """Transactions of any shape, written one by one or together, over restarts and collections."""

    @initialize()
    def begin(self):
        """An empty data directory."""
        self.directory = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.model = Model()
        """All that the store may know of, collected or not."""
        self.collected = 0
        """How many of the model's records are gone."""
        self.clock = 0
        self.open_txns = []
        self.store = self.opened()

    def opened(self):
        return Store(self.directory, SETTINGS)

    def tick(self):
        """A fresh ts."""
        self.clock += 1
        return self.clock

    def write(self, *records):
        """Write to both."""
        self.store.write(records)
        self.store.catch_up()
        self.model.records += records

    @property
    def kept(self):
        """The records that are not collected."""
        return self.model.records[self.collected :]

    @rule(size=st.integers(0, 150))
    def prewrite(self, size):
        """A transaction begins its commit."""
        start = self.tick()
        self.open_txns.append(start)
        self.write(prewrite(start, b"v" * size))

    @rule(pick=st.integers(0, 1000), rolled_back=st.booleans())
    def finish(self, pick, rolled_back):
        """One of the open ones ends."""
        if self.open_txns:
            start = self.open_txns.pop(pick % len(self.open_txns))
            self.write(rollback(start) if rolled_back else commit(start, self.tick()))

    @rule()
    def stray_commit(self):
        """A Commit whose Prewrite is on another Pump."""
        self.write(commit(self.tick(), self.tick()))

    @rule(count=st.integers(1, 3))
    def fakes(self, count):
        """Fake binlogs, in one write."""
        self.write(*(fake(self.tick()) for _ in range(count)))

    @rule()
    def restart(self):
        """A clean stop and start."""
        before = self.store.state
        self.store.close()
        self.store = self.opened()
        assert self.store.state == before

    @rule(junk=st.binary(min_size=1, max_size=40))
    def crash_with_torn_tail(self, junk):
        """The process dies in the middle of a write."""
        before = self.store.state
        self.store.close()
        newest = max(Path(self.directory, "value").iterdir())
        with newest.open("ab") as file:
            file.write(b"\xe8\x56\x3a\x82" + junk)
        self.store = self.opened()
        assert self.store.state == before

    @rule(back=st.integers(0, 10), slack=st.integers(0, 5))
    def collect(self, back, slack):
        """What is old goes, but for what a waiting Prewrite holds; the promises stay."""
        gc_ts, before = self.clock - back, self.store.gc_ts
        done = self.store.collect(gc_ts, slack)
        assert done == (before < gc_ts < self.model.sorted_promise())
        assert self.store.gc_ts == (gc_ts if done else before)
        there = len(raw(self.store)) - 1
        gone = self.kept[: len(self.kept) - there]
        assert all(record.ts <= gc_ts - slack for record in gone)
        assert not {record.start_ts for record in gone if record.kind is RecordKind.PREWRITE} & set(self.open_txns)
        self.collected += len(gone)

    @rule()
    def lose_the_index(self):
        """It is made again from what is kept; readers are still told of what is gone."""
        before = self.store.state
        self.store.close()
        shutil.rmtree(self.directory / "index")
        self.store = self.opened()
        self.model.records, self.collected = self.kept, 0
        first = min((record.commit_ts for record in self.kept if record.kind in (RecordKind.COMMIT, RecordKind.FAKE)), default=1)
        assert self.store.gc_ts == (first - 1 if self.store.beginning > BEGINNING else 0)
        assert (self.store.state.at, self.store.state.sorted_promise) == (before.at, before.sorted_promise)

    @invariant()
    def promises_hold(self):
        """S and T are what their definitions say."""
        if hasattr(self, "store"):
            assert self.store.state.sorted_promise == self.model.sorted_promise()
            assert self.store.state.raw_promise == self.model.raw_promise()

    @rule(back=st.integers(0, 30))
    def pull_sorted(self, back):
        """Sorted delivery from anywhere. A Prewrite that is collected takes its Commit with it."""
        after = max(0, self.clock - back)
        promise = self.store.state.sorted_promise
        want = Model(self.kept).delivered(max(after, self.store.gc_ts))
        assert [entity.payload for entity in pulled(self.store, after)] == want
        assert promise == self.store.state.sorted_promise

    @rule()
    def pull_raw(self):
        """Raw delivery from the beginning, and again from one of its positions."""
        *records, promise = raw(self.store)
        assert [entity.payload for entity in records] == [record.payload for record in self.kept]
        assert promise.meta.commitTs == self.model.raw_promise()
        if records:
            middle = len(records) // 2
            again = raw(self.store, position(records[middle]))
            assert again == [*records[middle + 1 :], promise]

    @rule(ts=st.integers(0, 60))
    def pull_tip(self, ts):
        """Nothing above ts has its Prewrite or Commit before the base."""
        base, *steps = drained(self.store, lambda service, stop: service.pull_tip(ts, stop))
        start = position(base)
        starts = {e.meta.startTs for e in raw(self.store, start)[:-1] if e.payload[1] == RecordKind.PREWRITE}
        prewritten = {record.start_ts for record in self.kept if record.kind is RecordKind.PREWRITE}
        for record in self.kept:
            if record.kind is RecordKind.COMMIT and record.commit_ts > ts and record.start_ts in prewritten:
                assert record.start_ts in starts
        state = self.store.state
        if steps:
            assert position(steps[-1]) == state.at
            assert (steps[-1].meta.startTs, steps[-1].meta.commitTs) == (state.raw_promise, state.sorted_promise)
            assert binlog_pb2.Binlog.FromString(steps[-1].payload).commit_ts == state.max_ts
        else:
            assert start == state.at

    @rule(pick=st.integers(0, 1000), limit=st.integers(1, 5))
    def steps_past(self, pick, limit):
        """From anywhere on the steps ascend to the end, and each promises what may be promised there."""
        ends = [position(entity) for entity in raw(self.store)[:-1]]
        covered = {end: self.collected + number for number, end in enumerate(ends, 1)}
        at = [self.store.beginning, *ends][pick % (len(ends) + 1)]
        while at < self.store.state.at:
            steps = self.store.steps_past(at, limit)
            assert 0 < len(steps) <= limit
            for step in steps:
                assert at < step.at and step.low <= step.at
                at = step.at
                before = Model(self.model.records[: covered[at]])
                assert (step.raw_promise, step.sorted_promise) == (before.raw_promise(), before.sorted_promise())
        assert self.store.steps_past(at, limit) == []

    def teardown(self):
        """Close what is open."""
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)


def position(entity):
    """The raw position that an entity names."""
    return Pointer(entity.pos.suffix, entity.pos.offset)


StoreMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestStore = StoreMachine.TestCase


@given(st.lists(st.tuples(st.sampled_from("pcfr"), st.integers(1, 40), st.integers(1, 30)), max_size=60), st.integers(10, 80))
def test_a_sorter_goes_on_from_each_of_its_checkpoints(steps, span):
    """From a checkpoint and the records of [low, at) it says what the sorter that never stopped says; and checkpoints are near each other."""
    sorter, ts, waiting, walked, said = Sorter(span), 0, [], [], [NOTHING]
    for kind, length, pick in steps:
        ts += 1
        at = walked[-1].end if walked else Pointer(0, 0)
        if kind == "p":
            waiting.append(ts)
            step = LogRecord(RecordKind.PREWRITE, ts, 0, at, length)
        elif kind in "cr" and waiting:
            start = waiting.pop(pick % len(waiting))
            step = (
                LogRecord(RecordKind.COMMIT, start, ts, at, length) if kind == "c" else LogRecord(RecordKind.ROLLBACK, start, 0, at, length)
            )
        else:
            step = LogRecord(RecordKind.FAKE, ts, ts, at, length)
        walked.append(step)
        due = sorter.push(step)
        if due is not None:
            said.append(due)
    end = sorter.now()
    for before, after in zip(said, [*said[1:], end], strict=True):
        assert after.at.offset - before.at.offset <= max(span, 40)
    for checkpoint in said:
        again = Sorter.resume(checkpoint, [s for s in walked if checkpoint.low <= s.at < checkpoint.at], span)
        assert again.now() == checkpoint
        for step in walked:
            if step.at >= checkpoint.at:
                again.push(step)
        assert again.now() == end and again.waiting == sorter.waiting
