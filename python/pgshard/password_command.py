"""A program that prints a password: for tokens that a service gives out for some minutes.

What the program prints is in no error and no log line; nor are its arguments."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

_TAKES_MAX = 10.0
"""How many seconds the program may take."""
_OUTPUT_MAX = 64 * 1024
"""How many bytes it may print."""
_KEPT_FOR = 5.0
"""For how many seconds a password is used again, so that connections that are opened together cost
one run."""


class PasswordCommandError(Exception):
    """The program gave no password."""


@dataclass(frozen=True)
class PasswordCommand:
    """A program that prints a password, as a list of arguments without a shell."""

    args: tuple[str, ...]
    folder: Path
    """Where it runs, and what a program with a slash is below."""
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)
    _last: list[tuple[float, str]] = field(default_factory=list, compare=False, repr=False)

    def read(self) -> str:
        """The first line that the program prints. Raises `PasswordCommandError`."""
        with self._lock:
            if self._last and time.monotonic() - self._last[0][0] < _KEPT_FOR:
                return self._last[0][1]
            self._last.clear()
            password = self._run()
            self._last.append((time.monotonic(), password))
            return password

    def forget(self) -> None:
        """Takes the last password for outdated: a server has refused it."""
        with self._lock:
            self._last.clear()

    def _run(self) -> str:
        program = self.args[0]
        path = str(self.folder / program) if "/" in program else program
        try:
            # What it prints as errors may have a secret in it.
            child = subprocess.Popen(
                [path, *self.args[1:]],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise self._failed(f"cannot be started: {error.strerror}") from None
        with child:
            output: list[bytes] = []
            assert child.stdout is not None
            reading = threading.Thread(
                target=lambda stdout: output.append(stdout.read(_OUTPUT_MAX + 1)),
                args=(child.stdout,),
                daemon=True,
            )
            until = time.monotonic() + _TAKES_MAX
            reading.start()
            try:
                reading.join(_TAKES_MAX)
                if reading.is_alive():
                    raise self._failed(f"took longer than {_TAKES_MAX:g} s")
                if len(output[0]) > _OUTPUT_MAX:
                    raise self._failed(f"printed more than {_OUTPUT_MAX} bytes")
                status = child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise self._failed(f"took longer than {_TAKES_MAX:g} s") from None
            finally:
                # It may have ended. What it has started itself is not ended.
                child.kill()
        if status != 0:
            raise self._failed(f"failed: exit status: {status}")
        try:
            lines = output[0].decode().splitlines()
        except UnicodeDecodeError:
            raise self._failed("printed what is not UTF-8") from None
        if not lines or not lines[0]:
            raise self._failed("printed no password")
        return lines[0]

    def _failed(self, why: str) -> PasswordCommandError:
        return PasswordCommandError(f'the password command "{self.args[0]}" {why}')
