"""The index says other than the log: it is behind, lost, from before, ahead, or garbage. The log holds the truth, and the index is made to fit."""

import contextlib
import os
import shutil
import threading
from unittest import mock

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage import store as store_module
from pyspark_tidb_binlog.binlog_source.pump.storage.index import KeyIndex
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store
from tests.support.eventually import eventually
from tests.support.store_script import LATER, SLACK, Run, check, comes_back, kept_of, script

STEPS = script(13)
WRITES = [step for step in STEPS if not isinstance(step, int)]


class DyingIndex(KeyIndex):
    """Takes ``lives`` batches, then nothing any more."""

    lives = 0

    def apply(self, entries, checkpoints, head):
        """See ``KeyIndex``."""
        if not self.lives:
            raise OSError("the index takes nothing any more")
        self.lives -= 1
        super().apply(entries, checkpoints, head)


def test_death_between_log_and_index_after_every_batch(tmp_path):
    for lives in range(len(WRITES) + 1):
        directory = tmp_path / str(lives)
        run = Run()
        store = Store(directory, LATER, open_index=DyingIndex)
        store._index.lives = lives
        run.on(store, WRITES)
        store.close()
        assert run.durable == run.submitted
        comes_back(directory, run)


def test_an_index_that_fails_for_a_while_is_tried_until_it_works(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_INDEX_RETRY", 0.001)
    failures = [OSError("no space"), OSError("no space")]

    class Failing(KeyIndex):
        """Fails as often as ``failures`` says."""

        def apply(self, entries, checkpoints, head):
            """See ``KeyIndex``."""
            if failures:
                raise failures.pop()
            super().apply(entries, checkpoints, head)

    run = Run()
    with contextlib.closing(Store(tmp_path, LATER, open_index=Failing)) as store:
        run.on(store, WRITES)
        check(store, run.submitted)
        assert store.index_errors == 2


def test_a_store_closes_although_its_index_fails_for_ever(tmp_path):
    store = Store(tmp_path, LATER, open_index=DyingIndex)
    Run().on(store, WRITES[:3])
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_a_batch_that_failed_at_the_close_is_not_jumped_over(tmp_path):
    """The index must not say that it knows the log up to where a later batch ended."""
    begun, closing = threading.Event(), threading.Event()

    class FailsOnce(KeyIndex):
        """The first batch fails once the store closes; the next ones would work."""

        def apply(self, entries, checkpoints, head):
            """See ``KeyIndex``."""
            if not begun.is_set():
                begun.set()
                assert closing.wait(10)
                raise OSError("no space")
            super().apply(entries, checkpoints, head)

    run = Run()
    store = Store(tmp_path, LATER, open_index=FailsOnce)
    run.on(store, WRITES[:1])
    assert begun.wait(10)
    run.on(store, WRITES[1:])
    closer = threading.Thread(target=store.close)
    closer.start()
    eventually(store._closing.is_set, pause=0.001)
    closing.set()
    closer.join()
    comes_back(tmp_path, run)


def test_a_lost_index_is_made_again(tmp_path):
    run = filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    comes_back(tmp_path, run, remembers=False)


def test_an_index_from_before_each_group(tmp_path, caplog):
    """Copied back when the log has gone on."""
    made, run = tmp_path / "made", Run()
    with contextlib.closing(Store(made, LATER)) as store:
        for number, group in enumerate(WRITES):
            shutil.copytree(made / "index", tmp_path / str(number))
            run.on(store, [group])
            store.catch_up()
    for number in range(len(WRITES)):
        shutil.rmtree(made / "index")
        shutil.copytree(tmp_path / str(number), made / "index")
        directory = tmp_path / f"again {number}"
        shutil.copytree(made, directory)
        comes_back(directory, run)
    assert "rebuil" not in caplog.text, "it only goes on from where it was"


def test_an_index_from_before_the_collection(tmp_path, caplog):
    """It knows positions that are gone, and not that they are: it is made again."""
    run = filled(tmp_path, collects=False)
    shutil.copytree(tmp_path / "index", tmp_path / "before")
    with contextlib.closing(Store(tmp_path, LATER)) as store:
        run.on(store, [max(record.ts for record in run.submitted) - 2 * SLACK])
        assert store.beginning.file_id > 1
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "before").rename(tmp_path / "index")
    comes_back(tmp_path, run, remembers=False)
    assert "the Pump rebuilds the index" in caplog.text and "its oldest, as collected" in caplog.text


@pytest.mark.parametrize("cut", ["files", "bytes"])
def test_an_index_ahead_of_a_log_that_was_cut(tmp_path, cut, caplog):
    made = tmp_path / "made"
    run = filled(made)
    files = sorted((made / "value").iterdir())
    newest = files[-1].stat().st_size
    for number in range(1, len(files)) if cut == "files" else range(1, newest, 7):
        directory = tmp_path / str(number)
        shutil.copytree(made, directory)
        if cut == "files":
            for file in files[-number:]:
                (directory / "value" / file.name).unlink()
        else:
            os.truncate(directory / "value" / files[-1].name, newest - number)
        caplog.clear()
        with contextlib.closing(Store(directory, LATER)) as store:
            assert "the Pump rebuilds the index" in caplog.text
            assert [damage.end - damage.begin for damage in store.damages()] == [0], "Drainers are told what is gone"
            left = Run(run.submitted, [], run.collected)
            with mock.patch.object(Store, "damages", lambda store: []):
                records = kept_of(store, left)
                check(store, records)
        left.durable = records
        with mock.patch.object(Store, "damages", lambda store: []):
            comes_back(directory, left)
        shutil.rmtree(directory)


@pytest.mark.parametrize("harm", ["garbage", "half", "empty", "gone"])
def test_garbage_in_the_index_directory(tmp_path, harm, caplog):
    """Every file of it is harmed in turn. What cannot be opened is told and made again; the rest is as it was."""
    made = tmp_path / "made"
    run = filled(made, collects=False)
    told = 0
    for file in sorted((made / "index").iterdir()):
        directory = tmp_path / file.name
        shutil.copytree(made, directory)
        harmed = directory / "index" / file.name
        match harm:
            case "garbage":
                harmed.write_bytes(os.urandom(max(100, file.stat().st_size)))
            case "half":
                os.truncate(harmed, file.stat().st_size // 2)
            case "empty":
                os.truncate(harmed, 0)
            case "gone":
                harmed.unlink()
        caplog.clear()
        comes_back(directory, run)
        told += "rebuilt from the value log" in caplog.text
    assert told >= 2


@pytest.mark.parametrize("flipped", range(0, 400, 40))
def test_a_damaged_block_is_never_a_crash_at_open(tmp_path, flipped, caplog):
    run = filled(tmp_path, collects=False)
    for file in (tmp_path / "index").glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[flipped % len(data)] ^= 0xFF
        file.write_bytes(bytes(data))
    comes_back(tmp_path, run)


def test_what_is_no_index_at_all_is_replaced(tmp_path, caplog):
    run = filled(tmp_path, collects=False)
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").write_bytes(b"no directory")
    comes_back(tmp_path, run)
    assert "rebuilt from the value log" in caplog.text


def filled(directory, collects=True):
    run = Run()
    with contextlib.closing(Store(directory, LATER)) as store:
        run.on(store, STEPS if collects else WRITES)
        store.catch_up()
    return run
