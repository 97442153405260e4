"""``schemas.explode`` over ``schemas.wire_lockstep``: many transactions at once give what each of them gives alone, where it is parsed."""

import random

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import ControlType
from pyspark_tidb_binlog.schemas.explode import changes_of, explode
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, TRANSACTION
from pyspark_tidb_binlog.schemas.wire import BYTES, VARINT, key, varint
from pyspark_tidb_binlog.schemas.wire_lockstep import FEWEST, HUGE, LockstepFields, of_binaries, taken, walk

SIZES = (0, 1, 5, 127, 128, 300, 16_383, 16_384)
LISTS = {0: "inserted_rows", 1: "updated_rows", 4: "deleted_rows"}


def mutation(draw: random.Random, ops: list[int]) -> pb.TableMutation:
    found = pb.TableMutation(table_id=draw.choice((0, 7, 130, (1 << 42) + 9)), sequence=ops)
    for op in ops:
        getattr(found, LISTS[op]).append(draw.randbytes(draw.choice(SIZES[:6])))
    return found


def value(draw: random.Random) -> bytes:
    mutations = [mutation(draw, draw.choices((0, 1, 4), k=draw.choice((0, 1, 2, 6)))) for _ in range(draw.choice((0, 1, 1, 1, 3)))]
    return pb.PrewriteValue(schema_version=draw.choice((0, 5, 40_000)), mutations=mutations).SerializeToString()


def binlog(prewrite_value: bytes, ts: int = 470604668048769025, **more: int | bytes) -> bytes:
    return pb.Binlog(tp=pb.Commit, start_ts=ts - 1, commit_ts=ts, prewrite_value=prewrite_value, **more).SerializeToString()


def batch(payloads: list[bytes | None], first_seq: int | None = None) -> pa.RecordBatch:
    count = len(payloads)
    numbers = pa.array(range(100, 100 + count), pa.int64())
    columns = [pa.nulls(count, pa.int8()), numbers, numbers, pa.array([first_seq] * count, pa.int32()), pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=TRANSACTION)


def usual(count: int, seed: int = 1) -> list[bytes | None]:
    draw = random.Random(seed)
    return [binlog(value(draw), prewrite_key=draw.randbytes(draw.choice(SIZES))) for _ in range(count)]


def outcome(transactions: pa.RecordBatch) -> list[pa.RecordBatch] | str:
    try:
        found = explode(transactions)
    except Corruption as error:
        return str(error)
    return [found.rows, found.ddls, found.controls]


