"""A damaged place in a Pump's value log: the loss, the message about it, and how a reader continues after it. Pure.

A Pump ends a pull at such a place with status DATA_LOSS and ``Damage.text``. A reader that must not lose anything raises the text as its
error. With ``fail-on-data-loss = false`` a reader parses the place from the text, records a loss, and pulls again. A raw pull continues
from ``end``. A sorted pull names the place in metadata ``tidb-binlog-known-damage``, or starts from ``upto_ts`` if exactly one commit_ts is
lost.

A real Pump only ends the stream with OK and no message, each time at the same ts. ``first_readable`` finds the record that causes this.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.events import as_time


@dataclass(frozen=True, slots=True)
class Damage:
    """The bytes ``[begin, end)`` of value-log file ``file_id`` are not records. The lost transactions committed in (after_ts, upto_ts]."""

    file_id: int
    begin: int
    end: int
    """Equal to ``begin`` if the log is shorter than it was."""
    after_ts: int
    upto_ts: int
    """0: unknown, because nothing after the place bounds the loss yet."""

    @property
    def exact(self) -> bool:
        """Whether exactly one commit_ts, ``upto_ts``, is lost."""
        return self.upto_ts == self.after_ts + 1

    @property
    def place(self) -> str:
        """The place as metadata names it."""
        return f"{self.file_id}:{self.begin}"

    def concerns(self, last: int, known: Iterable[str]) -> bool:
        """Whether a reader that has everything up to ``last`` may miss something here that it has not recorded yet."""
        return self.place not in known and (not self.upto_ts or last < self.upto_ts)

    def text(self, pump: str) -> str:
        """The message: Pump, file, offsets and span, in the form that ``damage_in`` parses."""
        if self.exact:
            span = f"the binlog of commit_ts {self.upto_ts} ({as_time(self.upto_ts)}) is lost"
        else:
            upto = f"up to {self.upto_ts} ({as_time(self.upto_ts)})" if self.upto_ts else "of any age"
            span = f"binlogs of commit_ts above {self.after_ts} ({as_time(self.after_ts)}), {upto}, may be lost"
        return f"Pump {pump}: value log {self.file_id:06d}.vlog is damaged from offset {self.begin} to {self.end}: {span}"


_TEXT = re.compile(
    r"value log (\d+)\.vlog is damaged from offset (\d+) to (\d+): (?:the binlog of commit_ts (\d+) |binlogs of commit_ts above (\d+) \([^)]*\), (?:up to (\d+) )?)"
)


def damage_in(text: str) -> Damage | None:
    """The damage in a Pump's status text; None if the text describes none."""
    found = _TEXT.search(text)
    if found is None:
        return None
    file_id, begin, end = (int(found[n]) for n in (1, 2, 3))
    if found[4]:
        return Damage(file_id, begin, end, int(found[4]) - 1, int(found[4]))
    return Damage(file_id, begin, end, int(found[5]), int(found[6] or 0))


def silent_text(pump: str, after_ts: int) -> str:
    """The message about a real Pump that stops at a damaged record."""
    return (
        f"Pump {pump} ends every pull from ts {after_ts} ({as_time(after_ts)}): the Pump cannot read the next record of its value log "
        "(the Pump's own log names file and offset)"
    )


def first_readable(after_ts: int, upto_ts: int, readable: Callable[[int], bool]) -> int | None:
    """The ts of the record that cannot be read: the smallest ts in (after_ts, upto_ts] from which a pull delivers something.

    None if there is none: then the cause is not a single record.

    ``readable(ts)``: whether a pull from ``ts`` (exclusive) delivers something. It is called about 2 log2(distance) times.
    """
    if upto_ts <= after_ts:
        return None
    bad, step = after_ts, 1
    while (good := min(bad + step, upto_ts)) < upto_ts and not readable(good):
        bad, step = good, step * 2
    if good == upto_ts and not readable(good):
        return None
    while good - bad > 1:
        middle = (bad + good) // 2
        if readable(middle):
            good = middle
        else:
            bad = middle
    return good
