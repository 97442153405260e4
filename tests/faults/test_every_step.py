"""Death, power failure and passing errors at every single operation of the disk: nothing acknowledged is lost, nothing is half there.

The script of ``workload.py`` is run once for each operation that it makes, with that operation failing; then the directory is opened with the real
files, compared with the model, written to, and opened again. In `make test` the kinds of a fault share the operations: each operation fails in one
of the kinds. In `make slow` it fails in all of them.
"""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from random import Random

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store
from tests.support.fakes.faulty_files import Fault, FaultyFiles
from tests.support.store_script import SETTINGS, Run, check, comes_back, script

STEPS = script(9)
"""Every kind of step, over several files, of which two are collected."""
FEW_AND_MORE = pytest.mark.parametrize(
    "steps", [pytest.param(STEPS, id="9 rounds"), pytest.param(script(13), id="13 rounds", marks=pytest.mark.slow)]
)
DEATHS = {
    "kill": (Fault.DEATH, True, True),
    "torn append": (Fault.TORN_DEATH, True, True),
    "power failure": (Fault.DEATH, False, True),
    "power failure, and the index is gone": (Fault.TORN_DEATH, False, False),
}
ERRORS = [Fault.EIO, Fault.TORN]


def shared(kind: int, kinds: int, steps: object) -> Iterator[int]:
    """The numbers of the operations that fail in this kind."""
    return itertools.count(1 + kind, kinds) if steps is STEPS else itertools.count(1)


@FEW_AND_MORE
def test_the_script_rotates_and_collects(tmp_path, steps):
    files = FaultyFiles()
    with contextlib.closing(Store(tmp_path, SETTINGS, files=files)) as store:
        run = Run().on(store, steps)
        assert files.operations.count("open_append") > 6 and files.operations.count("remove") > 1
        assert run.durable == run.submitted and run.told == run.collected == store.gc_ts
        check(store, run.submitted)


@FEW_AND_MORE
@pytest.mark.parametrize("death", DEATHS)
def test_death_at_every_operation(tmp_path, death, steps):
    fault, power, index = DEATHS[death]
    for number in shared(list(DEATHS).index(death), len(DEATHS), steps):
        directory = tmp_path / str(number)
        files = FaultyFiles(number, fault)
        run = Run()
        with contextlib.suppress(OSError), contextlib.closing(Store(directory, SETTINGS, files=files)) as store:
            run.on(store, steps)
        if not files.dead:
            assert number > 80
            return
        if not power:
            files.lose_power(Random(number))
        if not index:
            shutil.rmtree(directory / "index", ignore_errors=True)
        comes_back(directory, run, remembers=index)
        shutil.rmtree(directory)


@FEW_AND_MORE
@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_that_passes_at_every_operation(tmp_path, fault, steps):
    for number in shared(ERRORS.index(fault), len(ERRORS), steps):
        directory = tmp_path / str(number)
        files = FaultyFiles(number, fault)
        run = Run()
        with contextlib.suppress(OSError), contextlib.closing(Store(directory, SETTINGS, files=files)) as store:
            run.on(store, steps)
            if len(files.operations) < number:
                assert number > 80
                return
            run.on(store, [[fake(900)]])
            goes_on = run.durable[-1:] == run.submitted[-1:]
            if files.operations[number - 1] == "sync":
                assert not goes_on and run.durable == run.submitted[: len(run.durable)], (
                    "after a failed sync nothing is acknowledged any more"
                )
            else:
                assert goes_on or files.operations[number - 1] == "sync_dir"
        comes_back(directory, run)
        shutil.rmtree(directory)


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.EIO])
def test_a_torn_append_that_cannot_be_cut_off_stops_the_log(tmp_path, fault):
    files = FaultyFiles()
    run = Run()
    with contextlib.closing(Store(tmp_path, SETTINGS, files=files)) as store:
        run.on(store, STEPS[:5])
        files.refuse = {"append": Fault.TORN, "truncate": fault}
        run.on(store, STEPS[5:6])
        files.refuse = {}
        run.on(store, STEPS[6:8])
        with pytest.raises(OSError, match="restart the Pump"):
            store.write(STEPS[8])
    assert (
        run.durable == run.submitted[: len(run.durable)] == [record for step in STEPS[:5] if not isinstance(step, int) for record in step]
    )
    comes_back(tmp_path, run)
