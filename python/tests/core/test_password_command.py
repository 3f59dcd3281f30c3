"""Passwords that a program prints, and that change while connections are opened."""

import threading
import time

import pytest

from pgshard import Config, connect
from pgshard.errors import ConfigError
from pgshard.password_command import PasswordCommand, PasswordCommandError

TABLES = "CREATE TABLE {shard}.users (id bigint PRIMARY KEY, name text)"


def shell(folder, script):
    return PasswordCommand(("sh", "-c", script), folder)


def test_the_first_line_is_the_password_until_it_is_refused(tmp_path):
    command = shell(tmp_path, "echo x >> runs; wc -l < runs; echo more")
    first = command.read()
    assert command.read() == first
    command.forget()
    assert command.read() != first


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo hunter2; exit 3", "exit status: 3"),
        ("true", "printed no password"),
        ("yes hunter2", "printed more than"),
    ],
)
def test_a_program_that_fails_gives_no_password(tmp_path, script, why):
    with pytest.raises(PasswordCommandError, match=why) as raised:
        shell(tmp_path, script).read()
    assert "hunter2" not in repr(raised.value)
    assert "hunter2" not in repr(shell(tmp_path, script).__class__)


def test_a_list_of_strings_is_the_only_form(made):
    text = made.path.read_text()
    for value in ('"cat token"', "[]", "[1]"):
        bad = made.folder / "bad.toml"
        bad.write_text(text.replace("[hosts.db1]", f"[hosts.db1]\npassword_command = {value}"))
        with pytest.raises(ConfigError, match=r"password_command.*a list of strings"):
            Config.load(bad)


def test_a_token_that_changes_keeps_no_connection_out(made):
    command = 'password_command = ["sh", "-c", "cat token"]'
    text = made.path.read_text().replace("[hosts.db1]", f"[hosts.db1]\n{command}")
    path = made.folder / "token.toml"
    path.write_text(text)
    token = made.folder / "token"
    superuser = made.superuser("db1")
    superuser.execute("CREATE ROLE held LOGIN PASSWORD 'token0'")
    token.write_text("token0")
    host = Config.load(path).hosts["db1"]
    made.rule("db1", "host all held 127.0.0.1/32 scram-sha-256")
    over = threading.Event()

    def change():
        number = 0
        while not over.wait(0.7):
            number += 1
            new = made.folder / "token.new"
            new.write_text(f"token{number}")
            new.rename(token)
            superuser.execute(f"ALTER ROLE held PASSWORD 'token{number}'")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            with connect(host, user="held") as connection:
                assert connection.execute("SELECT session_user").fetchone() == ("held",)
            time.sleep(0.01)
    finally:
        over.set()
        changing.join()
