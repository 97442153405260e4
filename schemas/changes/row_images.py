"""Images of the ledger as the decoder had them: the cells of ``schemas.arrowtypes`` again, a whole column at a time. Pure.

    VARIANT -> variant_cells -> typed cells -> these cells, which SQL literals are made of, and which a server's answer becomes

Promises: the inverse of ``typed_cells.typed``. Dates that no calendar has are kept. A JSON document is text with sorted keys, and numbers that are
equal are written alike, so two documents are equal if their texts are.
"""

import json
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, image_schema, kind_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates, is_date
from pyspark_tidb_binlog.schemas.changes.variant_cells import cells_of, date_texts
from pyspark_tidb_binlog.schemas.changes.variant_values import DECIMAL16, DOUBLE, INT8, OBJECT, WIDE
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType


def images_of(variants: pa.Array, columns: Sequence[ColumnInfo]) -> pa.RecordBatch:
    """The images in ``variants`` (``before``, ``after``), which are of a definition with ``columns``. A null gives nulls.

    Raises:
        Corruption, SchemaMismatch: as ``cells_of`` does.
    """
    cells = cells_of(variants, columns, InvalidDates.STRING)
    made = [found if is_date(column) else image_cells(column, found) for column, found in zip(columns, cells, strict=True)]
    return pa.RecordBatch.from_arrays(made, schema=image_schema(columns))


def image_cells(column: ColumnInfo, cells: pa.Array) -> pa.Array:
    """Cells of ``variant_cells.cell_type`` as those of an image."""
    kind = kind_of(column)
    match kind:
        case CellKind.JSON:
            return document_texts(cells, document_text)
        case CellKind.DATE | CellKind.DATETIME:
            return date_texts(column, cells)
        case CellKind.DECIMAL if pa.types.is_decimal(cells.type):
            texts = cells.cast(pa.string())
            # Of a small one Arrow writes an exponent.
            return pa.array([None if v is None else format(v, "f") for v in cells.to_pylist()]) if _any_exponent(texts) else texts
        case CellKind.NUMBER if column.tp != ColumnType.BIT:
            return _numbers_of(column, cells)
        case CellKind.NUMBER if pa.types.is_boolean(cells.type):
            return cells.cast(pa.uint8()).cast(kind.arrow)
        case _:
            return cells.cast(kind.arrow)


def with_equal_documents(column: ColumnInfo, cells: pa.Array) -> pa.Array:
    """Cells of an image from elsewhere, whose JSON documents may be written otherwise."""
    if kind_of(column) is not CellKind.JSON:
        return cells
    return pa.array([None if text is None else document_text(json.loads(text)) for text in cells.to_pylist()], pa.string())


def document_text(value: Any) -> str:
    """A JSON document without regard to the order of keys and to spaces; 1 is 1.0."""
    return json.dumps(_alike(value), sort_keys=True, ensure_ascii=False)


def _alike(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_alike(part) for part in value]
        case dict():
            return {key: _alike(part) for key, part in value.items()}
        case _:
            return value


def _any_exponent(texts: pa.StringArray) -> bool:
    return bool(pc.any(pc.match_substring(texts, "E")).as_py())


def _numbers_of(column: ColumnInfo, texts: pa.StringArray) -> pa.Array:
    """The numbers of ENUM and SET texts: each that occurs is looked up once."""
    found = texts.dictionary_encode()
    # An ENUM whose text is empty has the number 0, if no member is empty.
    numbers = [column.number_of(text) if text or text in column.elems else 0 for text in found.dictionary.to_pylist()]
    return pa.array(numbers, pa.uint64()).take(found.indices)


# Documents, as ``variant_values`` writes them.

_FIXED: dict[int, tuple[str, Callable[[Any], Any]]] = {INT8: ("<q", int), DOUBLE: ("<d", float)}


def document_texts(cells: pa.StructArray, text_of: Callable[[Any], str]) -> pa.StringArray:
    """A column of VARIANTs as texts. ``text_of``: the text of a document."""
    parts = (cells.field(name).to_pylist() for name in ("metadata", "value"))
    found = zip(cells.is_valid().to_pylist(), *parts, strict=True)
    return pa.array([text_of(_document(metadata, value)) if there else None for there, metadata, value in found], pa.string())


def _document(metadata: bytes, value: bytes) -> Any:
    """What a VARIANT says."""
    width = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + width], "little")
    begin = 1 + width * (count + 2)
    bounds = [int.from_bytes(metadata[at : at + width], "little") for at in range(1 + width, begin, width)]
    names = [metadata[begin + first : begin + end].decode("utf-8", "surrogatepass") for first, end in pairwise(bounds)]
    return _value(value, 0, names)


def _value(data: bytes, at: int, names: Sequence[str]) -> Any:
    basic, header = data[at] & 3, data[at] >> 2
    if basic == 0:
        return _primitive(data, at, header)
    large = bool(header >> (4 if basic == OBJECT else 2) & 1)
    count = int.from_bytes(data[at + 1 : at + (5 if large else 2)], "little")
    at += 5 if large else 2
    width = ((header >> 2 & 3) + 1) if basic == OBJECT else 0
    ids = [int.from_bytes(data[at + n * width : at + (n + 1) * width], "little") for n in range(count)]
    at += count * width
    starts = struct.unpack_from(f"<{count + 1}I", data, at)
    parts = [_value(data, at + WIDE * (count + 1) + start, names) for start in starts[:-1]]
    return {names[i]: part for i, part in zip(ids, parts, strict=True)} if basic == OBJECT else parts


def _primitive(data: bytes, at: int, kind: int) -> Any:
    if kind in (0, 1, 2):
        return (None, True, False)[kind]
    if kind in _FIXED:
        form, made = _FIXED[kind]
        return made(struct.unpack_from(form, data, at + 1)[0])
    if kind == DECIMAL16:
        return int.from_bytes(data[at + 2 : at + 18], "little", signed=True)
    size = int.from_bytes(data[at + 1 : at + 5], "little")
    return data[at + 5 : at + 5 + size].decode("utf-8", "replace")
