"""A dead host costs its callers only the first wait, and is used again when it answers."""

import os
import signal
import socket
import sys
import threading
import time

import psycopg
import pytest
from proxy import Proxy

from pgshard import (
    Config,
    Directory,
    HostUnreachable,
    LookUpFailed,
    MoveSignal,
    RecoveryContext,
    circuit,
    connect,
)
from pgshard.pool import Pool, is_alive

TEXT = """[cluster]
shards = 4
epoch = "2011-01-01T00:00:00Z"
[hosts.db1]
url = "postgres://app@127.0.0.1:PORT/app?connect_timeout=2"
[map]
version = 1
[map.placement]
db1 = "0-3"
"""


def eventually(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def host_at(port, tmp_path):
    return Config.parse(TEXT.replace("PORT", str(port)), tmp_path / "pgshard.toml").hosts["db1"]


@pytest.fixture
def opened(monkeypatch):
    """How often a connection was tried."""
    module = sys.modules["pgshard.connect"]
    counted, plain = [], module._open
    monkeypatch.setattr(module, "_open", lambda *args: (counted.append(1), plain(*args))[1])
    return counted


def test_a_host_that_refuses_is_tried_seldom_and_used_again(world, tmp_path, opened):
    real = int(world.url("db1").split("port=")[1].split()[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = host_at(port, tmp_path)
    with pytest.raises(HostUnreachable, match=r"host db1 is out of reach: .*refused"):
        connect(host)
    assert host.circuit.is_open
    for _ in range(200):
        with pytest.raises(HostUnreachable, match=r"refused.* \(it is not tried again yet\)"):
            connect(host)
    # In 200 calls: the first one, and tries that were at least 75 ms apart.
    assert len(opened) < 100
    proxy = Proxy(real, port)
    try:

        def answers():
            try:
                connect(host).close()
            except HostUnreachable:
                return False
            return True

        eventually(answers)
        assert not host.circuit.is_open
    finally:
        proxy.close()


def test_a_host_that_is_silent_keeps_one_caller_waiting_and_what_looks_alive_is_closed(
    world, tmp_path, opened
):
    """The server is stopped as if its machine hung: connections are open, and nothing answers."""
    postmaster = Postmaster(world.server("db2"))
    host = host_at(int(world.url("db2").split("port=")[1].split()[0]), tmp_path)
    pool = Pool(host, dict, lambda connection: None)
    kept, given = pool.take(), pool.take()
    pool.give_back(given)
    postmaster.stop()
    try:
        with pytest.raises(HostUnreachable, match="timeout"):
            connect(host)
        assert not is_alive(kept)
        assert not is_alive(given)
        tries = len(opened)
        # These calls do not wait for a try, although one is running.
        failed = 0
        while len(opened) < tries + 2 and failed < 100_000:
            with pytest.raises(HostUnreachable):
                pool.take()
            failed += 1
            time.sleep(0.001)
        assert failed > 5 * (len(opened) - tries)
    finally:
        postmaster.go_on()
    eventually(lambda: not host.circuit.is_open or not _fails(host))
    with pool.take() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.discard(kept)


def _fails(host):
    try:
        connect(host).close()
    except psycopg.Error:
        return True
    return False


class Postmaster:
    """Stops the process that takes a server's connections, and continues it afterwards."""

    def __init__(self, data):
        self.pid = int((data / "postmaster.pid").read_text().splitlines()[0])

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)


def test_a_server_that_refuses_was_reached(world, tmp_path):
    path = tmp_path / "pgshard.toml"
    port = world.url("db1").split("port=")[1].split()[0]
    host = Config.parse(TEXT.replace("PORT", port).replace("app@", "nobody@"), path).hosts["db1"]
    with pytest.raises(psycopg.OperationalError, match='role "nobody" does not exist') as raised:
        connect(host)
    assert not isinstance(raised.value, HostUnreachable)
    assert not host.circuit.is_open


@pytest.mark.parametrize(
    ("text", "unreachable"),
    [
        (
            (
                'connection failed: connection to server at "127.0.0.1", port 1 failed: Connection'
                " refused"
            ),
            True,
        ),
        (
            (
                'connection failed: connection to server at "::1", port 1 failed: FATAL:  role "x"'
                " does not exist"
            ),
            False,
        ),
        (
            (
                'connection to server at "10.0.0.1", port 1 failed: ВАЖНО:  система баз данных'
                " запускается"
            ),
            False,
        ),
        ('connection to server at "10.0.0.1", port 1 failed: session is read-only', True),
        ("connection timeout expired", True),
        ("FATAL:  no such database: x", False),
    ],
)
def test_what_an_error_of_connecting_says_of_the_host(text, unreachable):
    assert circuit.is_unreachable(psycopg.OperationalError(text)) is unreachable


def test_pauses_grow_to_a_limit_and_only_tries_count(monkeypatch):
    monkeypatch.setattr(circuit.random, "random", lambda: 1.0)
    one, cause, pauses = circuit.Circuit(), psycopg.OperationalError("x"), []
    for _ in range(8):
        one.failed("db1", cause, silent=False, tried=True)
        pauses.append(one._open.pause)
        one.failed("db1", cause, silent=False, tried=False)
        assert one._open.pause == pauses[-1], "a straggler changes nothing"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_the_tries_of_a_fleet_are_spread(monkeypatch):
    for chance in (0.0, 0.5, 1.0):
        monkeypatch.setattr(circuit.random, "random", lambda chance=chance: chance)
        one, began = circuit.Circuit(), time.monotonic()
        one.failed("db1", psycopg.OperationalError("x"), silent=False, tried=False)
        assert one._open.until - began >= 0.75 * circuit.PAUSE_MIN
        assert one._open.until - time.monotonic() <= circuit.PAUSE_MIN


def test_a_look_up_of_a_dead_host_fails_at_once_too(tmp_path, opened):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = tmp_path / "pgshard.toml"
    path.write_text(TEXT.replace("PORT", str(port)))
    recovery_context = RecoveryContext(Directory.open(path))
    for _ in range(50):
        with pytest.raises(LookUpFailed, match=r"host db1 .* is out of reach"):
            recovery_context.questions("db1").ask(0, MoveSignal.SIGNPOST)
    assert len(opened) < 25


def test_the_child_of_a_fork_finds_out_by_itself(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = host_at(free.getsockname()[1], tmp_path)
    with pytest.raises(HostUnreachable):
        connect(host)
    assert host.circuit.is_open
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert not host.circuit.is_open
    with pytest.raises(HostUnreachable) as raised:
        connect(host)
    assert "tried again" not in str(raised.value), "it has tried"


def test_callers_that_come_during_a_try_wait_for_it(monkeypatch):
    """For a host whose last try was answered: if it is there, it answers within milliseconds."""
    one = circuit.Circuit()
    monkeypatch.setattr(circuit, "TRY_WAIT", 60.0)
    one.failed("db1", psycopg.OperationalError("refused"), silent=False, tried=False)
    one._open.until = 0.0
    tries, done = [], []
    threads = [
        threading.Thread(target=lambda: (one.check("db1", lambda: tries.append(1)), done.append(1)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: tries == [1])
    one.answered("db1")
    for thread in threads:
        thread.join()
    assert (tries, done) == ([1], [1] * 4)
