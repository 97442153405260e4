"""Whether the DDL generator does what the record of ``tests/ddl_record`` says: fates, definitions, rows, losses."""

from collections.abc import Iterable
from itertools import islice

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.ddl_record.cases import SETS, Case, cases_of
from tests.ddl_record.record import Site, differences, file_of, lines_of, sites


def assert_as_recorded(name: str, cases: Iterable[Case], places: list[Site]) -> None:
    record = file_of(name, places[0])
    if not record.exists():
        pytest.skip(f"there is no {record}: python -m tests.ddl_record.record makes one")
    assert list(differences(record, lines_of(cases, places))) == []


def test_some_random_ddls_do_what_is_recorded(mariadb: PrivateMariaDB) -> None:
    with sites(("plain",), mariadb) as places:
        assert_as_recorded("random", islice(cases_of("random"), 8), places)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_ddl_does_what_is_recorded(name: str) -> None:
    with sites() as places:
        assert_as_recorded(name, cases_of(name), places)
