"""Encodes PullBinlogs answers by hand: the payload goes from the log to the wire without being parsed.

    message = 0a len entity                         (PullBinlogResp; several in a row are a PullBinlogBatch)
    entity  = 0a len pos | 12 len payload | 22 len meta
    pos     = [08 suffix] [10 offset]               meta = [08 start_ts] [10 commit_ts]

Promises: pure. Zero fields are omitted, sub-messages are always present (wire.md 2, NNM).
"""

from collections.abc import Iterator

from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.schemas.pieces import pieces
from pyspark_tidb_binlog.schemas.wire import BYTES, VARINT, fields, key, varint

_POS, _PAYLOAD, _META, _FIRST_SEQ, _MORE = 1, 2, 4, 14, 15
_ZERO = b"\x00"
_NO_POS = b"\x0a\x00"


def pos_field(at: Pointer) -> bytes:
    """Field 1 of an Entity: a raw position."""
    body = (b"\x08" + varint(at.file_id) if at.file_id else b"") + (b"\x10" + varint(at.offset) if at.offset else b"")
    return b"\x0a" + varint(len(body)) + body


def _meta_field(start_ts: bytes, commit_ts: bytes) -> bytes:
    body = (b"" if start_ts == _ZERO else b"\x08" + start_ts) + (b"" if commit_ts == _ZERO else b"\x10" + commit_ts)
    return b"\x22" + varint(len(body)) + body


def message(payload: bytes, start_ts: bytes, commit_ts: bytes, pos: bytes = _NO_POS) -> bytes:
    """A PullBinlogResp; the timestamps are varints as encoded in the payload."""
    head, tail = pos + b"\x12" + varint(len(payload)), _meta_field(start_ts, commit_ts)
    return b"".join((b"\x0a", varint(len(head) + len(payload) + len(tail)), head, payload, tail))


def in_pieces(whole: bytes, limit: int) -> Iterator[bytes]:
    """Split the ``message`` of a huge binlog into several, each with a piece of it (``schemas.pieces``); only the last has a position."""
    view = memoryview(whole)
    parts = {part.number: part for body in fields(view, 0, len(view)) for part in fields(view, body.value, body.end)}
    payload, meta = (view[parts[number].value : parts[number].end] for number in (_PAYLOAD, _META))
    pos = view[parts[_POS].begin : parts[_POS].end]
    for piece in pieces(payload, limit):
        tail = key(_META, BYTES) + varint(len(meta)) + meta.tobytes()
        if piece.first_seq:
            tail += key(_FIRST_SEQ, VARINT) + varint(piece.first_seq)
        if piece.more:
            tail += key(_MORE, VARINT) + b"\x01"
        head = (_NO_POS if piece.more else pos.tobytes()) + key(_PAYLOAD, BYTES) + varint(len(piece.payload))
        length = len(head) + len(piece.payload) + len(tail)
        yield b"".join((b"\x0a", varint(length), head, piece.payload, tail))


def promise(ts: int, at: Pointer) -> bytes:
    """The synthetic message at the end of the log: T = ``ts`` at ``at`` (raw delivery)."""
    number = varint(ts)
    return message(fake(ts).payload, number, number, pos_field(at))


def tip(at: Pointer, raw_promise: int, sorted_promise: int, max_ts: int | None = None) -> bytes:
    """One step of the tip delivery: position, T and maxCommitTS there; its payload is the fake of ``max_ts``, the largest ts so far."""
    payload = b"" if max_ts is None else fake(max_ts).payload
    content = b"\x12" + varint(len(payload)) + payload if payload else b""
    entity = pos_field(at) + content + _meta_field(varint(raw_promise), varint(sorted_promise))
    return b"\x0a" + varint(len(entity)) + entity
