"""Net changes of single rows, and the fixed hash from keys to parts."""

import random

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.sinks.engine.fold import TableChanges, fold, part_numbers, subset_numbers


def events(*rows: tuple[int, int, Op, int, bytes]) -> pa.Table:
    """Events from (commit_ts, seq, op, table_id, key)."""
    columns = list(zip(*rows, strict=True)) or [[]] * 5
    names = ["commit_ts", "seq", "op", "table_id", "key"]
    types = [pa.int64(), pa.int32(), pa.int32(), pa.int64(), pa.binary()]
    return pa.table(
        {n: pa.array([int(v) if isinstance(v, Op) else v for v in c], t) for n, t, c in zip(names, types, columns, strict=True)}
    )


def shape(changes: list[TableChanges]) -> dict[int, tuple[list[int], list[tuple[int, int]], list[int]]]:
    return {
        t.table_id: (t.removed.tolist(), list(zip(t.before.tolist(), t.after.tolist(), strict=True)), t.added.tolist()) for t in changes
    }


INS, U, D = Op.INSERT, Op.UPDATE, Op.DELETE


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([INS], ([], [], [0])),
        ([U], ([], [(0, 0)], [])),
        ([D], ([0], [], [])),
        ([INS, U], ([], [], [1])),
        ([INS, D], ([], [], [])),
        ([U, U, U], ([], [(0, 2)], [])),
        ([U, D], ([0], [], [])),
        ([D, INS], ([], [(0, 1)], [])),
        ([D, INS, D], ([0], [], [])),
        ([INS, U, D, INS], ([], [], [3])),
    ],
)
def test_net_change_of_one_row(ops: list[Op], expected: object) -> None:
    table = events(*[(10 + i, 0, op, 7, b"k") for i, op in enumerate(ops)])
    assert shape(fold(table)) == {7: expected}


def test_order_inside_a_transaction_is_seq() -> None:
    assert shape(fold(events((5, 1, INS, 7, b"k"), (5, 0, D, 7, b"k")))) == {7: ([], [(1, 0)], [])}


def test_the_same_key_in_two_tables_is_two_rows() -> None:
    changes = fold(events((1, 0, INS, 9, b"k"), (2, 0, D, 3, b"k")))
    assert shape(changes) == {3: ([1], [], []), 9: ([], [], [0])}


def test_nothing_folds_to_nothing() -> None:
    assert shape(fold(events())) == {}


def test_many_tables_with_few_rows_stay_apart() -> None:
    rows = [(i, 0, INS, table, b"%d" % key) for i, (table, key) in enumerate((t, k) for t in range(40) for k in range(t % 3, 40, 7))]
    changes = fold(events(*rows))
    assert sorted(i for t in changes for i in t.added.tolist()) == list(range(len(rows)))


