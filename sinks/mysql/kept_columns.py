"""Values of columns that only the target has, kept between the two phases of a span in parts: ``spark_kept`` in the checkpoint schema. [db]

Promises: they are written in the transaction that takes the rows away, read in the transaction that writes the rows under their new keys, and deleted with the
span's markers. Values of an earlier span, or of before the checkpoint was set back, are replaced or deleted. The table is created at its first use.

    literals    {"NAME": "LITERAL", ...}    in ASCII
"""

import json
from collections.abc import Mapping

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.mysql.moves import HeldValues
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.progress import Marker
from pyspark_tidb_binlog.sinks.mysql.session import Session


def ensure_kept_table(session: Session, schema: str) -> None:
    """Create the table if missing. DDL: must not be called inside a transaction."""
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(schema)} (cluster_id bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, part int NOT NULL, "
        "row_hash binary(16) NOT NULL, literals longtext CHARACTER SET ascii, PRIMARY KEY (cluster_id, to_ts, part, row_hash)) "
        f"{made_with('spark_kept')}"
    )
    require_sound(session, schema, "spark_kept")


def save_kept(session: Session, marker: Marker, kept: Mapping[bytes, HeldValues | None], schema: str) -> None:
    """Record what the rows of one part held, by row; None for a row that was not there."""
    for row, held in kept.items():
        values = [marker.cluster_id, marker.upto_ts, marker.part, row.hex(), None if held is None else json.dumps(dict(held.literals))]
        session.execute(f"REPLACE INTO {_table(schema)} VALUES (%s, %s, %s, UNHEX(%s), %s)", values)


def load_kept(session: Session, marker: Marker, schema: str) -> dict[bytes, HeldValues | None]:
    """What was recorded for the rows of a part."""
    rows = session.query(
        f"SELECT HEX(row_hash), literals FROM {_table(schema)} WHERE cluster_id = %s AND to_ts = %s AND part = %s",
        [marker.cluster_id, marker.upto_ts, marker.part],
    )
    return {bytes.fromhex(row): None if text is None else HeldValues(json.loads(text)) for row, text in rows}


def forget_kept(session: Session, cluster_id: int, upto_ts: int, schema: str) -> None:
    """Delete what was recorded for spans up to ``upto_ts``; in the transaction that finishes the span."""
    session.execute(f"DELETE FROM {_table(schema)} WHERE cluster_id = %s AND to_ts <= %s", [cluster_id, upto_ts])


def _table(schema: str) -> str:
    return f"{quote_name(schema)}.spark_kept"
