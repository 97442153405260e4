"""Cells of a column after a change of type, as values of the former type, a whole column at a time. Pure.

    numbers, BIT                 each other's, where the value is exactly the same; BIT(1), a boolean, is a number's only
    dates                        DATE and DATETIME each other's; an instant (TIMESTAMP) is nothing else's
    text                         everything's, but for BIT and TIMESTAMP, if it is written as TiDB writes the value

Promises: each cell keeps its value, or there is an error. Two texts never become one value: a text is converted only if it is TiDB's text of the value.
"""

from collections.abc import Callable
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, digits_of, kind_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import is_date, type_of, typed
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType

_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"
_DAY, _MIDNIGHT = "YYYY-MM-DD", " 00:00:00"


class _Family(Enum):
    """Types whose values are each other's."""

    NUMBER = auto()
    BIT = auto()
    LOCAL = auto()
    INSTANT = auto()
    TIME = auto()
    WORDS = auto()
    TEXT = auto()
    BYTES = auto()
    JSON = auto()


_FAMILIES = {CellKind.TIME: _Family.TIME, CellKind.JSON: _Family.JSON}
_ALIKE = frozenset(
    frozenset(pair)
    for pair in [
        (_Family.NUMBER, _Family.BIT),
        *((_Family.TEXT, other) for other in _Family if other not in (_Family.TEXT, _Family.BIT, _Family.INSTANT)),
    ]
)


def as_former(wanted: ColumnInfo, kind: pa.DataType, column: ColumnInfo, cells: pa.Array) -> pa.Array:
    """``cells`` of an image of ``column`` as those of ``wanted``, whose Arrow type is ``kind``: its own, or for dates text.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: a value is none of ``wanted``.
    """
    given, former = _family(column), _family(wanted)
    if given is not former and frozenset((given, former)) not in _ALIKE:
        raise pa.ArrowInvalid(f"values of {given.name} are not values of {former.name}")
    if is_date(wanted) and is_date(column) and pa.types.is_string(kind):
        return _with_digits(cells, column, wanted)
    if is_date(column) and not is_date(wanted):
        return cells
    values = typed(column, cells).values
    if is_date(wanted) and given is _Family.TEXT:
        _require(values, _pattern_of(wanted))
    return values if values.type == kind else fitted(values, kind)


def fitted(cells: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Typed cells as another type, each with the same value.

    Raises:
        ArrowInvalid: a value does not fit, or a text is not TiDB's text of its value. Never fit: dates and numbers, instants and local times, texts and
            booleans.
    """
    given = cells.type
    to_text, of_text = pa.types.is_string(wanted), pa.types.is_string(given)
    if (to_text or of_text) and (pa.types.is_boolean(given) or pa.types.is_boolean(wanted)):
        raise pa.ArrowInvalid(f"{given} is no {wanted}")
    if to_text:
        return _texts(cells)
    if of_text and _is_number(wanted):
        _require(cells, _NUMBER)
    if not of_text and _kind_of_time(given) != _kind_of_time(wanted):
        raise pa.ArrowInvalid(f"{given} is no {wanted}")
    found = cells.cast(wanted)
    # Arrow itself lets a float overflow, a decimal be rounded and a time of day be cut off.
    if not of_text and not found.cast(given).equals(cells):
        raise pa.ArrowInvalid(f"{wanted} cannot hold every value exactly")
    if of_text and _is_number(wanted) and not _texts(found).equals(cells):
        raise pa.ArrowInvalid(f"some texts are not written as {wanted} is")
    return found


def _family(column: ColumnInfo) -> _Family:
    kind = kind_of(column)
    if is_date(column):
        return _Family.INSTANT if _kind_of_time(type_of(column)) == "instant" else _Family.LOCAL
    if kind is CellKind.NUMBER:
        return _Family.BIT if column.tp == ColumnType.BIT else _Family.WORDS
    if kind is CellKind.BYTES:
        return _Family.BYTES if column.is_binary else _Family.TEXT
    return _FAMILIES.get(kind, _Family.NUMBER)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _texts(cells: pa.Array) -> pa.StringArray:
    """Values as TiDB writes them: numbers without an exponent, in as few digits as say which it is."""
    kind = cells.type
    shown: Callable[..., str]
    if pa.types.is_floating(kind):
        as_numpy = np.float32 if kind == pa.float32() else np.float64

        def shown(value: float) -> str:
            return np.format_float_positional(as_numpy(value), trim="-")

    elif pa.types.is_decimal(kind):

        def shown(value: object) -> str:
            return format(value, "f")

    else:
        return cells.cast(pa.string())
    return pa.array([None if value is None else shown(value) for value in cells.to_pylist()], pa.string())


def _require(texts: pa.StringArray, pattern: str) -> None:
    odd = pc.fill_null(pc.invert(pc.match_substring_regex(texts, pattern)), False)
    if pc.any(odd).as_py():
        raise pa.ArrowInvalid(f"{texts.filter(odd)[0].as_py()!r} is not written as values of that type are")


def _kind_of_time(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "instant" if kind.tz else "local"
    return "local" if pa.types.is_date(kind) else ""


def _has_time_of_day(column: ColumnInfo) -> bool:
    return kind_of(column) is CellKind.DATETIME


def _pattern_of(column: ColumnInfo) -> str:
    """What the texts of a column of dates look like."""
    day, digits = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", digits_of(column)
    if not _has_time_of_day(column):
        return rf"^{day}$"
    return f"^{day} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}" + (rf"\.[0-9]{{{digits}}}$" if digits else "$")


def _with_digits(texts: pa.StringArray, column: ColumnInfo, wanted: ColumnInfo) -> pa.StringArray:
    """Texts of dates with the time of day and the digits of another column of dates; what is left out is zero."""
    if _pattern_of(column) == _pattern_of(wanted):
        return texts
    digits = digits_of(wanted) if _has_time_of_day(wanted) else 0
    whole = texts if _has_time_of_day(column) else _joined(texts, _MIDNIGHT)
    if not _has_time_of_day(wanted):
        _require(whole, rf"{_MIDNIGHT}(\.0*)?$")
        return pc.utf8_slice_codeunits(whole, 0, len(_DAY))
    seconds = len(_DAY + _MIDNIGHT)
    fraction = pc.utf8_slice_codeunits(whole, seconds + 1, None)
    _require(pc.utf8_slice_codeunits(fraction, digits, None), "^0*$")
    kept = pc.utf8_rpad(pc.utf8_slice_codeunits(fraction, 0, digits), digits, "0")
    return _joined(pc.utf8_slice_codeunits(whole, 0, seconds), *(([".", kept]) if digits else []))


def _joined(*parts: pa.StringArray | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")
