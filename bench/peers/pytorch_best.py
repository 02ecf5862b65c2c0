"""Import this before torch: PyTorch at its best. Memory that is freed stays with the process, instead of being mapped
and cleared anew in each step; the C library reads that when a process begins, so this one begins again.
"""
import os
import sys

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "10000000000", "MALLOC_TOP_PAD_": "1000000000"}
if "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP)


def environment_of_others():
    """What this process was begun with: those that are compared with PyTorch have memory of their own ways."""
    return {name: value for name, value in os.environ.items() if name not in KEEP}
