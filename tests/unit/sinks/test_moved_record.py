"""Which record counts where the checkpoint is asked for in another place than before: never the older one, and never silently."""

import pytest

from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.moved_record import RecordMove, TwoRecords, into_target, out_of_target

NAMES = "db.checkpoint", "db.spark_checkpoint"
PATH = "/data/savepoint"


def row(commit_ts: int, **more: object) -> Checkpoint:
    return Checkpoint(commit_ts, True, 9, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "own", "savepoint", "record", "removed"),
    [
        (None, None, 0, None, False),
        (row(200), None, 0, None, False),
        (row(200), None, 150, None, False),
        (row(200), None, 200, None, False),
        (None, row(400, elsewhere=(390,), beside=0), 390, row(400), True),
        (row(200), row(400, elsewhere=(390, 410), beside=200), 410, row(400), True),
        # set back by hand since it was moved: the row that was left behind is no news
        (row(100), row(60, elsewhere=(60,), beside=100), 60, row(60), True),
        (row(500), row(400, elsewhere=(400,)), 400, None, True),
        (row(400), row(400, elsewhere=(400,)), 400, None, True),
    ],
)
def test_into_the_target(
    asked: Checkpoint | None, own: Checkpoint | None, savepoint: int, record: Checkpoint | None, removed: bool
) -> None:
    move = into_target(TwoRecords(asked, own), savepoint, NAMES, PATH)
    assert (move.record, bool(move.words), move.beside) == (record, removed, None)


@pytest.mark.parametrize(("asked", "own"), [(None, None), (row(200), None), (row(200), row(300, elsewhere=(300,)))])
def test_a_newer_savepoint_is_never_passed_over(asked: Checkpoint | None, own: Checkpoint | None) -> None:
    with pytest.raises(
        ConfigError,
        match=r'/data/savepoint is a checkpoint at 400 .*db.checkpoint .*Which of the two counts.*type = "file".*remove the file',
    ):
        into_target(TwoRecords(asked, own), 400, NAMES, PATH)


@pytest.mark.parametrize(
    ("ours", "other", "real", "move"),
    [
        (None, None, row(50), RecordMove()),
        (row(300), None, row(300), RecordMove()),
        # never asked for elsewhere before: what the target records counts, unless the file is newer still (which ``choose`` sees)
        (None, row(200), None, RecordMove(row(200, beside=200), 200)),
        (None, row(200), row(50), RecordMove(row(200, elsewhere=(50,), beside=200), 200)),
        (None, row(200), row(250), RecordMove(row(200, beside=200), 200)),
        # left behind by the first change
        (row(300, beside=200), row(200), row(300), RecordMove(beside=200)),
        (row(50, beside=200), row(200), row(50), RecordMove(beside=200)),
        # a life with the other setting went on in between
        (row(300, beside=200), row(500), row(300), RecordMove(row(500, elsewhere=(300,), beside=500), 500)),
        (row(300, beside=0), row(500), row(300), RecordMove(row(500, elsewhere=(300,), beside=500), 500)),
        (row(300, beside=200), row(250), row(300), RecordMove(beside=250)),
        (row(300), row(200), row(300), RecordMove(beside=200)),
    ],
)
def test_out_of_the_target(ours: Checkpoint | None, other: Checkpoint | None, real: Checkpoint | None, move: RecordMove) -> None:
    found = out_of_target(TwoRecords(ours, other), real, NAMES)
    assert (found.record, found.beside, bool(found.words)) == (move.record, move.beside, move.record is not None)
    if real is not None and real.commit_ts == 50 and found.record is not None:
        assert "50" in found.words and "200" in found.words
