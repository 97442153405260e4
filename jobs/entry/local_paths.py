"""Places of a Drainer's own files. Tells Spark paths on this machine (``var/spark``, ``file:///…``) from others (``s3a://…``, ``hdfs://…``). Pure."""

import re
from pathlib import Path

from pyspark_tidb_binlog.schemas.history_cache import HistoryCache

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(//(?=/))?")


def local_path(uri: str) -> Path | None:
    """``uri`` as a local path, if it is one: a plain path, ``file:/…`` or ``file:///…``; else None."""
    found = _SCHEME.match(uri)
    if found is None:
        return Path(uri)
    return Path(uri[found.end() :]) if found["scheme"].lower() == "file" else None


def history_cache(checkpoint_dir: str, cluster_id: int, kind: str = "history") -> HistoryCache | None:
    """The cache next to the checkpoint directory, if that is local; ``kind``: of the history, or of the snapshot that it begins with."""
    local = local_path(checkpoint_dir)
    return HistoryCache(local.with_name(f"{local.name}.{kind}"), cluster_id) if local is not None else None
