"""A Pump that delivers like a real Pump: ``python -m benchmarks.plain_pump FLAGS``, with the flags of the job ``pump``.

This Pump ignores the metadata of a puller: delivery is sorted, with one message for each binlog. Its own metadata is empty and comes with the first
message. It does not know ``WriteBinlogBatch``. Everything else is our Pump.
"""

import dataclasses
import sys
from typing import Any

from pyspark_tidb_binlog.binlog_source.pump.handlers import Handlers
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, StreamCall
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import WRITE_BINLOG_BATCH
from pyspark_tidb_binlog.jobs import pump
from pyspark_tidb_binlog.jobs.entry.cli import run_job


class PlainCall:
    """A pull without metadata in either direction; for the rest the call itself."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call
        self._started = False
        self.headers: dict[bytes, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def start(self, metadata: object) -> None:
        """Nothing yet."""

    def send(self, messages: Any) -> None:
        """The metadata goes with the first message."""
        if not self._started:
            self._started = True
            self._call.start([])
        self._call.send(messages)


def _without_batches(methods: Methods) -> Methods:
    return dataclasses.replace(
        methods, unary={path: handler for path, handler in methods.unary.items() if path != WRITE_BINLOG_BATCH.encode()}
    )


def main() -> int:
    """Serve until stopped."""
    pull, methods = Handlers._pull, Handlers.methods
    Handlers._pull = lambda handlers, call: pull(handlers, PlainCall(call))  # type: ignore[assignment,arg-type,method-assign]
    Handlers.methods = lambda *arguments: _without_batches(methods(*arguments))  # type: ignore[assignment,method-assign]
    return run_job(pump.main)


if __name__ == "__main__":
    sys.exit(main())
