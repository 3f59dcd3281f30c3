"""Connections to hosts. A connection leads to the server that is the host now, and to no other."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any

import psycopg

from .circuit import is_unreachable, told
from .connection import HostConnection, NoAnswer, own_records, reach
from .errors import WrongServer
from .hosts import LOGIN_AGAIN, Host
from .primary_watch import look_out

log = logging.getLogger("pgshard")

OTHERS_MAX = 2.0
"""When a process meets a host: how many seconds the other addresses have to answer, once one has
answered."""


# A silent server is noticed after the same time as in the Rust router.
_KEEPALIVE = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def connect(host: Host, **options: Any) -> HostConnection:
    """A connection to a host, in autocommit. `options`: arguments for `psycopg.connect` in addition
    to the host's own.

    The addresses are tried one after the other, beginning with the one that answered last. The
    first connection of a process queries all addresses, and takes the primary with the latest
    timeline. The identity of the server is queried, which takes one round trip. When a later
    timeline of the host becomes known, connections to an earlier one are cut. While the host is out
    of reach this function fails immediately (`pgshard.circuit`).

    Raises `HostUnreachable` if no server answers, or none did a moment ago; `WrongServer` if the
    server that answers is not the host, or no longer; another `psycopg.Error` if it refuses;
    `ConfigError` if the password cannot be read.
    """
    host.circuit.check(host.name, lambda: _start_try(host))
    return _noting(host, options, tried=False)


def _start_try(host: Host) -> None:
    """Finds out whether a host is reachable again. No call does this itself, because it takes long
    if an address is silent."""
    threading.Thread(target=_try, args=(host,), name="pgshard try", daemon=True).start()


def _try(host: Host) -> None:
    try:
        _noting(host, {"application_name": "pgshard try"}, tried=True).close()
    except psycopg.Error:
        pass  # `_noting` has reported it to the circuit.
    except Exception as error:  # noqa: BLE001 # such as a missing password file: the next call raises it
        log.debug("host %s: %s", host.name, error)
        host.circuit.answered(host.name)


def _noting(host: Host, options: dict[str, Any], *, tried: bool) -> HostConnection:
    """Connects, and reports the result to the circuit."""
    generation = host.circuit.generation
    try:
        connection = _open(host, options)
    except psycopg.Error as error:
        if is_unreachable(error):
            host.circuit.failed(host.name, error, _is_silent(error), tried=tried)
            raise told(host.name, error) from error
        # A server that refuses is there.
        host.circuit.answered(host.name)
        raise
    host.circuit.answered(host.name)
    connection.circuit, connection.generation = host.circuit, generation
    return connection


def _open(host: Host, options: dict[str, Any]) -> HostConnection:
    attempts = [{**_KEEPALIVE, **args, **options} for args in host.attempts()]
    if len(attempts) == 1 or host.known.settled or not host.is_for_primary:
        connection = _in_turn(host, attempts)
    else:
        connection = _newest(host, attempts)
    connection.answer_max = None
    if len(attempts) > 1 and host.is_for_primary:
        look_out(host)
    return connection


def _in_turn(host: Host, attempts: list[dict[str, Any]]) -> HostConnection:
    first = host.known.answered
    errors: list[psycopg.Error] = []
    for index in [*range(first, len(attempts)), *range(first)]:
        try:
            return _admitted(host, index, _reach(host, attempts[index]))
        except psycopg.Error as error:
            errors.append(error)
    raise _told(host, errors)


def _newest(host: Host, attempts: list[dict[str, Any]]) -> HostConnection:
    """Queries all addresses, because the first in the text may be a former primary."""
    fitting, errors = _ask_all(host, attempts)
    fitting.sort(
        key=lambda pair: (
            host.known.refusal(pair[1].server) is not None,
            -(pair[1].server.timeline or 0),
            pair[0],
        )
    )
    left = [connection for _, connection in fitting]
    try:
        if len(fitting) > 1:
            (one, first), (other, second) = fitting[:2]
            if host.known.refusal(second.server) is None and first.server.rivals(second.server):
                raise WrongServer(
                    f"host {host.name}: both {host.place(one)} and {host.place(other)} take writes,"
                    " and neither is known to be the later: stop the one that is not the host"
                    " (docs/high-availability.md)"
                )
        for index, connection in fitting:
            left.remove(connection)
            try:
                found = _admitted(host, index, connection)
            except psycopg.Error as error:
                errors.append(error)
            else:
                host.known.settled = True
                return found
    finally:
        for connection in left:
            connection.close()
    raise _told(host, errors)


def _reach(host: Host, args: dict[str, Any]) -> HostConnection:
    """Connects to one address. A login that is refused is tried again."""
    try:
        return reach(args)
    except psycopg.OperationalError as error:
        if not host.reads_again(error):
            raise
    time.sleep(LOGIN_AGAIN)
    password = host.password()
    return reach({**args, **({} if password is None else {"password": password})})


def _ask_all(
    host: Host,
    attempts: list[dict[str, Any]],
) -> tuple[list[tuple[int, HostConnection]], list[psycopg.Error]]:
    answers: queue.SimpleQueue[tuple[int, HostConnection | psycopg.Error]] = queue.SimpleQueue()
    over = threading.Event()

    def ask(index: int) -> None:
        try:
            answers.put((index, _reach(host, attempts[index])))
        except psycopg.Error as error:
            answers.put((index, error))
        except Exception as error:  # noqa: BLE001 # an address that cannot be used, whatever the reason
            answers.put((index, psycopg.OperationalError(str(error))))
        if over.is_set():
            _drain(answers)

    for index in range(len(attempts)):
        threading.Thread(target=ask, args=(index,), name="pgshard connect", daemon=True).start()
    fitting: list[tuple[int, HostConnection]] = []
    errors: list[psycopg.Error] = []
    until: float | None = None
    for _ in attempts:
        try:
            index, answer = answers.get(
                timeout=None if until is None else max(until - time.monotonic(), 0)
            )
        except queue.Empty:
            break
        if isinstance(answer, psycopg.Error):
            errors.append(answer)
        else:
            fitting.append((index, answer))
            until = until or time.monotonic() + OTHERS_MAX
    # Connections that are opened from now on are not needed.
    over.set()
    _drain(answers)
    return fitting, errors


def _drain(answers: queue.SimpleQueue[tuple[int, HostConnection | psycopg.Error]]) -> None:
    while True:
        try:
            _, answer = answers.get_nowait()
        except queue.Empty:
            return
        if isinstance(answer, HostConnection):
            answer.close()


def _admitted(host: Host, index: int, connection: HostConnection) -> HostConnection:
    """The connection, if its server is the host."""
    refusal = host.known.admit(connection)
    if refusal is not None and host.known.accept(own_records(connection)):
        # It is still the host, because an operator accepted it.
        refusal = host.known.admit(connection)
    if refusal is not None:
        connection.close()
        raise WrongServer(f"host {host.name}: {host.place(index)} is not connected to: {refusal}")
    host.known.answered = index
    return connection


def _told(host: Host, errors: list[psycopg.Error]) -> psycopg.Error:
    if len(errors) == 1:
        return errors[0]
    # An address that was reached and refused is better evidence about the host than one that was
    # not reached.
    kind: type[psycopg.Error] = (
        NoAnswer if any(_is_silent(error) for error in errors) else psycopg.OperationalError
    )
    if any(isinstance(error, WrongServer) for error in errors):
        kind = WrongServer
    words = "; ".join(str(error).strip() for error in errors)
    return kind(f"host {host.name}: none of its addresses can be used: {words}")


def _is_silent(error: psycopg.Error) -> bool:
    """Whether there was no answer at all before the time was over."""
    return isinstance(error, (psycopg.errors.ConnectionTimeout, NoAnswer))
