"""``jobs.spark.allocator``: what glibc does with large blocks, seen from outside in a process of its own."""

import subprocess
import sys
import textwrap

import pytest

from pyspark_tidb_binlog.jobs.spark import allocator
from pyspark_tidb_binlog.jobs.spark.allocator import LARGEST_REUSED

SCRIPT = """
import ctypes, resource
from pyspark_tidb_binlog.jobs.spark.allocator import LARGEST_REUSED, give_back, reuse_blocks

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def faults(size, rounds=20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        block = library.malloc(size)
        ctypes.memset(block, 1, size)
        library.free(block)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / size
"""


def printed(script: str, **environ: str) -> list[float]:
    """The numbers that ``script`` prints in a process that starts with the threshold of the job."""
    command = [sys.executable, "-c", SCRIPT + textwrap.dedent(script)]
    run = subprocess.run(command, env={"MALLOC_MMAP_THRESHOLD_": "131072", **environ}, capture_output=True, text=True, check=True, cwd=".")
    return [float(word) for word in run.stdout.split()]


needs_glibc = pytest.mark.skipif(allocator._glibc() is None, reason="another C library")


@needs_glibc
def test_blocks_of_megabytes_are_faulted_in_once_instead_of_every_time() -> None:
    anew, reused = printed(
        """
        size = LARGEST_REUSED // 2
        print(faults(size))
        reuse_blocks()
        print(faults(size))
        """
    )
    assert anew > 19
    assert reused < 3


@needs_glibc
def test_larger_blocks_go_back_to_the_system_at_once() -> None:
    (anew,) = printed("reuse_blocks(); print(faults(2 * LARGEST_REUSED))")
    assert anew > 19


@needs_glibc
def test_what_is_free_between_two_tasks_goes_back_to_the_system() -> None:
    held, kept, left = printed(
        """
        reuse_blocks()
        begin, blocks, size = resident(), [], LARGEST_REUSED // 4
        for _ in range(40):
            blocks.append(library.malloc(size))
            ctypes.memset(blocks[-1], 1, size)
        held = resident()
        for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
            library.free(block)
        kept = resident()
        give_back()
        print(*((n - begin) / size for n in (held, kept, resident())))
        """
    )
    assert (held > 39, kept > 39, left < 5) == (True, True, True)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    allocator.reuse_blocks()
    allocator.give_back()
    assert LARGEST_REUSED < allocator.LARGEST_FREE
