"""How much of the code a micro-batch of four rows runs through, from ``foreachBatch`` to COMMIT: a reader must know all of it.

The limits fall with each slice that makes the way shorter (docs/architecture.md, "From rows to tables"). ruff limits the length of a function, so that
a limit here is not met by inlining.
"""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.call_trace import CallTrace
from tests.support.emulated_stream import EmulatedStream

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

LIMITS = 149, 30, 14, 1
"""Functions, files, depth, callbacks. The goal: 150, 28, 14, 1."""
ITEM = Table("item", (Column("id", "bigint"), Column("v", "int")), ("id",))


def test_a_steady_micro_batch_of_four_rows(spark: SparkSession, mariadb: PrivateMariaDB) -> None:
    config = DrainerConfig(target=mariadb.target(), apply=ApplyConfig(checkpoint_schema="path_marks", on_finding="stop"))
    trace = CallTrace()
    with EmulatedStream(spark, config) as stream:
        stream.upstream.ddl.create_database("path")
        stream.upstream.ddl.create_table("path", ITEM)
        for first in range(0, 12, 4):
            stream.change(four_rows(first))
            stream.apply()
        stream.change(four_rows(12))
        report = stream.apply(meanwhile=trace)
    assert report.row_events == 4
    print(*sorted(trace.functions), "callbacks:", *sorted(trace.callbacks), sep="\n")
    reached = len(trace.functions), len(trace.files), trace.depth, len(trace.callbacks)
    assert all(now <= limit for now, limit in zip(reached, LIMITS, strict=True)), f"{reached}, allowed: {LIMITS}"


def four_rows(first: int) -> Callable[[Any], object]:
    return lambda txn: [txn.insert("path.item", {"id": first + number, "v": number}) for number in range(4)]
