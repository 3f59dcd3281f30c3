"""How to reach a host: its connection string, and the source of its password. Nothing in this
module shows a password."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .circuit import Circuit
from .errors import ConfigError
from .identity import Known
from .layout import Unrouted
from .password_command import PasswordCommand, PasswordCommandError

_FORM = 'write postgres://user@address:5432/database or "host=address dbname=database user=user"'
LOGIN_AGAIN = 0.25
"""How many seconds to wait before a login that was refused is tried again."""
_FILES = ("passfile", "sslrootcert", "sslcert", "sslkey", "sslcrl")


@dataclass(frozen=True)
class Host:
    """One host: a PostgreSQL database, on a primary, that holds shards."""

    name: str
    """Its name in the config."""
    params: Mapping[str, str] = field(repr=False)
    """How applications connect: libpq's keywords, with absolute file names. It may hold a
    password."""
    server: Mapping[str, str] = field(repr=False)
    """How to connect to the server itself, past a pooler. It is the same if the config has no
    `router_url`."""
    password_env: str | None = None
    password_file: Path | None = None
    password_command: PasswordCommand | None = field(default=None, repr=False)
    pool_size: int = 16
    """How many connections an application's process opens to it at most, not counting those for
    look-ups."""
    named: bool = True
    """Whether statements may be prepared by name, which PgBouncer in transaction mode does not
    allow."""
    whole: str | None = None
    """The schema, not quoted, from which it serves all shards, if it is unsharded."""
    unrouted: Unrouted = Unrouted.REFUSE
    """What becomes of statements there that name no key, if it is unsharded."""
    known: Known = field(default_factory=Known, compare=False, repr=False)
    """Which server it is, as far as this process knows."""
    circuit: Circuit = field(default_factory=Circuit, compare=False, repr=False)
    """Whether it can be reached, as far as this process knows."""

    @property
    def address(self) -> str:
        """`user@host:port/database`, for messages."""
        params = self.params
        if "service" in params:
            return f"service={params['service']}"
        host = params.get("host") or params.get("hostaddr", "")
        user, port, dbname = (
            params.get("user", ""),
            params.get("port", "5432"),
            params.get("dbname", ""),
        )
        return f"{user}@{host}:{port}/{dbname}"

    @property
    def addresses(self) -> list[tuple[str | None, ...]]:
        """What distinguishes its database from others: address, port and name, for each address of
        the server."""
        params = self.server
        if "service" in params:
            return []
        hosts = (params.get("host") or params.get("hostaddr", "")).split(",")
        ports = params.get("port", "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        plain = ["127.0.0.1" if host.lower() == "localhost" else host.lower() for host in hosts]
        return [(host, port or "5432", params.get("dbname")) for host, port in zip(plain, ports)]

    def connect_args(self) -> dict[str, Any]:
        """Arguments for `psycopg.connect`. The password is read each time, so that a new one needs
        no restart. Use them through `pgshard.connect`: a connection that is made from them alone
        may lead to a former primary.

        Raises `ConfigError` if the password is not where the config specifies.
        """
        return {**self.params, **self._password()}

    def attempts(self) -> list[dict[str, Any]]:
        """The same arguments for each address, in the order of the text. Raises `ConfigError`."""
        return self._each_address(self.connect_args())

    def _each_address(self, args: dict[str, Any]) -> list[dict[str, Any]]:
        if "service" in args:
            return [args]
        lists = {key: args[key].split(",") for key in ("host", "hostaddr", "port") if key in args}
        count = max(len(lists.get(key, ())) for key in ("host", "hostaddr"))
        return [
            {
                **args,
                **{key: values[index if len(values) > 1 else 0] for key, values in lists.items()},
            }
            for index in range(count)
        ]

    def place(self, index: int) -> str:
        """`address:port` of one of the addresses, for messages."""
        if "service" in self.params:
            return self.address
        args = self._each_address(dict(self.params))[index]
        return f"{args.get('host') or args.get('hostaddr')}:{args.get('port') or '5432'}"

    @property
    def is_for_primary(self) -> bool:
        """Whether connections must lead to the server that takes writes, or may lead to any."""
        return self.params.get("target_session_attrs") not in (
            "read-only",
            "standby",
            "prefer-standby",
        )

    def server_conninfo(self) -> str:
        """A connection string to the server itself, for programs such as psql, without a password
        from a file or variable."""
        return make_conninfo(
            "", **{key: value for key, value in self.server.items() if key != "password"}
        )

    def reads_again(self, error: psycopg.Error) -> bool:
        """Whether the server refused a login with a password that may be another by now. Then one
        more try is worth it, after `LOGIN_AGAIN` seconds and with the password read again: while a
        password is changed, the server and its source differ for a moment."""
        refused = error.pgconn is not None and error.pgconn.used_password
        if not refused or self.password_env is not None or "password" in self.params:
            return False
        if self.password_command is not None:
            self.password_command.forget()
        return True

    def password(self) -> str | None:
        """The password, if the config has one. Otherwise libpq looks for one by itself."""
        return self._password().get("password") or self.params.get("password")

    def _password(self) -> dict[str, str]:
        place = f"host {self.name}"
        if self.password_env is not None:
            password = os.environ.get(self.password_env)
            if password is None:
                raise ConfigError(
                    place,
                    [f"the environment variable {self.password_env} for the password is not set"],
                )
            return {"password": password}
        if self.password_command is not None:
            try:
                return {"password": self.password_command.read()}
            except PasswordCommandError as error:
                raise ConfigError(place, [str(error)]) from None
        if self.password_file is not None:
            try:
                lines = self.password_file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                raise ConfigError(
                    place, [f"cannot read the password file {self.password_file}"]
                ) from None
            return {"password": lines[0]} if lines else {}
        return {}


def read_conninfo(text: str, folder: Path) -> Mapping[str, str] | str:
    """Reads a libpq URL or key=value string, or returns what is wrong with it.

    The text may hold a password, and if it is mistyped, the parser may take a part of the password
    for something else. So no part of the text is ever shown.
    """
    try:
        found = conninfo_to_dict(text)
    except psycopg.Error:
        return f"the url cannot be read: {_FORM}"
    params = {key: str(value) for key, value in found.items() if value not in (None, "")}
    if "service" not in params:
        for missing, keys in (
            ("host", ("host", "hostaddr")),
            ("user", ("user",)),
            ("database", ("dbname",)),
        ):
            if not any(key in params for key in keys):
                return f"the url names no {missing}: {_FORM}"
    for key in _FILES:
        if key in params and params[key] != "system":
            params[key] = str(folder.absolute() / params[key])
    # A silent host is noticed, as in the Rust router.
    params.setdefault("connect_timeout", "5")
    return params
