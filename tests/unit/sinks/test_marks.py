"""The ids of marks: never two alike, and few."""

import os

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.sinks.mysql import marks
from pyspark_tidb_binlog.sinks.mysql.marks import CREATE, SMALLEST_ID, MarkIds


def test_the_texts_are_the_real_drainers() -> None:
    """drainer.md 7, to the byte."""
    assert CREATE == (
        "create database IF NOT EXISTS retl;",
        "CREATE TABLE If Not Exists retl._drainer_repl_mark (id bigint not null,channel_id bigint not null DEFAULT 0, val bigint DEFAULT 0, "
        "channel_info varchar(64) ,PRIMARY KEY (id,channel_id));",
    )


def test_ids_are_given_again_only_after_a_clean_end() -> None:
    ids = MarkIds()
    first, second = ids.take(), ids.take()
    ids.give_back(first)
    assert ids.take() == first
    assert len({first, second, ids.take()}) == 3


def test_processes_have_other_ids_and_all_fit_the_column() -> None:
    several = [MarkIds() for _ in range(1000)]
    taken = [i.take() for i in several] + [i.take() for i in several]
    assert len(set(taken)) == 2000
    assert all(SMALLEST_ID <= i < 1 << 63 for i in taken)


def test_a_forked_process_draws_its_own() -> None:
    mine = marks._ids.take()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, str(marks._ids.take()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = int(os.read(reads, 100))
    os.close(reads)
    os.close(writes)
    assert abs(theirs - mine) > 1 << 20


def test_a_channel_that_no_column_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="syncer.channel-id"):
        ApplyConfig(channel_id=1 << 63)
