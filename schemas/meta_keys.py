"""Keys of TiDB's own schema in TiKV: databases, tables, the schema version and what each version changed.

    m | comparable bytes of the key | 8 bytes, big-endian: h (an entry of a hash) or s (a string) | for h: comparable bytes of the entry's name

Promises: pure. The keys are raw, as ``/mvcc/hex`` takes them (rows.md 9.1). Source: TiDB ``meta/meta.go``, ``structure/type.go``,
``util/codec/bytes.go``.
"""

MAX_GLOBAL_ID = (1 << 48) - 1
"""Ids above it are those of tables and databases that exist in memory only (``autoid.MaxGlobalID``)."""

_GROUP = 8
_STRING, _HASH = ord("s").to_bytes(8, "big"), ord("h").to_bytes(8, "big")


def database_key(schema_id: int) -> bytes:
    """Of a database: its value is the JSON of ``DBInfo``."""
    return _key("DBs") + _HASH + comparable(f"DB:{schema_id}".encode())


def table_key(schema_id: int, table_id: int) -> bytes:
    """Of a table, view or sequence in a database: its value is the JSON of ``TableInfo``."""
    return _key(f"DB:{schema_id}") + _HASH + comparable(f"Table:{table_id}".encode())


def schema_version_key() -> bytes:
    """Of the schema version: its value is a decimal number."""
    return _key("SchemaVersionKey") + _STRING


def schema_diff_key(version: int) -> bytes:
    """Of what a schema version changed: its value is the JSON of ``SchemaDiff``. Written once, with the change, and never removed."""
    return _key(f"Diff:{version}") + _STRING


def comparable(data: bytes) -> bytes:
    """Bytes in groups of eight, padded with zeros; after each group 255 minus the number of padding bytes; the last group is not full."""
    padding = _GROUP - len(data) % _GROUP
    padded = data + bytes(padding)
    ends = [255] * (len(padded) // _GROUP - 1) + [255 - padding]
    return b"".join(padded[i * _GROUP : (i + 1) * _GROUP] + bytes((end,)) for i, end in enumerate(ends))


def _key(name: str) -> bytes:
    return b"m" + comparable(name.encode())
