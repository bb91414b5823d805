"""What a process does with memory that it has freed."""

import ctypes


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next time instead of giving it back to the kernel at once; elsewhere nothing happens.

    It maps every block above 32 MiB by itself and unmaps it when it is freed, so that a matrix of a million users is filled with
    zeros by the kernel, page by page, each time it is made: half of a round's time there (results/scale.md). Threads share one
    store: what is freed in one that packs messages serves the next.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    most = 2**31 - 1
    for option, value in ((-3, most), (-1, most), (-8, 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX
        mallopt(option, value)
