"""The keys of rows that have changed. Pure."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_tidb_binlog.sinks.verify.repair import Row
from pyspark_tidb_binlog.sinks.verify.table_pair import TablePair

Image = Mapping[str, Any]
"""A row before or after a change: values of Python by column."""


def keys_of(pair: TablePair, images: Iterable[Image]) -> set[Row]:
    """The keys that the rows had, as ``canonical.read_as`` has their values. A row from before the key's columns were there has none."""
    names = [pair.columns[place].upstream.name.lower() for place in pair.key]
    lowered = ({name.lower(): value for name, value in image.items()} for image in images)
    return {tuple(_text(image[name]) for name in names) for image in lowered if all(image.get(name) is not None for name in names)}


def _text(value: object) -> bytes:
    match value:
        case bytes() | bytearray():
            return bytes(value)
        case datetime.datetime():
            return value.replace(tzinfo=None).isoformat(" ").encode()  # it is in UTC, as the sessions are
        case _:
            return str(value).encode()
