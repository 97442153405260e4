"""Faults on demand: Commits lost and late, duplicates, each as often as asked for and the same for the same seed."""

import time

import pytest

from pyspark_tidb_binlog.binlog_source.emulator.commit_faults import NO_FAULTS, CommitFate, Faults, FaultyWriter, commit_fate
from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.binlog_source.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable


class Taken:
    """A Pump client that keeps what it is told."""

    cluster_id = 7

    def __init__(self):
        self.told = []

    def prewrite(self, start_ts, payload, sent):
        sent("a")
        self.told.append(("prewrite", start_ts))

    def outcome(self, start_ts, payload):
        self.told.append(("outcome", start_ts))

    def duplicate(self, start_ts, payload):
        self.told.append(("duplicate", start_ts))
        return True

    def forget(self, start_ts):
        self.told.append(("forget", start_ts))

    def flush(self, timeout=30.0):
        self.told.append(("flush", 0))

    def close(self):
        self.told.append(("close", 0))


def run(faults, count=400):
    client = Taken()
    writer = FaultyWriter(client, faults)
    for start_ts in range(count):
        writer.prewrite(start_ts, b"p")
        writer.commit(start_ts, b"c")
    return writer, client.told


def test_without_faults_all_passes():
    _, told = run(NO_FAULTS, 3)
    assert told == [(what, start_ts) for start_ts in range(3) for what in ("prewrite", "outcome")]


def test_shares_are_about_what_was_asked_for_and_seeded():
    faults = Faults(seed=3, lost_commits=0.25, duplicates=0.5)
    _, told = run(faults)
    count = {what: sum(word == what for word, _ in told) for what in ("prewrite", "outcome", "forget", "duplicate")}
    assert count["prewrite"] == 400 and 70 < count["forget"] < 130 and 160 < count["duplicate"] < 240
    assert count["outcome"] + count["forget"] == 400
    assert run(faults)[1] == told != run(Faults(4, 0.25, duplicates=0.5))[1]


@pytest.mark.parametrize(
    "drawn, fate", [(0, CommitFate.LOST), (0.19, CommitFate.LOST), (0.2, CommitFate.LATE), (0.49, CommitFate.LATE), (0.5, CommitFate.SENT)]
)
def test_a_commit_has_one_fate(drawn, fate):
    assert commit_fate(Faults(lost_commits=0.2, late_commits=0.3), drawn) is fate


def test_late_commits_are_overtaken_and_awaited():
    client = Taken()
    writer = FaultyWriter(client, Faults(late_commits=1, late_by=0.02))
    begun = time.monotonic()
    writer.commit(1, b"c")
    writer.roll_back(2, b"r")
    assert client.told == [("outcome", 2)]
    writer.flush()
    assert client.told[1:] == [("outcome", 1), ("flush", 0)] and time.monotonic() - begun >= 0.02
    writer.close()


def test_late_commits_that_are_not_due_are_lost_at_the_end():
    client = Taken()
    writer = FaultyWriter(client, Faults(late_commits=1, late_by=60))
    writer.commit(1, b"c")
    with pytest.raises(PumpUnavailable, match="1 late Commits are not due"):
        writer.flush(0.01)
    writer.close()
    assert client.told == [("close", 0)]


def test_the_hook_is_called_with_every_prewrite():
    heard = []
    run(Faults(on_prewrite=heard.append), 3)
    assert heard == ["a"] * 3


@pytest.mark.parametrize(
    "wrong", [{"lost_commits": 1.1}, {"duplicates": -0.1}, {"late_by": -1}, {"lost_commits": 0.6, "late_commits": 0.6}]
)
def test_faults_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)


def test_an_upstream_writes_through_its_faults():
    client = Taken()
    with Upstream(client, faults=Faults(lost_commits=1, duplicates=1)) as upstream:
        upstream.ddl.create_database("d")
        upstream.ddl.create_table("d", Table("t", (Column("id", "bigint"),), ("id",)))
        txn = upstream.begin()
        txn.insert("d.t", {"id": 1})
        assert txn.commit() > txn.start_ts
        lost = upstream.begin()
        lost.insert("d.t", {"id": 2})
        lost.prewrite()
        lost.rollback()
    assert set(upstream.rows("d.t")) == {1}, "lost for the Pumps, not for the upstream"
    assert [what for what, _ in client.told] == ["prewrite", "duplicate", "forget"] * 3 + ["prewrite", "duplicate", "outcome", "close"]
