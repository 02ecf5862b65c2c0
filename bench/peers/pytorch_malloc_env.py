"""Import this before torch: configures PyTorch for its best speed. Freed memory stays with the process, instead of
being mapped and cleared in each step; the C library reads that setting when a process starts, so this process is
restarted.
"""
import os
import sys

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "10000000000", "MALLOC_TOP_PAD_": "1000000000"}
if "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP)


def environment_of_others():
    """The original environment of this process: programs compared with PyTorch have their own memory management."""
    return {name: value for name, value in os.environ.items() if name not in KEEP}
