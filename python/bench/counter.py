"""The instructions that this thread has run outside of the kernel: steadier than a clock while
others use the machine."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SIZE = 64
"""The length of `perf_event_attr` in its first version, which every Linux accepts."""
_EXCLUDE_KERNEL_AND_HYPERVISOR = 0b11 << 5


@contextmanager
def instructions() -> Iterator[Callable[[], int] | None]:
    """Returns a function that reads the counter; None if there is no counter, or this process may
    not use it."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None or platform.system() != "Linux":
        yield None
        return
    # Type 0 is hardware, event 1 is instructions; no sampling.
    attributes = struct.pack(
        "IIQQQQQIIQ", 0, _SIZE, 1, 0, 0, 0, _EXCLUDE_KERNEL_AND_HYPERVISOR, 0, 0, 0
    )
    here, any_processor, no_group, no_flags = 0, -1, -1, 0
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    opened = ctypes.CDLL(None, use_errno=True).syscall(
        number, buffer, here, any_processor, no_group, no_flags
    )
    if opened < 0:
        yield None
        return
    try:
        yield lambda: int.from_bytes(os.read(opened, 8), "little")
    finally:
        # A processor can count only a few things at a time.
        os.close(opened)
