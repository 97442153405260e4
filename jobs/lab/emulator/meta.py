"""TiDB's schema in the embedded upstream's MVCC store: the keys that a DDL writes, in the transaction of its binlog or of its schema state.

Promises: pure; keys as ``schemas.meta_keys``, values as TiDB's JSON. A change writes the schema version, its diff, and the databases and tables that it
makes, changes or removes (None).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Json
from pyspark_tidb_binlog.schemas import meta_keys


@dataclass(frozen=True, slots=True)
class MetaChange:
    """One schema version."""

    version: int
    type: int
    """Of the job."""
    schema_id: int
    table_id: int = 0
    old_table_id: int = 0
    old_schema_id: int = 0
    databases: Mapping[int, Json | None] = field(default_factory=dict)
    """By id."""
    tables: Mapping[tuple[int, int], Json | None] = field(default_factory=dict)
    """By id of database and table."""

    def writes(self) -> dict[bytes, bytes | None]:
        """The keys and what they become."""
        diff = {
            "version": self.version,
            "type": self.type,
            "schema_id": self.schema_id,
            "table_id": self.table_id,
            "old_table_id": self.old_table_id,
            "old_schema_id": self.old_schema_id,
            "regenerate_schema_map": False,
            "affected_options": None,
        }
        written: dict[bytes, bytes | None] = {
            meta_keys.schema_version_key(): b"%d" % self.version,
            meta_keys.schema_diff_key(self.version): _text(diff),
        }
        written |= {meta_keys.database_key(i): _text(info) for i, info in self.databases.items()}
        return written | {meta_keys.table_key(*place): _text(info) for place, info in self.tables.items()}


def _text(value: Json | None) -> bytes | None:
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()