def reference_part(table_id: int, key: bytes, keyless: bool, parts: int) -> int:
    """The hash as its docstring tells it, in plain integers."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    h = mix(table_id & mask)
    if keyless:
        return h % parts
    for i in range(0, len(key), 8):
        h = mix(h ^ int.from_bytes(key[i : i + 8], "little"))
    return mix(h ^ len(key)) % parts


VECTORS = [
    (0, b"", False),
    (1, b"", True),
    (96, b"\x08\x0e", False),
    (96, b"\x08\x0e\x00", False),
    (221, b"12345678", False),
    (221, b"123456789", False),
    (-5, b"\xff" * 100, False),
    (2**62, b"anything", True),
]


@pytest.mark.parametrize(
    ("parts", "expected"), [(1, [0] * 8), (2, [1, 1, 1, 1, 1, 1, 0, 1]), (4096, [3695, 3265, 651, 3337, 1415, 1981, 3250, 2539])]
)
def test_parts_are_fixed_for_ever(parts: int, expected: list[int]) -> None:
    got = part_numbers(
        np.array([v[0] for v in VECTORS]), pa.array([v[1] for v in VECTORS], pa.binary()), np.array([v[2] for v in VECTORS]), parts
    )
    assert got.dtype == np.int32
    assert got.tolist() == [reference_part(*v, parts) for v in VECTORS]
    assert got.tolist() == expected


def test_parts_of_a_sliced_array() -> None:
    keys = pa.array([b"x", b"12345678", b"abc"], pa.binary())
    whole = part_numbers(np.full(3, 7), keys, np.zeros(3, dtype=bool), 1000)
    assert part_numbers(np.full(2, 7), keys.slice(1), np.zeros(2, dtype=bool), 1000).tolist() == whole[1:].tolist()


def test_parts_are_even() -> None:
    n = 20_000
    keys = pa.array([b"\x08" + i.to_bytes(3, "big") for i in range(n)], pa.binary())
    counts = np.bincount(part_numbers(np.full(n, 96), keys, np.zeros(n, dtype=bool), 4), minlength=4)
    assert counts.min() > 0.95 * n / 4


def subsets_of(keys: list[bytes], sizes: list[int], count: int, table_ids: list[int] | None = None) -> list[int]:
    ids = np.array(table_ids or [7] * len(keys), dtype=np.int64)
    return subset_numbers(ids, pa.array(keys, pa.binary()), np.array(sizes, dtype=np.int64), count).tolist()


def test_a_subset_has_neighbours_in_the_order_of_the_index() -> None:
    handles = list(range(1000)) * 2
    random.Random(5).shuffle(handles)
    numbers = subsets_of([handle_key(handle) for handle in handles], [10] * 2000, 4)
    assert sorted(set(zip(handles, numbers, strict=True))) == [(handle, handle // 250) for handle in range(1000)]


def test_a_subset_has_neighbours_of_one_table() -> None:
    numbers = subsets_of([handle_key(1)] * 3 + [handle_key(2)] * 3, [10] * 6, 3, [9, 8, 7] * 2)
    assert numbers == [2, 1, 0] * 2


def test_subsets_are_even_in_bytes() -> None:
    """A thousand small rows and four big ones."""
    numbers = subsets_of([handle_key(handle) for handle in range(1004)], [10] * 1000 + [10_000] * 4, 5)
    assert [numbers.count(subset) for subset in range(5)] == [1000, 1, 1, 1, 1]


def test_keys_that_begin_alike_are_spread() -> None:
    keys = [b"\x01customer-%05d" % number for number in range(5000)] * 2
    numbers = subsets_of(keys, [10] * 10_000, 4)
    assert numbers[:5000] == numbers[5000:]
    counts = np.bincount(numbers)
    assert len(counts) <= 5
    assert counts[:4].min() > 0.9 * 2500


@pytest.mark.parametrize("seed", range(20))
def test_all_events_of_a_row_are_in_one_subset(seed: int) -> None:
    rng = random.Random(seed)
    keys = [bytes(rng.choices(b"ab\x00", k=rng.randrange(12))) for _ in range(300)]
    ids = [rng.randrange(3) for _ in keys]
    count = rng.choice([1, 2, 7, 1000])
    numbers = subsets_of(keys, [rng.choice([1, 5, 3000]) for _ in keys], count, ids)
    assert len(set(zip(ids, keys, numbers, strict=True))) == len(set(zip(ids, keys, strict=True)))
    assert 0 <= min(numbers)
    assert max(numbers) <= count


def test_no_rows_have_no_subsets() -> None:
    assert subsets_of([], [], 3) == []


def handle_key(handle: int) -> bytes:
    return (handle % (1 << 64)).to_bytes(8, "big")


def block_of(key: bytes) -> bytes:
    """A key with the low 10 bits of its handle cleared, as the docstring tells it."""
    return key[:6] + bytes([key[6] & 0xFC, 0])


@pytest.mark.parametrize("parts", [2, 3, 4096])
def test_neighbours_share_a_part(parts: int) -> None:
    handles = [0, 1, 63, 64, -1, -64, 1023, 1024, 8191, 8192, 9000, 9215, 9216, 1 << 40, (1 << 40) + 1023, 1 << 62, -(1 << 62)]
    keys = [handle_key(handle) for handle in handles]
    numbers = part_numbers(np.full(len(keys), 96), pa.array(keys), np.zeros(len(keys), bool), parts, np.ones(len(keys), bool))
    assert numbers.tolist() == [reference_part(96, block_of(key), False, parts) for key in keys]
    found = dict(zip(handles, numbers.tolist(), strict=True))
    assert found[8192] == found[9000] == found[9215] and found[1 << 40] == found[(1 << 40) + 1023]


def test_blocks_are_even_and_rows_without_neighbours_stay_where_they_were() -> None:
    keys = pa.array([handle_key(i) for i in range(100_000)])
    table_ids, keyless = np.full(len(keys), 96), np.zeros(len(keys), bool)
    counts = np.bincount(part_numbers(table_ids, keys, keyless, 4, ~keyless))
    assert counts.max() < 1.3 * len(keys) / 4
    assert part_numbers(table_ids, keys, keyless, 4, keyless).tolist() == part_numbers(table_ids, keys, keyless, 4).tolist()