def outcome_one_by_one(transactions: pa.RecordBatch) -> list[pa.RecordBatch] | str:
    """A batch of one is too small for columns."""
    parts = [outcome(transactions.slice(i, 1)) for i in range(transactions.num_rows)]
    errors = [part for part in parts if isinstance(part, str)]
    if errors:
        return errors[0]
    return [pa.concat_batches(frames) for frames in zip(*parts, strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_many_transactions_give_what_each_of_them_gives_alone(seed: int) -> None:
    transactions = batch(usual(FEWEST * 8, seed), first_seq=seed or None)
    assert outcome(transactions) == outcome_one_by_one(transactions)
    changes, left = changes_of(transactions)
    assert changes.events.num_rows > FEWEST
    assert len(left) < FEWEST  # those with more rows than most
    assert changes.events.schema == ROW_EVENT


def test_a_slice_of_a_batch_is_read_at_its_place() -> None:
    transactions = batch(usual(FEWEST * 2))
    assert outcome(transactions.slice(20, FEWEST + 1)) == outcome_one_by_one(transactions.slice(20, FEWEST + 1))


def test_what_a_parser_must_read_stays_in_its_place() -> None:
    ddl = binlog(b"", ddl_query=b"DROP TABLE t", ddl_job_id=31)
    payloads = usual(FEWEST * 2)
    huge = binlog(pb.PrewriteValue(mutations=[mutation(random.Random(1), [0] * 500)]).SerializeToString())
    for place in (0, 9, 40, len(payloads)):
        payloads[place:place] = [ddl, huge]
    transactions = batch(payloads)
    assert outcome(transactions) == outcome_one_by_one(transactions)
    assert {0, 1, 9, 10} < set(changes_of(transactions)[1].tolist())


def test_control_rows_between_the_transactions_do_not_move_them() -> None:
    transactions = batch(usual(FEWEST + 1))
    controls = [int(ControlType.RESOLVED) if i in (3, 50) else None for i in range(FEWEST + 1)]
    mixed = transactions.set_column(0, TRANSACTION.field("control"), pa.array(controls, pa.int8()))
    commits = transactions.filter(pa.array([c is None for c in controls]))
    assert explode(mixed).rows == explode(commits).rows
    assert explode(mixed).controls.num_rows == 2


def rows(*ops: int) -> pb.TableMutation:
    return mutation(random.Random(1), list(ops))


def written(mutation: bytes) -> bytes:
    """The Prewrite value with a mutation that is given byte by byte: 0x08 table_id, 0x12, 0x1a and 0x32 rows, 0x38 sequence."""
    return key(2, BYTES) + varint(len(mutation)) + mutation


def singly(**fields: int | list[int] | list[bytes]) -> bytes:
    """A binlog with one mutation of ``fields``."""
    return binlog(pb.PrewriteValue(mutations=[pb.TableMutation(**fields)]).SerializeToString())


UNUSUAL: dict[str, bytes | None] = {
    "none": None,
    "empty": b"",
    "no value": binlog(b""),
    "a DDL": binlog(b"", ddl_query=b"DROP TABLE t", ddl_job_id=31),
    "a DDL with a number of nine bytes": binlog(b"", ddl_query=b"DROP TABLE t", ddl_job_id=1 << 60),
    "a DDL with rows": binlog(pb.PrewriteValue(mutations=[rows(0)]).SerializeToString(), ddl_query=b"DROP TABLE t", ddl_job_id=31),
    "a huge version": binlog(pb.PrewriteValue(schema_version=1 << 50, mutations=[rows(0)]).SerializeToString()),
    "a huge table": singly(table_id=1 << 50, inserted_rows=[b"r"], sequence=[0]),
    "wrong wire types": binlog(written(b"\x0a\x01x\x10\x01\x12\x00\x38\x00")) + b"\x28\x01\x3a\x01\x05",
    "value twice": binlog(pb.PrewriteValue(mutations=[rows(0)]).SerializeToString()) + key(5, BYTES) + b"\x00",
    "job id twice": binlog(b"", ddl_job_id=4) + key(7, VARINT) + varint(0),
    "an unknown field": binlog(b"") + key(9, VARINT) + varint(3),
    "an unknown type": binlog(b"") + key(1, VARINT) + varint(9),
    "a field of two bytes of key": binlog(b"") + key(99, VARINT) + varint(3),
    "fixed width": binlog(b"") + key(9, 1) + b"12345678",
    "version twice": binlog(pb.PrewriteValue(schema_version=3, mutations=[rows(0)]).SerializeToString() + key(1, VARINT) + varint(4)),
    "a negative version": binlog(pb.PrewriteValue(schema_version=-3, mutations=[rows(0)]).SerializeToString()),
    "a negative table": singly(table_id=-3, inserted_rows=[b"r"], sequence=[0]),
    "table twice": binlog(written(b"\x08\x01\x12\x00\x08\x07\x38\x00")),
    "table last": binlog(written(b"\x12\x00\x38\x00\x08\x07")),
    "sequence first": binlog(written(b"\x38\x00\x08\x07\x12\x00")),
    "packed sequence": binlog(written(b"\x08\x01\x12\x00\x12\x00\x3a\x02\x00\x00")),
    "lists interleaved": binlog(written(b"\x32\x01d\x12\x01i\x32\x01e\x38\x04\x38\x00\x38\x04")),
    "an overlong length": binlog(written(b"\x08\x01\x12\x81\x00r\x38\x00")),
    "an overlong number": binlog(written(b"\x08" + b"\x81" * 8 + b"\x01\x12\x01r\x38\x00")),
    "a number too long": binlog(b"") + key(8, VARINT) + b"\xff" * 10 + b"\x01",
    "deleted ids": singly(table_id=3, deleted_ids=[5]),
    "cut": binlog(pb.PrewriteValue(mutations=[rows(0, 1)]).SerializeToString())[:-1],
    "an operation too many": singly(table_id=3, inserted_rows=[b"r"], sequence=[0, 0]),
    "another operation": singly(table_id=3, inserted_rows=[b"r"], sequence=[1]),
    "an unknown operation": singly(table_id=3, inserted_rows=[b"r"], sequence=[2]),
    "an odd end": binlog(written(b"\x12\x00\x38\x00\x38")),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_written_as_usual_gives_what_a_parser_gives(name: str) -> None:
    """There are many, because the fields that only few have are not walked."""
    payloads = usual(FEWEST * 2)
    payloads[5:5] = [UNUSUAL[name]] * FEWEST
    transactions = batch(payloads)
    assert (found := outcome(transactions)) == outcome_one_by_one(transactions)
    assert isinstance(found, str) or len(changes_of(transactions)[1]) < len(payloads)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow if seed >= 50 else ()) for seed in range(150)])
