"""Rows that a condition hides from the target: an UPDATE that crosses the condition becomes an INSERT or a DELETE there. Pure.

Promises: whole columns at a time. An event's row may be hidden before it, after it, both or neither. ``fold`` treats a hidden row as a row that
does not exist.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]
BEFORE, AFTER = "hidden_before", "hidden_after"
"""Columns beside those of ``ROW_EVENT``, both or none."""

HIDDEN = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("half", pa.int32(), nullable=False),
    ]
)
"""A hidden image of the event (commit_ts, seq). ``half``: ``row_layout.Half``, 0 = before it, 1 = after it."""


@dataclass(frozen=True, slots=True, eq=False)
class HiddenRows:
    """The hidden images of a step; 8 bytes each. Picklable: every part has all of them, so a lookup must not cost as much as they are many."""

    times: Numbers
    """The commit_ts with hidden images, ascending."""
    before: Numbers
    """Events whose row before them is hidden: place among ``times`` and ``seq`` in one number, ascending."""
    after: Numbers
    """Events whose row after them is hidden, likewise."""

    @classmethod
    def of(cls, images: pa.Table) -> Self:
        """Those of ``images`` (``HIDDEN``, in any order)."""
        times = np.unique(images.column("commit_ts").to_numpy())
        codes, half = _codes(images, times), images.column("half").to_numpy()
        return cls(times, np.sort(codes[half == 0]), np.sort(codes[half == 1]))

    def marked(self, rows: pa.Table) -> pa.Table:
        """``rows`` (with the columns of ``ROW_EVENT``) with ``BEFORE`` and ``AFTER``."""
        codes = _codes(rows, self.times)
        for name, hidden in ((BEFORE, self.before), (AFTER, self.after)):
            rows = rows.append_column(name, pa.array(_among(codes, hidden)))
        return rows


def marked(rows: pa.Table, hidden: HiddenRows | None) -> pa.Table:
    """``rows`` as ``HiddenRows.marked``; as they are where there are no conditions."""
    return rows if hidden is None else hidden.marked(rows)


def _among(codes: Numbers, hidden: Numbers) -> Any:
    if not len(hidden):
        return np.zeros(len(codes), dtype=np.bool_)
    return hidden[np.minimum(np.searchsorted(hidden, codes), len(hidden) - 1)] == codes


def _codes(rows: pa.Table, times: Numbers) -> Numbers:
    """A number for each event, -1 where its commit_ts is none of ``times``."""
    commit_ts, seq = rows.column("commit_ts").to_numpy(), rows.column("seq").to_numpy().astype(np.int64)
    if not len(times):
        return np.full(len(commit_ts), -1, np.int64)
    place = np.minimum(np.searchsorted(times, commit_ts), len(times) - 1)
    return np.where(times[place] == commit_ts, (place.astype(np.int64) << 32) + seq, -1)
