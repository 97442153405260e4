"""The one scan of a value-log file from one end to the other: for recovery, the slow chaser, the pulls and the operator's report.

Promises: every record between the two ends is returned once, in order. Bytes that are not records are reported with the records around them
(``RecordRun.holes``), however the file is cut into pieces.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.pump.storage.env import ReadFile
from pyspark_tidb_binlog.binlog_source.pump.storage.format import HEADER, split_records
from pyspark_tidb_binlog.binlog_source.pump.storage.pointer import Pointer
from pyspark_tidb_binlog.schemas.errors import Corruption

PIECE = 1 << 20
"""Bytes that a scan reads at once."""
Admit = Callable[[int], bool]
"""Called with the bytes of a read that is larger than a piece; where it returns False, the scan ends."""
OnSkipped = Callable[[int, int], None]
"""Called with the damaged bytes in a piece, and the offset from which on they were found."""


class RecordRun(NamedTuple):
    """Some records of one file, in order, and the damaged places between them."""

    file_id: int
    offsets: list[int]
    payloads: list[bytes]
    holes: Sequence[tuple[int, int]] = ()
    """Begin and end of the bytes that are not records: places where records may have been."""

    def end_of(self, position: int) -> int:
        """Offset just after the record at ``position``."""
        return self.offsets[position] + HEADER.size + len(self.payloads[position])


def at_once(size: int) -> bool:
    """The ``Admit`` that never ends a scan."""
    return True


def scan_file(
    file_id: int, reader: ReadFile, at: int, end: int, on_skipped: OnSkipped, piece_size: int = PIECE, admit: Admit = at_once
) -> Generator[RecordRun, None, bool]:
    """The records from offset ``at`` to ``end``. Returns whether the end was reached; False: ``admit`` returned False.

    Raises:
        Corruption: the file is shorter than ``end``.
    """
    wanted = piece_size
    carried: list[tuple[int, int]] = []
    while at < end:
        if wanted > piece_size and not admit(min(wanted, end - at)):
            return False
        split = split_records(reader.read(at, min(wanted, end - at)), end - at)
        if split.skipped:
            on_skipped(split.skipped, at)
        holes = _joined(carried, [(at + begin, at + over) for begin, over in split.holes])
        # a hole that reaches the end of the piece may continue in the next
        carried = [holes.pop()] if holes and holes[-1][1] == at + split.consumed < end else []
        holes = [hole for hole in holes if hole[1] - hole[0] >= HEADER.size]
        if split.offsets or holes:
            yield RecordRun(file_id, [at + offset for offset in split.offsets], split.payloads, holes)
        if not split.consumed and split.missing <= wanted:
            raise Corruption(f"value log {Pointer(file_id, at)}: the file is shorter than it was ({end} bytes expected)")
        at += split.consumed
        wanted = max(piece_size, split.missing)
    return True


def _joined(before: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``before`` (at most one) and ``holes``, merged where they touch."""
    if before and holes and before[0][1] == holes[0][0]:
        return [(before[0][0], holes[0][1]), *holes[1:]]
    return [*before, *holes]
