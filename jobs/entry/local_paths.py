"""Tells Spark paths on this machine (``var/spark``, ``file:///…``) from others (``s3a://…``, ``hdfs://…``). Pure."""

import re
from pathlib import Path

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(//(?=/))?")


def local_path(uri: str) -> Path | None:
    """``uri`` as a local path, if it is one: a plain path, ``file:/…`` or ``file:///…``; else None."""
    found = _SCHEME.match(uri)
    if found is None:
        return Path(uri)
    return Path(uri[found.end() :]) if found["scheme"].lower() == "file" else None
