"""Pairing buckets: the bucket of each start_ts, and the buckets' ids. Pure.

Promises: neither function may change: the pairing state in a checkpoint is kept by the buckets' ids and by the bucket of each start_ts.
Each batch costs each bucket a call into Python and accesses to the state, so there are few buckets. Their ids are chosen such that Spark
puts equally many into each of its state partitions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SEED = 42
"""Spark's seed of the hash that places a key."""
_MASK = 0xFFFFFFFF


def bucket_ids(count: int, partitions: int) -> tuple[int, ...]:
    """The ids of ``count`` buckets, ascending from 0, of which Spark puts equally many, but for one, into each of its ``partitions``."""
    ids: list[int] = []
    load = [0] * partitions
    candidate = 0
    while len(ids) < count:
        place = _spark_hash(candidate) % partitions
        if load[place] <= len(ids) // partitions:
            load[place] += 1
            ids.append(candidate)
        candidate += 1
    return tuple(ids)


def buckets(start_ts: NDArray[np.int64], ids: Sequence[int]) -> NDArray[np.int32]:
    """The pairing bucket of each start_ts, one of ``ids``."""
    mixed = (start_ts.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    found: NDArray[np.int32] = np.array(ids, np.int32)[mixed % np.uint64(len(ids))]
    return found


def _spark_hash(number: int) -> int:
    """Spark's ``hash`` of an int (``org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt``)."""
    mixed = _rotated(number * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    mixed = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    mixed ^= 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK
