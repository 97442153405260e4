"""PullBinlogs answers, built by hand: the payload goes from the log to the wire without being parsed.

    message = 0a len entity                         (PullBinlogResp; several in a row are a PullBinlogBatch)
    entity  = 0a len pos | 12 len payload | 22 len meta
    pos     = [08 suffix] [10 offset]               meta = [08 start_ts] [10 commit_ts]

Promises: pure. Zero fields are left out, sub-messages are always there (wire.md 2, NNM).
"""

from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.record import fake, varint

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
    """A PullBinlogResp; the timestamps are varints as they stand in the payload."""
    entity = pos + b"\x12" + varint(len(payload)) + payload + _meta_field(start_ts, commit_ts)
    return b"\x0a" + varint(len(entity)) + entity


def promise(ts: int, at: Pointer) -> bytes:
    """The synthetic message that ends what the log holds: T = ``ts`` at ``at`` (raw delivery)."""
    number = varint(ts)
    return message(fake(ts).payload, number, number, pos_field(at))


def tip(at: Pointer, raw_promise: int, sorted_promise: int) -> bytes:
    """One step of the tip delivery: position, T and maxCommitTS there; no payload."""
    entity = pos_field(at) + _meta_field(varint(raw_promise), varint(sorted_promise))
    return b"\x0a" + varint(len(entity)) + entity