def test_damaged_bytes_give_what_a_parser_gives(seed: int) -> None:
    draw = random.Random(seed)
    damaged = bytearray(usual(1, seed)[0] or b"")
    for _ in range(draw.choice((1, 2, 4))):
        # Most numbers and keys are near the ends: between them are keys and rows, whose bytes mean nothing here.
        place = min(int(draw.expovariate(1 / 30)), len(damaged) - 1)
        damaged[draw.choice((place, -1 - place))] = draw.choice((0, 1, 0x12, 0x38, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    transactions = batch([*usual(3), *[bytes(damaged)] * FEWEST, *usual(3)])
    assert outcome(transactions) == outcome_one_by_one(transactions)


def test_a_walk_says_what_each_field_holds_and_which_messages_it_has_left_out() -> None:
    numbers = (0, 127, 128, (1 << 49) - 1, 1 << 49)
    messages = [key(1, VARINT) + varint(n) + key(2, BYTES) + varint(2) + b"ab" for n in numbers]
    messages += [b"", key(1, VARINT) + varint(-1), key(2, BYTES) + varint(3) + b"ab"]
    buffer, begin, end = of_binaries(pa.array(messages * FEWEST, pa.binary()))
    found = walk(buffer, begin, end)
    assert found.whole.reshape(FEWEST, -1).tolist() == [[True] * 6 + [False] * 2] * FEWEST
    first = [(m, k, v, bytes(buffer.bytes[a:b])) for m, k, v, a, b in zip(*columns(found), strict=True) if m < len(messages)]
    values = [*numbers[:-1], HUGE]
    assert first == [f for m, n in enumerate(values) for f in ((m, 0x08, n, varint(numbers[m])), (m, 0x12, 2, b"ab"))]
    assert len(found.message) == 2 * len(numbers) * FEWEST


def columns(found: LockstepFields) -> list[list[int]]:
    return [column.tolist() for column in (found.message, found.key, found.value, found.begin, found.end)]


def test_few_messages_and_few_bytes_are_left_to_a_parser() -> None:
    def whole(messages: list[bytes]) -> list[bool]:
        found: list[bool] = walk(*of_binaries(pa.array(messages, pa.binary()))).whole.tolist()
        return found

    assert whole([b"\x08\x01" * 9] * (FEWEST - 1)) == [False] * (FEWEST - 1)
    assert whole([b"\x08\x01", *[b""] * FEWEST]) == [False, *[True] * FEWEST]


def test_a_walk_ends_before_the_field_at_which_to_stop() -> None:
    buffer, begin, end = of_binaries(pa.array([b"\x08\x01\x10\x02\x08\x03"] * FEWEST, pa.binary()))
    found = walk(buffer, begin, end, stop=0x10)
    assert found.whole.all() and (found.rest - begin == 2).all() and found.key.tolist() == [0x08] * FEWEST


def test_values_are_taken_in_any_order() -> None:
    buffer, begin, end = of_binaries(pa.array([b"one", b"", b"three"], pa.binary()))
    assert taken(buffer, begin, end, np.array([2, 0, 1])).to_pylist() == [b"three", b"one", b""]
    assert taken(buffer, begin[:0], end[:0], np.arange(0)).to_pylist() == []
