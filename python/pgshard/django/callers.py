"""Where in the application a call of this package comes from."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType

import asgiref
import django


def _folder(module: ModuleType) -> str:
    return f"{Path(str(module.__file__)).parent}{os.sep}"


INNER = (_folder(django), f"{Path(__file__).parent}{os.sep}", str(contextlib.__file__))
"""What the names of the files of Django and of this package begin with."""
_THREADS = (
    *map(_folder, (asgiref, asyncio, concurrent.futures)),
    str(threading.__file__),
)
"""The same, of what runs Django's asynchronous methods."""


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def place() -> str:
    """The file and line of the first caller that is neither Django nor this package."""
    last = sys._getframe(0)
    for frame in _frames(last):
        last = frame
        if not frame.f_code.co_filename.startswith((*INNER, *_THREADS)):
            break
    return f"{last.f_code.co_filename}:{last.f_lineno}"


def level() -> int:
    """How many calls above the function that calls this one the code of the application is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INNER):
        level, frame = level + 1, frame.f_back
    return level
