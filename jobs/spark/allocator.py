"""The C library's memory in the job and in Spark's Python workers: blocks are reused within a task, and given back after it. [process]

Arrow and numpy allocate blocks of megabytes all the time. With glibc's default threshold each of them is mapped anew, and the kernel first
fills every page with zeros: a third of the time of some steps. Kept for good, they are memory that idle workers hold. The JVM stays at the
default (``spark_session.FRUGAL``), because RocksDB in it does not free what would be reused.

Promises: nothing happens where the C library is not glibc.
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
