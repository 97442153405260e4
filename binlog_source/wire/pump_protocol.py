"""The names in the gRPC calls between TiDB, Pumps and Drainers, and the contract of the deliveries of ``PullBinlogs``. Pure.

A pull selects its delivery with metadata ``tidb-binlog-delivery``. Our Pump echoes it in its *initial metadata*, with its node id and GC ts. A real
Pump echoes nothing: its pulls are sorted.

``sorted``  the default. ``startFrom.offset`` = the last commit_ts seen (exclusive). Messages as in pump.md 7; ``pos`` is empty.
``raw``     ``startFrom`` = ``suffix``, the file id, and ``offset``, the byte offset of the first record to deliver (inclusive). Records come in log order
            (P, C, Rollback, fakes); ``pos`` is the position just AFTER the record. The log's end is one synthetic message, the promise:
            ``{tp Rollback, start_ts = commit_ts = T, pos = end}``. Then the pull waits for more.
``tip``     ``startFrom.offset`` = a ts. No rows. The first message is the base: ``pos`` = the position from which a raw pull sees every transaction with
            commit_ts > ts, ``meta.commitTs`` = the largest sorted promise <= ts, or ts. Then one message per step (at most 1 MiB of log, or what is
            new): ``pos`` = the raw position at the step's end, ``meta.startTs`` = the raw promise T at pos, ``meta.commitTs`` = the sorted promise
            (maxCommitTS) there, ``payload`` = the fake binlog at the largest ts of a fake or Commit before pos.

T(pos) = min(largest ts of a fake or Commit before pos, lowest start_ts of a Prewrite still waiting at pos, minus 1). The log before pos decides, so
every read of the same (start, end) gets the same T. T never decreases: a late Prewrite with a low start_ts commits above every ts before it.

With ``tidb-binlog-batch: 1`` each response is a ``PullBinlogBatch`` of about 1 MiB with the same messages in the same order. With
``tidb-binlog-piece: BYTES`` as well, a larger binlog comes in pieces (``schemas.pieces``): ``first_seq`` is the index of the piece's first row
change, ``more`` says that another piece follows, and only the last piece has a position.
"""

from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.events import Delivery

WRITE_BINLOG = "/binlog.Pump/WriteBinlog"
WRITE_BINLOG_BATCH = "/binlog.Pump/WriteBinlogBatch"
"""Ours; a real Pump answers UNIMPLEMENTED."""
PULL_BINLOGS = "/binlog.Pump/PullBinlogs"
NOTIFY = "/binlog.Cistern/Notify"
"""``Cistern`` is the Drainer's name on the wire."""

DELIVERY_KEY = "tidb-binlog-delivery"
"""Of a pull, and echoed in its initial metadata: one of ``DELIVERIES``."""
TIP = "tip"
"""The delivery of positions and promises without content."""
DELIVERIES = (Delivery.SORTED.value, Delivery.RAW.value, TIP)
BATCH_KEY = "tidb-binlog-batch"
"""Of a pull, and echoed: ``1``, if each response is a ``PullBinlogBatch``."""
PIECE_KEY = "tidb-binlog-piece"
"""Of a pull: bytes above which a binlog is delivered in pieces."""
KNOWN_KEY = "tidb-binlog-known-damage"
"""Of a pull: the places that the reader has recorded, ``file:offset,file:offset``."""
SEEN_KEY = "tidb-binlog-seen"
"""Of a pull: ``suffix:offset:ts``, what the reader has seen of the log; of its answer: ``YES`` or ``NO``."""
YES, NO = "yes", "no"
END_KEY = "tidb-binlog-end"
"""Of the answer: the end of the Pump's log, ``suffix:offset``."""
GC_TS_KEY = "tidb-binlog-gc-ts"
"""Of the answer: binlogs up to this ts may be collected."""
PUMP_KEY = "tidb-binlog-pump"
"""Of the answer: the Pump's node id."""
COLLECTED = "has been collected; the oldest one kept is"
"""In the status text of a raw pull from a position that GC has overtaken."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in a Pump's log: value-log file id, byte offset. Ordered."""

    suffix: int
    offset: int

    def to_json(self) -> dict[str, int]:
        """The position as a JSON object."""
        return {"offset": self.offset, "suffix": self.suffix}
