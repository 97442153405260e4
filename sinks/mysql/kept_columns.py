"""What rows held in columns that only the target has, between the two phases of a span in parts: ``spark_kept`` in the checkpoint schema. [db]

Promises: written in the transaction that takes the rows away, read in the one that writes them under their new keys, deleted with the span's markers. What
an earlier span, or one from before the checkpoint was set back, has left is replaced or deleted. The table is made where it is needed first.

    literals    {"form": 2, "literals": {"NAME": "LITERAL", ...}}    the columns by name
                LITERAL,LITERAL,...                                  from a version that stored no names: read if the table has as many columns
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import OtherColumn
from pyspark_tidb_binlog.sinks.mysql.moves import HeldValues, RowMove
from pyspark_tidb_binlog.sinks.mysql.own_tables import require_sound
from pyspark_tidb_binlog.sinks.mysql.progress import Marker
from pyspark_tidb_binlog.sinks.mysql.session import Session

_FORM = 2


def ensure_kept_table(session: Session, schema: str) -> None:
    """Create the table if missing. DDL: must not be called inside a transaction."""
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(schema)} (cluster_id bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, part int NOT NULL, "
        "row_hash binary(16) NOT NULL, literals longtext CHARACTER SET ascii, PRIMARY KEY (cluster_id, to_ts, part, row_hash)) ENGINE=InnoDB"
    )
    require_sound(session, schema, "spark_kept")


def save_kept(session: Session, marker: Marker, kept: Mapping[bytes, HeldValues | None], schema: str) -> None:
    """Record what the rows of one part held, by row; None for a row that was not there."""
    for row, held in kept.items():
        values = [marker.cluster_id, marker.upto_ts, marker.part, row.hex(), None if held is None else kept_text(held)]
        session.execute(f"REPLACE INTO {_table(schema)} VALUES (%s, %s, %s, UNHEX(%s), %s)", values)


def load_kept(session: Session, marker: Marker, moves: Iterable[RowMove], schema: str) -> dict[bytes, HeldValues | None]:
    """What was recorded for the rows of a part. A row without an entry: nothing was, or nobody knows which columns it is from."""
    rows = session.query(
        f"SELECT HEX(row_hash), literals FROM {_table(schema)} WHERE cluster_id = %s AND to_ts = %s AND part = %s",
        [marker.cluster_id, marker.upto_ts, marker.part],
    )
    texts = {bytes.fromhex(row): None if text is None else str(text) for row, text in rows}
    found: dict[bytes, HeldValues | None] = {}
    for move in moves:
        if move.row in texts:
            text = texts[move.row]
            held = None if text is None else held_values(text, move.others)
            if held is not None or text is None:
                found[move.row] = held
    return found


def kept_text(held: HeldValues) -> str:
    """As it is stored, in ASCII."""
    return json.dumps({"form": _FORM, "literals": dict(held.literals)})


def held_values(text: str, others: Sequence[OtherColumn]) -> HeldValues | None:
    """What ``text`` stands for; None if it has no names and another number of columns than ``others``, those that the table has.

    Raises:
        ApplyError: a later version has written it.
    """
    if not text.startswith("{"):
        return HeldValues.of(others, text) if text.count(",") + 1 == len(others) else None
    stored = json.loads(text)
    if stored["form"] != _FORM:
        raise ApplyError(
            f"spark_kept has rows of form {stored['form']}, and this version reads form {_FORM}: start the version that wrote them"
        )
    return HeldValues(stored["literals"])


def forget_kept(session: Session, cluster_id: int, upto_ts: int, schema: str) -> None:
    """Delete what was recorded for spans up to ``upto_ts``; in the transaction that finishes the span."""
    session.execute(f"DELETE FROM {_table(schema)} WHERE cluster_id = %s AND to_ts <= %s", [cluster_id, upto_ts])


def _table(schema: str) -> str:
    return f"{quote_name(schema)}.spark_kept"
