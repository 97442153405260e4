"""Databases that are a Drainer's own, at either end. Pure.

Promises: nothing in them is ever replicated, neither rows nor DDLs. Checkpoint, markers and marks describe one target only, and
in a ring each of them would come back as a change.
"""

MARK_SCHEMA = "retl"
"""Database of the mark table (drainer.md 7)."""
MARK_TABLE = "_drainer_repl_mark"
_USUAL = "tidb_binlog"


def own_schemas(checkpoint_schema: str = _USUAL) -> frozenset[str]:
    """In lower case: the mark table's, that of every Drainer's checkpoint by default, and ``checkpoint_schema``, that of this one."""
    return frozenset({MARK_SCHEMA, _USUAL, checkpoint_schema.lower()})
