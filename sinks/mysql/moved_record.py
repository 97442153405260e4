"""Decides which record counts where ``syncer.to.checkpoint`` names another place than in the life before: the newest. [db]

Exactly once rests on one row in the target: in the real Drainer's table, or, while the real checkpoint is ``elsewhere``, in our own. If the
setting changes, the other table's row stays behind, and so does ``savepoint`` in ``data-dir``. If a start reads the older record, rows are applied
twice. If it reads none, rows are lost.

    asked for       found beside it                            then
    the target      our own row, newer or alone                it becomes the real one's; our own is removed, in the same transaction
    the target      our own row, older                         removed
    the target      a savepoint that is newer than both        refused: a Drainer continued from it
    elsewhere       a real row that ours does not know, newer  it becomes ours; the savepoint counts only if it is newer still
    elsewhere       a real row that ours knows, or an older    left as it is

Promises: the stream never begins from the older of two records, unless somebody has set back the record that counts. A record moves in one
transaction that checks the lease, and the log says so. Our own row says which real row it knows (``Checkpoint.beside``).
"""

from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import CHECKPOINT_TABLE, Checkpoint, TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import OURS, InFile, is_elsewhere, is_in_target, table_in_target
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import kinds_of
from pyspark_tidb_binlog.sinks.translate.local_record import STAND


@dataclass(frozen=True, slots=True)
class TwoRecords:
    """What a target holds of one cluster in its two tables."""

    asked: Checkpoint | None
    """In the table that the settings ask for."""
    other: Checkpoint | None


@dataclass(frozen=True, slots=True)
class RecordMove:
    """What is done before anything else is read."""

    record: Checkpoint | None = None
    """Written into the table that the settings name; None: the table stays as it is."""
    beside: int | None = None
    """commit_ts of the real row that is beside ours from now on."""
    words: str = ""
    """For the log."""


def into_target(rows: TwoRecords, savepoint: int, names: tuple[str, str], path: str) -> RecordMove:
    """Move the record into the target's real table, which the settings ask for; ``other``: our own table. Pure.

    Args:
        rows: both.
        savepoint: commit_ts of a file in ``data-dir`` that is a checkpoint of this target, as far as is known; 0: there is none.
        names: of the two tables, for messages.
        path: of the savepoint.

    Raises:
        ConfigError: the savepoint is newer than both.
    """
    # A row that ours knows was left behind: ours may have been set back since.
    left = rows.asked is not None and rows.other is not None and rows.asked.commit_ts == rows.other.beside
    asked = None if left else rows.asked
    newest = max((row.commit_ts for row in (asked, rows.other) if row is not None), default=0)
    named = rows.other.elsewhere if rows.other is not None else ()
    if savepoint > newest and savepoint not in named:
        where = f"{names[0]} says {newest} ({as_time(newest)})" if newest else f"{names[0]} has no row of this cluster"
        raise ConfigError(
            f"{path} is a checkpoint at {savepoint} ({as_time(savepoint)}), but {where}. Which of the two counts? If a Drainer wrote the file last, set "
            'syncer.to.checkpoint.type = "file". If the target\'s own record counts, or the file belongs to another target, remove the file'
        )
    if rows.other is None:
        return RecordMove()
    if asked is not None and asked.commit_ts >= rows.other.commit_ts:
        return RecordMove(words=f"{names[1]} is older than {names[0]}, which is at {asked.commit_ts}, and is removed")
    was = f", which was at {rows.asked.commit_ts}" if rows.asked is not None else ""
    return RecordMove(
        replace(rows.other, elsewhere=(), beside=None),
        words=f"the record moves: {names[1]} is at {rows.other.commit_ts} and becomes the record in {names[0]}{was}",
    )


def out_of_target(rows: TwoRecords, real: Checkpoint | None, names: tuple[str, str]) -> RecordMove:
    """The record is asked for in our own table, ``real`` trails it; ``other``: that of the target's real table. Pure."""
    ours, other = rows.asked, rows.other
    if other is None or not other.commit_ts:
        return RecordMove()
    beside = other.commit_ts
    if ours is not None and (beside == ours.beside or beside <= ours.commit_ts):
        return RecordMove(beside=beside)
    trails = (real.commit_ts,) if real is not None and real.commit_ts < beside else ()
    was = f", which was at {ours.commit_ts}" if ours is not None else ""
    old = f"; the older checkpoint {real.commit_ts} is written again" if trails and real is not None else ""
    return RecordMove(
        replace(other, elsewhere=trails, beside=beside, written_for=""),
        beside,
        f"the record moves: {names[1]} is at {beside} and becomes the record in {names[0]}{was}{old}",
    )


def move_of(session: Session, config: DrainerConfig, cluster_id: int, real: Checkpoint | None) -> RecordMove:
    """What to do at this target. ``real``: the checkpoint elsewhere, as it was read.

    Raises:
        ConfigError: an operator must choose.
    """
    table, other, apart = table_in_target(config), _other_table(config), is_elsewhere(config)
    schema = config.apply.checkpoint_schema
    rows = TwoRecords(_row(session, cluster_id, schema, table), _row(session, cluster_id, schema, other) if other else None)
    names = f"{schema}.{table}", f"{schema}.{other}"
    if apart:
        return out_of_target(rows, real, names)
    savepoint, path = _savepoint(config)
    begins = rows.asked is None and rows.other is None and config.source.starting_commit_ts >= 0
    return into_target(rows, 0 if begins else savepoint, names, path)


def carry_out(session: Session, move: RecordMove, config: DrainerConfig, held: Lease) -> None:
    """Carry out the move in the open transaction."""
    table = table_in_target(config)
    if move.record is not None:
        TargetCheckpoint(held.cluster_id, held.schema, table).write(session, move.record)
    if move.words and table != OURS:
        TargetCheckpoint(held.cluster_id, held.schema, OURS).delete(session)


def _other_table(config: DrainerConfig) -> str:
    """The table in the target that another setting would have made the record; empty: the real checkpoint itself is there."""
    if not is_elsewhere(config):
        return OURS
    return "" if is_in_target(config) else config.checkpoint.table or CHECKPOINT_TABLE


def _row(session: Session, cluster_id: int, schema: str, table: str) -> Checkpoint | None:
    return TargetCheckpoint(cluster_id, schema, table).load(session) if kinds_of(session, schema, table) else None


def _savepoint(config: DrainerConfig) -> tuple[int, str]:
    """The commit_ts of ``savepoint``, and its path; 0: the file does not exist, is no savepoint, or belongs to files or a topic."""
    file = InFile(Path(config.data_dir))
    try:
        found = None if Path(config.data_dir, STAND).exists() else file.read()
    except (ApplyError, OSError):
        found = None
    return (found.commit_ts if found is not None else 0), file.where
