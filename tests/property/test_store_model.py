"""The store against a dict model: any writes, restarts and torn tails; and the promises against their definition, taken literally."""

import dataclasses
import tempfile
import threading
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from binlog_source.pump.service import PumpService
from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.record import Kind, canonical, completed, fake
from binlog_source.pump.storage.sorter import NOTHING, Sorter, Step
from binlog_source.pump.storage.store import Store, StoreSettings
from schemas.proto import binlog_pb2, pump_pb2

MAX_FILE_SIZE, SPAN = 300, 100


@dataclasses.dataclass
class Model:
    """What was written, in order: (kind, start_ts, commit_ts, payload)."""

    records: list = dataclasses.field(default_factory=list)

    def sorted_promise(self):
        """The largest ts of a Commit or fake that no waiting Prewrite precedes."""
        best = 0
        for n, (kind, start, commit, _) in enumerate(self.records):
            if kind is Kind.PREWRITE:
                if not any(s == start and k is not Kind.PREWRITE for k, s, _, _ in self.records[n + 1 :]):
                    break
            else:
                best = max(best, commit)
        return best

    def raw_promise(self):
        """The definition at every prefix, never going back."""
        best = 0
        for end in range(len(self.records) + 1):
            waiting, largest = set(), 0
            for kind, start, commit, _ in self.records[:end]:
                if kind is Kind.PREWRITE:
                    waiting.add(start)
                else:
                    waiting.discard(start)
                    largest = max(largest, commit)
            best = max(best, min([largest, *(s - 1 for s in waiting)]))
        return best

    def delivered(self, after):
        """What sorted delivery must send."""
        prewrites = {s: p for k, s, _, p in self.records if k is Kind.PREWRITE}
        found = {}
        for kind, start, commit, payload in self.records:
            if kind is Kind.FAKE:
                found[commit] = payload
            elif kind is Kind.COMMIT and start in prewrites:
                found[commit] = completed(payload, prewrites[start])
        promise = self.sorted_promise()
        return [found[ts] for ts in sorted(found) if after < ts <= promise]


class StoreMachine(RuleBasedStateMachine):
    """Transactions of any shape, written one by one or together, over restarts."""

    @initialize()
    def begin(self):
        """An empty data directory."""
        self.directory = tempfile.TemporaryDirectory()
        self.model = Model()
        self.clock = 0
        self.open_txns = []
        self.store = self.opened()

    def opened(self):
        """The store on what is there."""
        return Store(Path(self.directory.name), StoreSettings(MAX_FILE_SIZE, sync=False, span=SPAN))

    def tick(self):
        """A fresh ts."""
        self.clock += 1
        return self.clock

    def write(self, *records):
        """Write to both."""
        self.store.write(records)
        self.store.catch_up()
        self.model.records += [tuple(r) for r in records]

    @rule(size=st.integers(0, 150))
    def prewrite(self, size):
        """A transaction begins its commit."""
        start = self.tick()
        self.open_txns.append(start)
        self.write(canonical(binlog_pb2.Binlog(tp=0, start_ts=start, prewrite_key=b"k", prewrite_value=b"v" * size).SerializeToString()))

    @rule(pick=st.integers(0, 1000), rolled_back=st.booleans())
    def finish(self, pick, rolled_back):
        """One of the open ones ends."""
        if self.open_txns:
            start = self.open_txns.pop(pick % len(self.open_txns))
            commit = 0 if rolled_back else self.tick()
            self.write(canonical(binlog_pb2.Binlog(tp=2 if rolled_back else 1, start_ts=start, commit_ts=commit).SerializeToString()))

    @rule()
    def stray_commit(self):
        """A Commit whose Prewrite is on another Pump."""
        self.write(canonical(binlog_pb2.Binlog(tp=1, start_ts=self.tick(), commit_ts=self.tick()).SerializeToString()))

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
        newest = max(Path(self.directory.name, "value").iterdir())
        with newest.open("ab") as file:
            file.write(b"\xe8\x56\x3a\x82" + junk)
        self.store = self.opened()
        assert self.store.state == before

    @invariant()
    def promises_hold(self):
        """S and T are what their definitions say."""
        if hasattr(self, "store"):
            assert self.store.state.sorted_promise == self.model.sorted_promise()
            assert self.store.state.raw_promise == self.model.raw_promise()

    @rule(back=st.integers(0, 30))
    def pull_sorted(self, back):
        """Sorted delivery from anywhere."""
        after = max(0, self.clock - back)
        got = self.drain(lambda service, stop: service.pull_sorted(after, stop))
        assert [entity.payload for entity in got] == self.model.delivered(after)

    @rule()
    def pull_raw(self):
        """Raw delivery from the beginning, and again from one of its positions."""
        *records, promise = self.drain(lambda service, stop: service.pull_raw(Pointer(0, 0), stop))
        assert [entity.payload for entity in records] == [r[3] for r in self.model.records]
        assert promise.meta.commitTs == self.model.raw_promise()
        if records:
            middle = len(records) // 2
            pos = records[middle].pos
            again = self.drain(lambda service, stop: service.pull_raw(Pointer(pos.suffix, pos.offset), stop))
            assert again == [*records[middle + 1 :], promise]

    @rule(ts=st.integers(0, 60))
    def pull_tip(self, ts):
        """Nothing above ts has its Prewrite or Commit before the base."""
        base, *steps = self.drain(lambda service, stop: service.pull_tip(ts, stop))
        start = Pointer(base.pos.suffix, base.pos.offset)
        seen = self.drain(lambda service, stop: service.pull_raw(start, stop))[:-1]
        starts = {e.meta.startTs for e in seen if e.payload[1] == Kind.PREWRITE}
        prewritten = {s for k, s, _, _ in self.model.records if k is Kind.PREWRITE}
        for kind, txn, commit, _ in self.model.records:
            if kind is Kind.COMMIT and commit > ts and txn in prewritten:
                assert txn in starts
        state = self.store.state
        if steps:
            assert Pointer(steps[-1].pos.suffix, steps[-1].pos.offset) == state.at
            assert (steps[-1].meta.startTs, steps[-1].meta.commitTs) == (state.raw_promise, state.sorted_promise)
        else:
            assert start == state.at

    def drain(self, pull):
        """A delivery until it would wait."""
        waits = threading.Event()
        service = PumpService(self.store, 0, "p")
        self.store.wait_past = lambda seen, timeout: waits.set()
        got = []
        for flush in pull(service, waits.is_set):
            got += [pump_pb2.PullBinlogResp.FromString(message).entity for message in flush]
        return got

    def teardown(self):
        """Close what is open."""
        if hasattr(self, "store"):
            self.store.close()
            self.directory.cleanup()


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
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
            step = Step(Kind.PREWRITE, ts, 0, at, length)
        elif kind in "cr" and waiting:
            start = waiting.pop(pick % len(waiting))
            step = Step(Kind.COMMIT, start, ts, at, length) if kind == "c" else Step(Kind.ROLLBACK, start, 0, at, length)
        else:
            step = Step(Kind.FAKE, ts, ts, at, length)
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
