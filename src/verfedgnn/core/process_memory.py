"""Settings of the memory allocator."""

import ctypes


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the kernel. Without glibc, do nothing.

    By default glibc maps each block above 32 MiB separately and unmaps it when it is freed. The kernel then
    zeroes a matrix of a million users page by page each time one is allocated: half of a round's time
    (results/scale.md). All threads share one arena, so memory freed by the thread that packs messages can be
    reused by the others.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    most = 2**31 - 1
    for option, value in ((-3, most), (-1, most), (-8, 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX
        mallopt(option, value)
