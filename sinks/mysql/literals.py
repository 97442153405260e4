"""Converts decoded columns to SQL literals and rows of literals, whole columns at a time with Arrow compute.

Promises: pure. A literal parsed by the server in a session of ``sinks.mysql.session`` (utf8mb4, backslash escapes on) gives exactly the
same value: floats are written in their shortest exact form, raw bytes as ``_binary'...'``.
No sql_mode lets a value terminate its literal: quotes and backslashes are doubled, and a doubled quote is a quote in every mode.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.fold import Mask
from pyspark_tidb_binlog.sinks.mysql.dialect import is_bytes


class LiteralForm(enum.Enum):
    """How values of a column are written as literals."""

    BARE = enum.auto()
    """Numbers: their text unchanged."""
    QUOTED = enum.auto()
    """Dates and times: quoted; their text needs no escaping."""
    TEXT = enum.auto()
    """Characters: escaped and quoted."""
    BYTES = enum.auto()
    """Raw bytes: like TEXT, with an introducer so that the server does not interpret them as characters."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Literals of one column. A null cell means NULL; ``opening`` and ``closing`` enclose every cell."""

    values: pa.BinaryArray
    opening: bytes = b""
    closing: bytes = b""


def form_of(column: ColumnInfo, kind: pa.DataType) -> LiteralForm:
    """The form for a column's decoded values of Arrow type ``kind`` (see ``schemas.decoder``)."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or column.tp == ColumnType.DECIMAL:
        return LiteralForm.BARE
    if pa.types.is_binary(kind):
        return LiteralForm.BYTES if is_bytes(column) else LiteralForm.TEXT
    return LiteralForm.TEXT if column.tp == ColumnType.JSON else LiteralForm.QUOTED


def literals(values: pa.Array, form: LiteralForm) -> Cells:
    """The literals of a decoded column."""
    text = _as_text(values)
    if form is LiteralForm.BARE:
        return Cells(text)
    if form is not LiteralForm.QUOTED:
        text = _escape(text)
    opening = b"_binary'" if form is LiteralForm.BYTES else b"'"
    if text.null_count == 0:
        return Cells(text, opening, b"'")
    # NULL must not be quoted, so the quotes are added here to the values that are not NULL.
    return Cells(pc.binary_join_element_wise(opening, text, b"'", b"", null_handling="emit_null"))


def join_cells(opening: bytes, columns: Sequence[Cells], between: Sequence[bytes], closing: bytes) -> pa.BinaryArray:
    """One text per row: ``opening``, the columns' literals with ``between[i]`` after the i-th (except the last), ``closing``."""
    pieces: list[Any] = []
    pending = opening
    for i, cells in enumerate(columns):
        pieces += [pending + cells.opening, cells.values]
        pending = cells.closing + (between[i] if i < len(columns) - 1 else closing)
    return pc.binary_join_element_wise(*pieces, pending, b"", null_handling="replace", null_replacement="NULL")


def join_conditions(opening: bytes, terms: Iterable[tuple[bytes, tuple[bytes, ...], Cells]], closing: bytes) -> pa.BinaryArray:
    """One text per row: ``opening``, each of the terms, ``closing``.

    Args:
        opening: goes before the first term.
        terms: what precedes each, its texts, and the literals that go between each two of them.
        closing: goes behind the last term.
    """
    columns: list[Cells] = []
    between: list[bytes] = []
    for lead, (first, *others), cells in terms:
        if between:
            between[-1] += lead + first
        else:
            opening += lead + first
        columns += [cells] * len(others)
        between += others
    return join_cells(opening, columns, between, between[-1] + closing)


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def deeper(documents: pa.Array, depth: int) -> Mask:
    """Mask of the JSON texts that are nested deeper than ``depth``. Only a text with more opening brackets is looked at by itself."""
    opening = pc.add(pc.count_substring(documents, "["), pc.count_substring(documents, "{"))
    found = pc.fill_null(pc.greater(opening, depth), False).to_numpy(zero_copy_only=False).copy()
    for place in np.flatnonzero(found).tolist():
        text = documents[place].cast(pa.binary()).as_py()
        brackets = _STRING.sub(b"", _ESCAPED.sub(b"", text).translate(None, _NO_STRUCTURE))
        levels = np.cumsum(np.where(np.isin(np.frombuffer(brackets, np.uint8), (0x5B, 0x7B)), 1, -1))
        found[place] = levels.max(initial=0) > depth
    return found  # type: ignore[no-any-return]


def text_of(rows: pa.BinaryArray) -> memoryview:
    """All rows as one text, without a copy: they are contiguous in the array."""
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)
    return memoryview(data)[int(ends[rows.offset]) : int(ends[rows.offset + len(rows)])]


_ESCAPES = ((0x5C, "\\", "\\\\"), (0x27, "'", "''"), (0x00, "\0", "\\0"))
"""Backslash first, or it would escape the other escapes. NUL is escaped because logs and proxies may end a text at it."""


def _escape(text: pa.BinaryArray) -> pa.BinaryArray:
    if text.buffers()[2] is None:
        return text
    present = np.frombuffer(text_of(text), dtype=np.uint8)
    for byte, plain, escaped in _ESCAPES:
        if bool((present == byte).any()):
            text = pc.replace_substring(text, plain, escaped)
    return text


def _as_text(values: pa.Array) -> pa.BinaryArray:
    if pa.types.is_binary(values.type):
        return values
    if pa.types.is_float32(values.type):
        # The shortest text of a float32 denotes another number when read as a double; comparisons need the float's exact value.
        values = pc.cast(values, pa.float64())
    return pc.cast(pc.cast(values, pa.string()), pa.binary())
