"""The type and timestamps of a payload, read from its first bytes: all that the store needs.

Promises: pure. A payload as Pumps store it starts ``08 tp 10 start_ts 18 commit_ts [22 prewrite_key]`` (wire.md 5); a compiled pattern
reads that. Any other order of fields is left to protobuf. ``completed`` returns what a real Pump would send for a Commit, byte for byte.
"""

import enum
import re
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import BinlogType
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.wire import int64_of, varint

_HEAD = re.compile(rb"\x08([\x00-\x7f])\x10([\x80-\xff]{0,9}[\x00-\x7f])\x18([\x80-\xff]{0,9}[\x00-\x7f])", re.DOTALL)
_KEY_TAG = 0x22
_COPIED_WITH_PRESENCE = ("prewrite_value", "ddl_query", "ddl_job_id", "ddl_schema_state")


class RecordKind(enum.IntEnum):
    """The kinds of records."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2
    FAKE = 3


class Record(NamedTuple):
    """One binlog on its way into the log."""

    kind: RecordKind
    start_ts: int
    commit_ts: int
    payload: bytes

    @property
    def ts(self) -> int:
        """Its key in the index: start_ts of a Prewrite, commit_ts of everything else (pump.md 4.3)."""
        return self.start_ts if self.kind is RecordKind.PREWRITE else self.commit_ts


def kind_of(tp: int, start_ts: int, commit_ts: int) -> RecordKind:
    """The kind of a binlog. A fake is recognised by its equal timestamps; a Rollback by its commit_ts of 0."""
    if tp == BinlogType.PREWRITE:
        return RecordKind.PREWRITE
    if commit_ts == 0:
        return RecordKind.ROLLBACK
    return RecordKind.FAKE if start_ts == commit_ts else RecordKind.COMMIT


def parse(payload: bytes) -> binlog_pb2.Binlog:
    """Parse a payload; ``Corruption`` when it is not a Binlog message."""
    try:
        return binlog_pb2.Binlog.FromString(payload)
    except DecodeError as error:
        raise Corruption("unexpected EOF") from error


def canonical(payload: bytes) -> Record:
    """A received payload, serialized again as a real Pump does: fields ascending, the non-nullable ones always present."""
    message = parse(payload)
    for name in ("tp", "start_ts", "commit_ts", "ddl_job_id", "ddl_schema_state"):
        if not message.HasField(name):
            setattr(message, name, 0)
    start_ts, commit_ts = message.start_ts, message.commit_ts
    return Record(kind_of(message.tp, start_ts, commit_ts), start_ts, commit_ts, message.SerializeToString())


def head_varints(payload: bytes) -> tuple[bytes, bytes]:
    """start_ts and commit_ts as the varints in ``payload``."""
    match = _HEAD.match(payload)
    if match is not None:
        return match[2], match[3]
    message = parse(payload)
    return varint(message.start_ts), varint(message.commit_ts)


def start_ts_of(payload: bytes) -> int:
    """The start_ts of a stored payload."""
    match = _HEAD.match(payload)
    return int64_of(match[2]) if match is not None else parse(payload).start_ts


def read(payload: bytes) -> Record:
    """A stored payload as a record."""
    match = _HEAD.match(payload)
    if match is not None:
        tp, start_ts, commit_ts = match[1][0], int64_of(match[2]), int64_of(match[3])
    else:
        message = parse(payload)
        tp, start_ts, commit_ts = message.tp, message.start_ts, message.commit_ts
    return Record(kind_of(tp, start_ts, commit_ts), start_ts, commit_ts, payload)


def fake(ts: int) -> Record:
    """A fake binlog at ``ts``."""
    number = varint(ts)
    return Record(RecordKind.FAKE, ts, ts, b"\x08\x02\x10" + number + b"\x18" + number + b"\x38\x00\x40\x00")


def _after_key(payload: bytes) -> int:
    """Offset of the first field after prewrite_key; -1 when the pattern does not match."""
    match = _HEAD.match(payload)
    if match is None:
        return -1
    at = match.end()
    if at >= len(payload) or payload[at] != _KEY_TAG:
        return at
    try:
        length, at = decode_uvarint(payload, at + 1)
    except Corruption:
        return -1
    return at + length


def completed(commit: bytes, prewrite: bytes) -> bytes:
    """The Commit with prewrite_value and the ddl fields of its Prewrite (pump.md 7)."""
    cut_commit, cut_prewrite = _after_key(commit), _after_key(prewrite)
    if cut_commit >= 0 and cut_prewrite >= 0:
        return commit[:cut_commit] + prewrite[cut_prewrite:]
    message, source = parse(commit), parse(prewrite)
    for name in _COPIED_WITH_PRESENCE:
        message.ClearField(name)
        if source.HasField(name):
            setattr(message, name, getattr(source, name))
    return message.SerializeToString()
