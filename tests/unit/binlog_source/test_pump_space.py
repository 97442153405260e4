"""Free space: when binlogs are refused, and in which words."""

import contextlib

import pytest

from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.env import Space
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from tests.support.store_model import commit, prewrite, rollback


class Disk:
    """A disk of 1000 bytes with as much left as a test says."""

    def __init__(self, available):
        self.left = available

    def available(self, path):
        """See ``FileSystem``."""
        return self.left

    def capacity(self, path):
        """See ``FileSystem``."""
        return 1000


def test_at_the_limit_it_refuses_with_a_real_pumps_text(tmp_path):
    space = Space(Disk(100), tmp_path, 100)
    with pytest.raises(PumpUnavailable) as refused:
        space.require()
    assert str(refused.value) == "no available space, available: 100, StopWriteAtAvailableSpace: 100"


def test_a_full_disk_refuses_commits_too_but_not_the_probe_or_a_fake(tmp_path):
    service = PumpService(None, 7, "p", space=Space(Disk(0), tmp_path, 1))
    assert service.accept(7, [b""]) == []
    for record in (prewrite(5), commit(5, 9), rollback(5)):
        with pytest.raises(PumpUnavailable, match="no available space"):
            service.accept(7, [record.payload])
    assert service.accept(7, [fake(9).payload]) == [fake(9)]
    with pytest.raises(PumpUnavailable, match="no available space"):
        service.accept(7, [fake(9).payload, commit(5, 9).payload])


@pytest.mark.parametrize(("left", "limit", "refused"), [(101, 100, False), (100, 100, True), (0, 0, False), (0, 1, True)])
def test_one_byte_decides_and_a_limit_of_zero_never_refuses(tmp_path, left, limit, refused):
    space = Space(Disk(left), tmp_path, limit)
    with pytest.raises(PumpUnavailable) if refused else contextlib.nullcontext():
        space.require()


def test_it_knows_what_the_last_look_saw(tmp_path):
    disk = Disk(500)
    space = Space(disk, tmp_path, 100)
    disk.left = 99
    space.require()
    space.look()
    assert (space.available, space.capacity) == (99, 1000)
    with pytest.raises(PumpUnavailable, match="available: 99,"):
        space.require()
    disk.left = 200
    space.look()
    space.require()
