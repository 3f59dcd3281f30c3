"""An address that leads to one server after another, as a virtual IP does."""

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to the port `target`. Open connections keep their server, until
    `cut`."""

    def __init__(self, target: int, port: int = 0) -> None:
        self.target = target
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()

    def cut(self) -> None:
        """Ends the open connections."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accepts no more connections, and ends the open ones."""
        with contextlib.suppress(OSError):
            # A thread that waits in accept() would keep it open.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
