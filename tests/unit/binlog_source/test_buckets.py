"""Pairing buckets: their ids and the start_ts of each never change, and Spark places them evenly."""

from collections import Counter

import numpy as np
import pytest

from pyspark_tidb_binlog.binlog_source.source.buckets import bucket_ids, buckets
from pyspark_tidb_binlog.schemas.events import tso

STAMPS = np.array([1, 2, tso(1), tso(2), 470604693853437952], np.int64)
BUCKETS_OF_8 = [1, 3, 5, 2, 2]
"""Vectors: state in checkpoints depends on them, also on those of ``bucket_ids`` below."""
PARTITION_OF_4 = [3, 3, 2, 3, 2, 2, 1, 3, 3, 1, 2, 3, 0, 0, 0, 1]
"""``SELECT pmod(hash(CAST(id AS INT)), 4) FROM range(16)`` in Spark."""


def test_the_bucket_of_a_start_ts_is_fixed() -> None:
    assert buckets(STAMPS, range(8)).tolist() == BUCKETS_OF_8
    assert buckets(STAMPS, range(1)).tolist() == [0] * 5
    assert buckets(STAMPS, bucket_ids(8, 2)).tolist() == [bucket_ids(8, 2)[n] for n in BUCKETS_OF_8]


def test_the_ids_are_fixed() -> None:
    assert bucket_ids(2, 2) == (0, 2)
    assert bucket_ids(8, 2) == (0, 2, 3, 4, 5, 6, 7, 10)
    assert bucket_ids(4, 4) == (0, 2, 6, 12)
    assert bucket_ids(3, 1) == (0, 1, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_each_partition_has_equally_many(count: int, partitions: int) -> None:
    ids = bucket_ids(count, partitions)
    assert len(set(ids)) == count and ids[0] == 0
    known = [n for n in ids if n < len(PARTITION_OF_4)]
    load = Counter(PARTITION_OF_4[n] % partitions for n in known)
    assert max(load.values()) <= -(-count // partitions)
    if len(known) == count >= partitions:
        assert max(load.values()) - min(load.values()) <= 1 and len(load) == partitions
