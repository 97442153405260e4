"""A target that loses a table of a first load, with its record, before the stream's checkpoint is made."""

from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.conf.model import TableName
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import Bootstrap
from tests.integration.test_bootstrap import ALL, MARKS, SMALL, run, same, source, state, stream
from tests.support.bootstrapped_stream import BootstrappedStream
from tests.support.lost_answers import losing
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.mysql]
__all__ = ["run", "source", "stream"]


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def in_part(run: BootstrappedStream, monkeypatch: pytest.MonkeyPatch) -> Iterator[BootstrappedStream]:
    """An earlier life has loaded everything but shop.log, which it ignored, and was killed before it made the checkpoint."""

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        losing(patch, Bootstrap, "run", die)
        with pytest.raises(Killed):
            run.begin(ALL, ignore_table=(TableName("shop", "log"),))
    yield run


@pytest.mark.parametrize("there", [False, True])
def test_a_table_that_was_let_in_by_a_later_life(
    there: bool, in_part: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``there``: somebody has made it at the target, empty."""
    if there:
        run_sql(mariadb, "CREATE TABLE shop.log (a INT, b VARCHAR(10))")

    def lose() -> None:
        run_sql(mariadb, "DELETE FROM shop.log" if there else "DROP TABLE shop.log")
        run_sql(mariadb, f"DELETE FROM {MARKS}.spark_bootstrap WHERE table_name = 'log'")

    with monkeypatch.context() as patch:
        losing(patch, Bootstrap, "run", lose)
        in_part.begin(ignore_table=())
    assert state(mariadb) == "joined"
    same(in_part, source, mariadb, *SMALL)
