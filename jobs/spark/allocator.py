"""The C library's memory in the job, in Spark's Python workers and in a Pump: blocks are reused, huge ones given back. [process]

Arrow and numpy allocate blocks of megabytes all the time. With glibc's default threshold, the kernel maps each block anew and fills its pages with zeros:
a third of the time of some steps. Blocks kept for good would be memory of idle workers. The JVM keeps the default (``spark_session.FRUGAL``), because
RocksDB does not free reusable blocks.

Promises: with another C library than glibc, nothing happens.
"""

import ctypes

LARGEST_REUSED = 4 << 20
"""Bytes: larger blocks are mapped anew, and go back to the system when they are freed."""
LARGEST_FREE = 32 << 20
"""Bytes that may be free at the heap's end while a task runs."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def reuse_blocks() -> None:
    """From now on, in this process and its forks."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_REUSED)
        library.mallopt(_M_TRIM_THRESHOLD, LARGEST_FREE)


def give_back() -> None:
    """Give what is free back to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
