"""A port that leads to another one and delays both directions by a quarter of a millisecond, as if
the server were elsewhere in a data centre.

python relay.py PORT        prints its own port, and runs until it is killed
"""

from __future__ import annotations

import socket
import sys
import threading
import time

DELAY = 0.000_25


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """What comes in at one end goes out at the other, later. Data that comes meanwhile goes out
    with it: packets do not wait for each other on a network either."""
    try:
        while data := source.recv(1 << 20):
            # A sleep would take a fifth of a millisecond too long.
            until = time.perf_counter() + DELAY
            while time.perf_counter() < until:
                time.sleep(0)
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main() -> None:
    """Takes connections until it is killed."""
    port = int(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((client, server), (server, client)):
            threading.Thread(target=_carry, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()
