"""JSON documents as texts that any engine reads, and as VARIANT; whole columns at a time. Pure.

    {"n": 1, "price": 1.5e0}

Promises: the same value in both forms. A number with an exponent is a DOUBLE, any other one is an integer: Spark's ``parse_json`` takes ``1.5`` for a DECIMAL,
whose text is not that of the DOUBLE. NULL is null, and JSON's null is the text ``null``.
"""

from json.encoder import encode_basestring as quoted
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.row_images import document_texts
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT, json_cells, metadata_of


def documents_as(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of documents as ``kind``, text or ``STORED_VARIANT``; cells that are neither, or of that kind, as they are."""
    if pa.types.is_struct(cells.type) == pa.types.is_struct(kind):
        return cells
    return document_texts(cells, _text) if pa.types.is_struct(cells.type) else _variants(cells)


def _text(value: Any) -> str:
    match value:
        case str():
            return quoted(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            digits = repr(value)
            return digits if "e" in digits else f"{digits}e0"
        case list():
            return f"[{', '.join(map(_text, value))}]"
        case _:
            return "{" + ", ".join(f"{quoted(key)}: {_text(part)}" for key, part in value.items()) + "}"


def _variants(texts: pa.StringArray) -> pa.StructArray:
    names: list[tuple[str, ...]] = [()] * len(texts)
    values = json_cells(texts, names)
    metadata = pa.array([metadata_of(own) for own in names], pa.binary())
    return pa.StructArray.from_arrays([metadata, values], fields=list(STORED_VARIANT), mask=texts.is_null())
