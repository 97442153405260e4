"""The names in the gRPC calls between TiDB, Pumps and Drainers: methods, and the metadata that only our Pump understands. Pure.

A real Pump ignores the metadata of a pull and answers without any, so its pulls are sorted. Contract of the deliveries:
docs/architecture.md.
"""

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
