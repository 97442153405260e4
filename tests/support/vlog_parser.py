"""A second reader of value-log files, written from pump.md 4.1 alone with the standard library: what our store writes must be what it reads.

record = 0x823A56E8 u32 LE | payload length u64 LE | CRC-32C(payload) u32 LE | payload
footer = max ts i64 LE | 0x123AB922 u32 LE, the last 12 bytes of a finished file
"""

import struct
from collections.abc import Iterator

RECORD, FOOTER = struct.Struct("<IQI"), struct.Struct("<qI")
RECORD_MAGIC, END_MAGIC = 0x823A56E8, 0x123AB922


def _crc_table() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


_TABLE = tuple(_crc_table())


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def parse(file: bytes) -> tuple[list[bytes], int | None]:
    """The payloads of a file that is whole, and the largest ts of its footer; None when it is not finished."""
    payloads, at = [], 0
    while len(file) - at >= RECORD.size:
        magic, length, crc = RECORD.unpack_from(file, at)
        payload = file[at + RECORD.size : at + RECORD.size + length]
        assert magic == RECORD_MAGIC and len(payload) == length and crc32c(payload) == crc, f"damage at {at}"
        payloads.append(payload)
        at += RECORD.size + length
    if at == len(file):
        return payloads, None
    max_ts, magic = FOOTER.unpack(file[at:])
    assert magic == END_MAGIC, f"no footer at {at}"
    return payloads, max_ts
