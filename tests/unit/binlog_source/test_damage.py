"""Damage in words and back, and the search for the record that a real Pump cannot read."""

import pytest

from pyspark_tidb_binlog.binlog_source.wire.damage import Damage, damage_in, first_readable

TS = 470604668048769025


@pytest.mark.parametrize("after, upto", [(TS, TS + 1), (TS, TS + 500), (TS, 0), (0, TS)])
def test_the_words_can_be_read_back(after, upto):
    damage = Damage(3, 1200, 1316, after, upto)
    assert damage_in(f"rpc error: {damage.text('p/1: x')}; more") == damage
    assert "Pump p1" in damage.text("p1") and "000003.vlog" in damage.text("p1")


def test_other_words_are_no_damage():
    assert damage_in("no available space, available: 1, StopWriteAtAvailableSpace: 2") is None


def test_whom_it_concerns():
    damage = Damage(0, 10, 20, 100, 200)
    assert damage.concerns(99, ()) and damage.concerns(199, ("0:11",))
    assert not damage.concerns(200, ()) and not damage.concerns(99, ("0:10",))
    assert Damage(0, 10, 20, 100, 0).concerns(10**18, ())


@pytest.mark.parametrize("lost", [TS + 1, TS + 2, TS + 3, TS + 1000, TS + (1 << 40) - 1, TS + (1 << 40)])
def test_the_record_that_cannot_be_read_is_found(lost):
    asked = []

    def readable(ts):
        asked.append(ts)
        return ts >= lost

    assert first_readable(TS, TS + (1 << 40), readable) == lost
    assert len(asked) < 90 and min(asked) > TS


def test_a_pump_that_gives_nothing_at_all_has_no_such_record():
    assert first_readable(TS, TS + 1000, lambda ts: False) is None
