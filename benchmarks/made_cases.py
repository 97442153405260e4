"""Cases made from a recorded one: its row changes played again with other keys and timestamps, or over another number of Pumps. Pure.

    play    the case's transactions once more, ``number`` spans later, each row with a handle of its own
    spread  the same transactions, dealt to so many Pumps

Promises: the order of commit_ts is kept, within a play and between plays. A play leaves the same rows in the target as the recording, with
``KEYS * number`` added to every ``id``.
"""

import dataclasses
import functools

from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase
from pyspark_tidb_binlog.schemas.codec.datum import as_integer, encode_int, take_datum
from pyspark_tidb_binlog.schemas.codec.number import Cursor
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

KEYS = 1_000_000
"""How far the keys of two plays are apart: more than the recording has."""
_HANDLE_ID = encode_int(1)
"""The id of the column that is the handle, as rows have it."""


def span_of(case: RecordedCase) -> int:
    """How far the timestamps of two plays are apart: the recording ends before the next one begins."""
    return case.last_ts - case.start_ts + 1


def play(case: RecordedCase, number: int) -> RecordedCase:
    """Play ``number`` of the case, 0 being the recording itself. Later ones have no DDLs.

    The tables must have an integer primary key as their handle, in the first column.
    """
    if number == 0:
        return case
    shift = number * span_of(case)
    pumps = tuple(tuple(made for payload in recording if (made := _shifted(payload, shift, number * KEYS))) for recording in case.pumps)
    return dataclasses.replace(case, start_ts=case.start_ts + shift, end_ts=case.end_ts + shift, pumps=pumps)


def played(case: RecordedCase, times: int) -> RecordedCase:
    """The bounds of ``times`` plays one after another, without their binlogs but for those of the last play."""
    return dataclasses.replace(play(case, times - 1), start_ts=case.start_ts)


def spread(case: RecordedCase, pumps: int) -> RecordedCase:
    """The transactions and DDLs of ``case`` dealt to ``pumps`` Pumps in turn; each ends in a fake binlog past ``end_ts``."""
    parsed = [(binlog_pb2.Binlog.FromString(payload), payload) for recording in case.pumps for payload in recording]
    complete = sorted((binlog.commit_ts, payload) for binlog, payload in parsed if binlog.tp == binlog_pb2.Commit)
    last = fake(case.last_ts).payload
    return dataclasses.replace(case, pumps=tuple((*(payload for _, payload in complete[n::pumps]), last) for n in range(pumps)))


def _shifted(payload: bytes, ts: int, keys: int) -> bytes | None:
    """A binlog ``ts`` later and with every handle ``keys`` higher; None for a DDL."""
    binlog = binlog_pb2.Binlog.FromString(payload)
    if binlog.ddl_job_id:
        return None
    binlog.start_ts += ts
    binlog.commit_ts += ts
    if binlog.tp == binlog_pb2.Commit:
        value = binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value)
        for mutation in value.mutations:
            mutation.inserted_rows[:] = [_inserted(row, keys) for row in mutation.inserted_rows]
            mutation.updated_rows[:] = [_updated(row, keys) for row in mutation.updated_rows]
            mutation.deleted_rows[:] = [_row(row, keys) for row in mutation.deleted_rows]
        binlog.prewrite_value = value.SerializeToString()
    return binlog.SerializeToString()


def _inserted(row: bytes, keys: int) -> bytes:
    """The handle, then the row without it."""
    cursor = Cursor(row)
    handle = as_integer(take_datum(cursor))
    return encode_int(handle + keys) + row[cursor.pos :]


def _updated(row: bytes, keys: int) -> bytes:
    """The old row, then the new one."""
    at = _second_row(row)
    return _row(row[:at], keys) + _row(row[at:], keys)


def _row(row: bytes, keys: int) -> bytes:
    """Column ids and values; the handle is the first."""
    if not row.startswith(_HANDLE_ID):
        raise ValueError("a row does not begin with the integer handle in column 1")
    return _HANDLE_ID + _inserted(row[len(_HANDLE_ID) :], keys)


@functools.cache
def _second_row(row: bytes) -> int:
    """Where the new row of an update begins: where its first column's id comes again. Remembered for the other plays."""
    cursor = Cursor(row)
    first = take_datum(cursor)
    take_datum(cursor)
    while True:
        at = cursor.pos
        if take_datum(cursor) == first:
            return at
        take_datum(cursor)
