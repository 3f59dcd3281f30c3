"""Watches a host's other addresses for a server that takes its writes. That shows a standby that
was promoted even if the former primary still runs, frozen or as it was, and does not report it.

Invariant: a host with one address costs nothing; each other address is queried once in `EVERY`
seconds, over a connection that is kept, and no call waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any

import psycopg

from .connection import HostConnection, ask, reach
from .errors import ConfigError
from .hosts import Host
from .identity import Seen, Server

log = logging.getLogger("pgshard")

EVERY = 3.0
"""Seconds from one look to the next."""
ANSWER_MAX = 2.0
"""How many seconds an answer may take; connecting may take as long again."""


def look_out(host: Host) -> None:
    """Watches the other addresses from now on, in a thread that lasts as long as the host is used.
    A process starts one at most, and the child of a fork starts its own."""
    if host.known.start_looking():
        threading.Thread(
            target=_run, args=(weakref.ref(host),), name="pgshard lookout", daemon=True
        ).start()


def _run(host: weakref.ref[Host]) -> None:
    kept: dict[int, HostConnection] = {}
    warned: set[int] = set()
    while True:
        time.sleep(EVERY)
        here = host()
        if here is None:
            for connection in kept.values():
                connection.close()
            return
        _look(here, kept, warned)
        del here


def _look(host: Host, kept: dict[int, HostConnection], warned: set[int]) -> None:
    try:
        attempts = host.attempts()
    except ConfigError:
        return  # The next connection reports it.
    for index, args in enumerate(attempts):
        if index == host.known.answered:
            connection = kept.pop(index, None)
            if connection is not None:
                connection.close()
            continue
        server = _ask(index, args, kept)
        if server is None:
            continue
        seen, place = host.known.learn_of(server), host.place(index)
        if seen is Seen.LATER:
            log.warning(
                "host %s: %s was promoted: connections to the former primary are cut",
                host.name,
                place,
            )
        elif seen is Seen.NOTHING:
            warned.discard(index)
        elif index not in warned:
            warned.add(index)
            if seen is Seen.IMPOSTOR:
                log.warning(
                    "host %s: %s takes writes too: %s", host.name, place, host.known.refusal(server)
                )
            else:
                log.error(
                    "host %s: %s takes writes too, and nothing tells which is right",
                    host.name,
                    place,
                )


def _ask(index: int, args: dict[str, Any], kept: dict[int, HostConnection]) -> Server | None:
    connection = kept.pop(index, None)
    try:
        if connection is not None:
            try:
                server = ask(connection)
            except psycopg.Error:
                connection.close()
                connection = None
        if connection is None:
            anywhere = {**args, "target_session_attrs": "any", "connect_timeout": f"{ANSWER_MAX:g}"}
            connection = reach({**anywhere, "application_name": "pgshard lookout"}, ANSWER_MAX)
            server = connection.server
    except psycopg.Error:
        return None
    kept[index] = connection
    return server
