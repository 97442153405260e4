"""A process that applies a random history row by row, to be killed: ``python -m tests.support.row_sink_process JSON``.

The JSON has the target's ``socket``, ``user`` and ``password``, the ``seed`` of the history, the ``batches`` it is made of (transactions each),
the ``cuts`` by which it is applied (commit_ts; None = as it was made) and the ``settings`` of the sink.
"""

import json
import random
import sys
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.mysql.rows.row_sink import RowSettings, RowSink
from tests.support.row_worlds import RowHistory, RowWorld, clustered, half_keyed, keyless, two_keys

SCHEMA = "row_marks"
BEGIN = 1000


def worlds() -> tuple[RowWorld, ...]:
    """The tables of every history here."""
    return clustered("c1", 101), clustered("c2", 102, 40), two_keys("k", 103), keyless("x", 104), half_keyed("h", 105)


def made(seed: str, batches: list[int]) -> tuple[RowHistory, pa.Table, list[int]]:
    """A history, all its events, and the last commit_ts of each batch."""
    history = RowHistory(worlds(), random.Random(seed))
    found, ends = [], []
    for transactions in batches:
        found.append(history.batch(transactions))
        ends.append(history.ts)
    return history, pa.concat_tables(found), ends


def main() -> None:
    """Apply what is still to be applied."""
    how: dict[str, Any] = json.loads(sys.argv[1])
    history, events, ends = made(how["seed"], how["batches"])
    target = TargetConfig(socket=how["socket"], user=how["user"], password=how["password"])
    apply = ApplyConfig(checkpoint_schema=SCHEMA, lease_timeout=5.0, retries=3, on_finding="stop", log_row_data=True)
    sink = RowSink(DrainerConfig(target=target, apply=apply), 1, RowSettings(**how["settings"]))
    sink.open(lambda target, commit_ts: BEGIN if commit_ts is None else commit_ts, SchemaHistory)
    for upto_ts in how["cuts"] or ends:
        if upto_ts > sink.commit_ts:
            rows = rows_between(events, sink.commit_ts, upto_ts)
            sink.apply(rows, history.step(sink.commit_ts, rows, upto_ts), StageClock())
    sink.close()


if __name__ == "__main__":
    main()
