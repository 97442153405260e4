"""What a store must hold and promise, by its definition taken literally; and how to read one to its end.

Promises: no code of the store is used to say what is right, only ``completed`` (tested on a real Pump's bytes) to fill in a Commit.
"""

import dataclasses
import threading
from unittest import mock

from pyspark_tidb_binlog.binlog_source.pump import service
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, canonical, completed
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2


def prewrite(start_ts, value=b"v"):
    return canonical(binlog_pb2.Binlog(tp=0, start_ts=start_ts, prewrite_key=b"k", prewrite_value=value).SerializeToString())


def commit(start_ts, commit_ts):
    return canonical(binlog_pb2.Binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k").SerializeToString())


def rollback(start_ts):
    return canonical(binlog_pb2.Binlog(tp=2, start_ts=start_ts).SerializeToString())


@dataclasses.dataclass
class Model:
    """The records that were written, in order."""

    records: list = dataclasses.field(default_factory=list)

    def sorted_promise(self):
        """The largest ts of a Commit or fake that no waiting Prewrite precedes."""
        best = 0
        for n, record in enumerate(self.records):
            if record.kind is RecordKind.PREWRITE:
                if not any(r.start_ts == record.start_ts and r.kind is not RecordKind.PREWRITE for r in self.records[n + 1 :]):
                    break
            else:
                best = max(best, record.commit_ts)
        return best

    def raw_promise(self):
        """The definition at every prefix, never going back."""
        best, waiting, largest = 0, set(), 0
        for record in self.records:
            if record.kind is RecordKind.PREWRITE:
                waiting.add(record.start_ts)
            else:
                waiting.discard(record.start_ts)
                largest = max(largest, record.commit_ts)
            best = max(best, min([largest, *(start_ts - 1 for start_ts in waiting)]))
        return best

    def delivered(self, after=0):
        """The payloads that sorted delivery must send."""
        prewrites = {r.start_ts: r.payload for r in self.records if r.kind is RecordKind.PREWRITE}
        found = {}
        for record in self.records:
            if record.kind is RecordKind.FAKE:
                found[record.commit_ts] = record.payload
            elif record.kind is RecordKind.COMMIT and record.start_ts in prewrites:
                found[record.commit_ts] = completed(record.payload, prewrites[record.start_ts])
        promise = self.sorted_promise()
        return [found[ts] for ts in sorted(found) if after < ts <= promise]


def drained(store, pull):
    """The entities of a delivery until it would wait; ``pull`` makes it from a service and its ``stop``."""
    waits = threading.Event()
    store.catch_up()
    # nothing more is to come, so there is nothing to wait for
    with mock.patch.object(store, "wait_past", lambda seen, timeout: waits.set()), mock.patch.object(service, "_CALM", 0):
        flushes = list(pull(service.PumpService(store, 0, "p"), waits.is_set))
    return [pump_pb2.PullBinlogResp.FromString(message).entity for flush in flushes for message in flush]


def undisturbed():
    """The memory of a pull beside which there is no other."""
    return service.Reservation(BoundedMemory())


def pulled(store, last=0):
    """What sorted delivery sends after ``last``."""
    return drained(store, lambda service, stop: service.pull_sorted(last, stop, undisturbed()))


def raw(store, start=BEGINNING):
    """What raw delivery sends from ``start`` on; the last entity is the promise."""
    return drained(store, lambda service, stop: service.pull_raw(start, stop, undisturbed()))
