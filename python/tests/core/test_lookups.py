"""Look-ups, against real servers: a value belongs to one key over all shards, whatever else
happens."""

import contextlib
import datetime
import json
import random
import re
import threading
import time
import uuid

import psycopg
import pytest
from world import ROOT, World

from pgshard import (
    Busy,
    ClaimedTwice,
    ClaimSpent,
    Config,
    ConfigError,
    Directory,
    LookupNotComplete,
    Lookups,
    LookupUnusable,
    RecoveryContext,
    Taken,
    ValueUnusable,
    connect,
)
from pgshard.lookups.claims import (
    BelongsTo,
    Entry,
    Insert,
    Kill,
    Killed,
    Look,
    Looked,
    Met,
    Nothing,
    Take,
    Use,
    Won,
    next_step,
)
from pgshard.template import render
from pgshard.values import Definition, Fold

TABLES = """
CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text UNIQUE, name text);
CREATE TABLE {shard}.badges (owner bigint PRIMARY KEY, code text NOT NULL UNIQUE);
CREATE TABLE {shard}.cards (owner bigint NOT NULL, number uuid, since date, kind int,
    UNIQUE (number, since, kind));
"""
LOOKUPS = """
[lookups.emails]
table = "users"
columns = ["email"]
key = "id"
[lookups.names]
table = "users"
columns = ["name"]
key = "id"
fold = "ascii"
[lookups.badges]
table = "badges"
columns = ["code"]
key = "owner"
[lookups.cards]
table = "cards"
columns = ["number", "since", "kind"]
key = "owner"
"""
INSERT = "INSERT INTO {shard}.users (id, email) VALUES (%s, %s)"
_keys = iter(range(1, 1 << 40))


BEFORE = """[cluster]
shards = 4
epoch = "2011-01-01T00:00:00Z"
[hosts.db1]
url = "postgres://app@10.0.0.1/app"
[map]
version = 1
[map.placement]
db1 = "0-3"
"""
GOOD = 'table = "users"\ncolumns = ["email"]\nkey = "id"\n'


def test_a_lookup_of_the_config_arrives():
    text = (
        '[lookups.emails]\ntable = "users"\ncolumns = ["email", "kind"]\nkey = "id"\n'
        'unique = true\nfold = "ascii"\n'
    )
    found = Config.parse(BEFORE + text, "pgshard.toml").lookups["emails"]
    assert found == Definition("emails", "users", ("email", "kind"), "id", Fold.ASCII)
    assert found.text() == '"users" ("email", "kind") key "id" fold ascii'
    assert Config.parse(BEFORE, "pgshard.toml").lookups == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[lookups]\nemails = 1\n", "lookups.emails must be a section: write [lookups.emails]"),
        (f"[lookups.Emails]\n{GOOD}", '"Emails" cannot be the name of a look-up'),
        (f"[lookups.{'a' * 41}]\n{GOOD}", "40 at most"),
        ("[lookups.emails]\n", "[lookups.emails] has no table"),
        (f"[lookups.emails]\n{GOOD}unique = false\n", "which is not supported yet"),
        (f"[lookups.emails]\n{GOOD}unique = 1\n", "lookups.emails.unique must be true"),
        (f'[lookups.emails]\n{GOOD}fold = "unicode"\n', 'fold is "none" or "ascii", not "unicode"'),
        (f"[lookups.emails]\n{GOOD}imutable = true\n", 'unknown key "imutable"'),
        (f"[lookups.emails]\n{GOOD.replace('users', 'public.users')}", "names a schema"),
        (f"[lookups.emails]\n{GOOD.replace('users', '')}", "has no name"),
        (f"[lookups.emails]\n{GOOD.replace('users', 'ä' * 32)}", "more than 63 bytes"),
        (f"""[lookups.emails]\n{GOOD.replace('"users"', "'us" + '"' + "ers'")}""", "has a quote"),
        (
            f"""[lookups.emails]\n{GOOD.replace('["email"]', '"email"')}""",
            "must be a list of names",
        ),
        (f"""[lookups.emails]\n{GOOD.replace('["email"]', "[1]")}""", "must be a list of names"),
        (f"""[lookups.emails]\n{GOOD.replace('["email"]', "[]")}""", "1 to 32 columns, not 0"),
        (f"""[lookups.emails]\n{GOOD.replace("email", 'a", "a')}""", '"a" is there twice'),
        (f"[lookups.emails]\n{GOOD.replace('email', 'id')}", 'looks up its own key "id"'),
    ],
)
def test_mistakes_in_the_config_are_named(text, problem):
    with pytest.raises(ConfigError) as error:
        Config.parse(BEFORE + text, "pgshard.toml")
    assert problem in str(error.value)


@pytest.fixture(scope="module")
def world():
    made = World(shards=100)
    try:
        made.migrate(TABLES)
        with made.path.open("a") as config:
            config.write(LOOKUPS)
        files = [
            made.run("lookups", "migration", name).stdout for name in ("emails", "names", "cards")
        ]
        recording = made.run("lookups", "migration", "badges", "--step", "create-recording").stdout
        made.migrate(TABLES, *files, recording)
        for name in ("emails", "cards"):
            made.run("lookups", "build", name)
        yield made
    finally:
        made.close()


class Client:
    """Writes rows of users. Moves are the business of others here."""

    def __init__(self, world: World) -> None:
        self.directory = Directory.open(world.path)
        self.context = RecoveryContext(self.directory)
        self.lookups = Lookups(self.context)

    def connection(self, key: int) -> psycopg.Connection:
        shard = self.directory.shard_of_key(key)
        return connect(self.directory.host(self.directory.place(shard).host))

    def sql(self, key: int, text: str) -> str:
        return render(text, self.directory.schema(self.directory.shard_of_key(key)))

    def run(self, key: int, text: str, *params):
        with self.connection(key) as connection:
            cursor = connection.execute(self.sql(key, text), params)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def add(self, key: int, email: str) -> None:
        claims = self.lookups.claim(key, {"emails": email})
        with self.connection(key) as connection, connection.transaction():
            claims.use(connection)
            connection.execute(self.sql(key, INSERT), (key, email))

    def close(self) -> None:
        self.lookups.close()
        self.context.close()


@pytest.fixture
def client(world):
    made = Client(world)
    yield made
    made.close()


@pytest.fixture
def key():
    return next(_keys)


@pytest.fixture
def other():
    return next(_keys)


@pytest.fixture
def email():
    return f"{uuid.uuid4()}@example.com"


def test_a_claimer_does_what_the_protocol_says():
    claim = uuid.uuid4()
    others, own = Entry("7", claim), Entry("5", claim)
    assert next_step("5", Nothing()) == Insert()
    assert next_step("5", Met(others)) == Look(others)
    assert next_step("5", Looked(others, True, False)) == BelongsTo("7")
    assert next_step("5", Looked(others, False, False)) == Look(others)
    assert next_step("5", Looked(others, False, True)) == Kill(others)
    assert next_step("5", Looked(own, True, True)) == Kill(own)
    assert next_step("5", Looked(own, True, False)) == Look(own)
    assert next_step("5", Killed(others, True)) == BelongsTo("7")
    assert next_step("5", Killed(others, False)) == Take(others)
    assert next_step("5", Killed(own, True)) == Take(own)
    assert next_step("5", Won(claim)) == Use(claim)


def test_a_value_has_one_key(client, key, other, email):
    assert client.lookups.find("emails", email) is None
    client.add(key, email)
    assert client.lookups.find("emails", email) == key
    with pytest.raises(Taken, match=f"the value belongs to key {key} already") as taken:
        client.add(other, email)
    assert (taken.value.lookup, taken.value.key) == ("emails", str(key))
    assert client.run(other, "SELECT email FROM {shard}.users WHERE id = %s", other) == []


def test_a_value_that_was_given_up_is_free(client, key, other, email):
    client.add(key, email)
    client.run(key, "DELETE FROM {shard}.users WHERE id = %s", key)
    began = time.monotonic()
    client.add(other, email)
    assert time.monotonic() - began < 1.5, "a claim that is used is over at once"
    assert client.lookups.find("emails", email) == other


def test_a_row_without_a_claim_is_refused(client, key, email):
    with pytest.raises(psycopg.Error) as refused:
        client.run(key, INSERT, key, email)
    assert refused.value.sqlstate == "SH003"


def test_an_older_application_writes_until_the_look_up_enforces(world, client, key, other, email):
    insert = "INSERT INTO {shard}.badges (owner, code) VALUES (%s, %s)"

    def add(owner, code):
        claims = client.lookups.claim(owner, {"badges": code})
        with client.connection(owner) as connection, connection.transaction():
            claims.use(connection)
            connection.execute(client.sql(owner, insert), (owner, code))

    def build():
        return json.loads(world.run("lookups", "build", "badges", "--json").stdout)

    client.run(key, insert, key, email)
    add(other, f"x{email}")
    with pytest.raises(Taken):
        add(next(_keys), f"x{email}")
    # Nothing knows of the row without a claim yet, so no answer would be true.
    for code in (email, f"x{email}", "nobody"):
        with pytest.raises(LookupNotComplete, match=r"it is recording.*--step enforce"):
            client.lookups.find("badges", code)
    built = build()
    assert (built["recorded"], built["complete"]) == (1, False)
    with pytest.raises(Taken, match=f"belongs to key {key}"):
        add(next(_keys), email)
    late = next(_keys)
    client.run(late, insert, late, f"y{email}")
    assert build()["recorded"] == 1
    with pytest.raises(LookupNotComplete):
        client.lookups.find("badges", email)
    step = world.run("lookups", "migration", "badges", "--step", "enforce").stdout
    (world.folder / "migrations" / "0100_enforce.sql").write_text(step)
    world.run("migrate", "up")
    with pytest.raises(psycopg.Error) as refused:
        client.run(late + 1, insert, late + 1, f"z{email}")
    assert refused.value.sqlstate == "SH003"
    assert build()["complete"] is True
    found = [client.lookups.find("badges", code) for code in (email, f"x{email}", f"y{email}")]
    assert found == [key, other, late]
    assert client.lookups.find("badges", "nobody") is None


def test_a_claim_is_for_one_key_and_one_transaction(client, key, other, email):
    claims = client.lookups.claim(key, {"emails": email})
    with client.connection(key) as connection:
        connection.execute("BEGIN")
        claims.use(connection)
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(client.sql(key, INSERT), (key + 100, email))
    assert refused.value.sqlstate == "SH003"
    # That was rolled back, and the claim with it.
    with client.connection(key) as connection, connection.transaction():
        claims.use(connection)
        # Within one transaction it makes no difference how often.
        claims.use(connection)
        connection.execute(client.sql(key, INSERT), (key, email))
    with (
        client.connection(key) as connection,
        pytest.raises(ClaimSpent),
        connection.transaction(),
    ):
        claims.use(connection)


def test_a_claim_that_waited_too_long_is_lost_to_another_key(client, key, other, email):
    claims = client.lookups.claim(key, {"emails": email})
    began = time.monotonic()
    client.add(other, email)
    assert 1.8 < time.monotonic() - began < 3.5
    with (
        client.connection(key) as connection,
        pytest.raises(ClaimSpent),
        connection.transaction(),
    ):
        claims.use(connection)
    assert client.lookups.find("emails", email) == other


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_lost_claim_is_spent_at_each_isolation(client, key, other, email, level):
    claims = client.lookups.claim(key, {"emails": email})
    with client.connection(key) as connection:
        connection.execute(f"BEGIN ISOLATION LEVEL {level}")
        connection.execute(client.sql(key, "SELECT 1 FROM {shard}.users")).fetchall()
        client.add(other, email)
        with pytest.raises(ClaimSpent):
            claims.use(connection)
        connection.execute("ROLLBACK")


def test_a_claim_of_fifteen_minutes_ago_is_too_old(client, key, email):
    claims = client.lookups.claim(key, {"emails": email})
    claims._claims = [one._replace(made_us=one.made_us - 901 * 1_000_000) for one in claims._claims]
    with (
        client.connection(key) as connection,
        pytest.raises(ClaimSpent),
        connection.transaction(),
    ):
        claims.use(connection)


def test_a_transaction_that_stays_open_makes_the_next_one_busy(client, key, other, email):
    claims = client.lookups.claim(key, {"emails": email})
    with client.connection(key) as connection, connection.transaction():
        claims.use(connection)
        connection.execute(client.sql(key, INSERT), (key, email))
        began = time.monotonic()
        with pytest.raises(Busy) as busy:
            client.lookups.claim(other, {"emails": email})
        assert 2.0 < time.monotonic() - began < 3.5
        assert (busy.value.lookup, busy.value.key) == ("emails", str(key))
        assert busy.value.shard == client.directory.shard_of_key(key)
    assert client.lookups.find("emails", email) == key


def test_a_kill_sees_what_it_has_waited_for(client, key, other, email):
    # The claim is older than the grace period, and its transaction commits during the kill.
    claims = client.lookups.claim(key, {"emails": email})
    time.sleep(2.1)
    with client.connection(key) as connection:
        connection.execute("BEGIN")
        claims.use(connection)
        connection.execute(client.sql(key, INSERT), (key, email))
        threading.Timer(0.2, lambda: connection.execute("COMMIT")).start()
        with pytest.raises(Taken):
            client.lookups.claim(other, {"emails": email})
        time.sleep(0.3)


def test_the_owner_takes_its_own_value_anew(client, key, email):
    client.add(key, email)
    client.run(key, "UPDATE {shard}.users SET email = NULL WHERE id = %s", key)
    claims = client.lookups.claim(key, {"emails": email})
    with client.connection(key) as connection, connection.transaction():
        claims.use(connection)
        connection.execute(
            client.sql(key, "UPDATE {shard}.users SET email = %s WHERE id = %s"), (email, key)
        )
    assert client.lookups.find("emails", email) == key


def test_a_to_z_are_a_to_z_and_other_letters_are_not(client, key, other):
    insert = "INSERT INTO {shard}.users (id, name) VALUES (%s, %s)"
    word = uuid.uuid4().hex
    claims = client.lookups.claim(key, {"names": f"ÄDA {word}"})
    with client.connection(key) as connection, connection.transaction():
        claims.use(connection)
        connection.execute(client.sql(key, insert), (key, f"ÄDA {word}"))
    with pytest.raises(Taken):
        client.lookups.claim(other, {"names": f"Äda {word.upper()}"})
    assert client.lookups.claim(other, {"names": f"äda {word}"})


def test_several_columns_of_several_types(client, key, other):
    values = (uuid.uuid4(), datetime.date(2026, 11, 28), 7)
    claims = client.lookups.claim(key, {"cards": values})
    insert = "INSERT INTO {shard}.cards (owner, number, since, kind) VALUES (%s, %s, %s, %s)"
    with client.connection(key) as connection, connection.transaction():
        claims.use(connection)
        connection.execute(client.sql(key, insert), (key, *values))
    assert client.lookups.find("cards", values) == key
    with pytest.raises(Taken):
        client.lookups.claim(other, {"cards": values})


def test_what_cannot_be_looked_up_is_refused(world, client, key, email):
    with pytest.raises(LookupUnusable, match="nothing cannot be used: the config does not define"):
        client.lookups.find("nothing", email)
    with pytest.raises(LookupUnusable, match="its columns are text, and the values given are int"):
        client.lookups.find("emails", 7)
    with pytest.raises(LookupUnusable, match="its columns are text, and the values given are int"):
        client.lookups.claim(key, {"emails": 7})
    with pytest.raises(LookupUnusable, match="3 columns, and the values given are 1 values"):
        client.lookups.claim(key, {"cards": email})
    for value in (1.5, True, None, datetime.datetime.now(), 1 << 63, "\ud800"):
        with pytest.raises(ValueUnusable):
            client.lookups.find("emails", value)
    with pytest.raises(LookupNotComplete, match="run `pgshard lookups build"):
        client.lookups.find("names", "ada")
    text = world.path.read_text()
    missing = Config.parse(text.replace("lookups.cards", "lookups.lost"), world.path)
    lookups = Lookups(RecoveryContext(Directory(missing)))
    with pytest.raises(LookupUnusable, match=r"shard \d+ on host db\d does not have it"):
        lookups.find("lost", (uuid.uuid4(), datetime.date(2026, 1, 1), 7))
    changed = Config.parse(text.replace('"ascii"', '"none"'), world.path)
    lookups = Lookups(RecoveryContext(Directory(changed)))
    with pytest.raises(LookupUnusable, match=r"has it as .* fold ascii.*, and the config says"):
        lookups.claim(key, {"names": "ada"})


def test_a_batch_claims_all_or_says_which_is_taken(client):
    keys = [next(_keys) for _ in range(1000)]
    emails = [f"{uuid.uuid4()}@example.com" for _ in keys]
    requests = [client.lookups.request("emails", email, key) for key, email in zip(keys, emails)]
    with pytest.raises(ClaimedTwice):
        client.lookups.claimer.claim_all([*requests, requests[0]])
    claims = client.lookups.claimer.claim_all(requests)
    assert [one.request for one in claims] == requests
    assert len({one.id for one in claims}) == 1000
    assert client.lookups.find_all("emails", emails) == keys
    # One of the next batch is taken.
    owner, email = next(_keys), f"{uuid.uuid4()}@example.com"
    client.add(owner, email)
    batch = [
        client.lookups.request("emails", one, next(_keys))
        for one in [*(f"{uuid.uuid4()}@example.com" for _ in range(200)), email]
    ]
    won = {}
    with pytest.raises(Taken, match=str(owner)):
        client.lookups.claimer.claim_all(batch, None, won)
    # What it has claimed so far can be used.
    assert len(won) > 100
    assert batch[-1].order not in won


def test_a_row_is_not_inserted_twice_with_one_value(client, key, email):
    client.add(key, email)
    request = client.lookups.request("emails", email, key, inserts=True)
    with pytest.raises(Taken):
        client.lookups.claimer.claim_all([request])
    client.run(key, "DELETE FROM {shard}.users WHERE id = %s", key)
    assert client.lookups.claimer.claim_all([request])


def test_a_claim_that_gets_no_connection_in_time_is_busy(client, key, other, email, monkeypatch):
    from pgshard.lookups import claimer

    client.lookups.claim(key, {"emails": email})
    monkeypatch.setattr(claimer, "WAIT_MAX", 0.3)
    places = [host.places for host in client.lookups._connections._hosts.values()]
    for place in places * 4:
        place.acquire()
    began = time.monotonic()
    try:
        with pytest.raises(Busy):
            client.lookups.claim(other, {"emails": email})
    finally:
        for place in places * 4:
            place.release()
    assert time.monotonic() - began < 2


def test_claims_wait_for_no_connection_of_a_transaction(client, key, email):
    # As many as a pool has, all claiming, on four connections to each host.
    errors, done = [], []

    def work(number: int) -> None:
        try:
            mine = next(_keys)
            client.add(mine, f"{number}.{email}")
            done.append(mine)
        except Exception as error:  # noqa: BLE001 # the test shows any error
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(done) == 16
    for host in client.lookups._connections._hosts.values():
        assert len(host.control._idle) <= 4


def test_a_shard_that_moves_keeps_its_entries_and_rows(world, client, key, other, email):
    client.add(key, email)
    for shard in {
        client.directory.shard_of_key(key),
        client.lookups.claimer.value_shard(client.lookups.request("emails", email, key)),
    }:
        world.move(shard)
    # Its map is of before.
    assert client.lookups.find("emails", email) == key
    with pytest.raises(Taken):
        client.lookups.claim(other, {"emails": email})


def test_the_code_of_the_page_claims_and_finds(world, client, key, other, email, monkeypatch):
    page = (ROOT / "docs" / "lookups.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", section(page, "In Python"), re.DOTALL)
    monkeypatch.chdir(world.folder)
    names = {}
    exec(compile(code, "lookups.md", "exec"), names)
    for one in (key, other):
        schema = client.directory.schema(client.directory.shard_of_key(one))
        with (
            client.connection(one) as connection,
            contextlib.nullcontext() if one == key else pytest.raises(Taken),
        ):
            names["register"](connection, schema, one, email)
    assert names["lookups"].find("emails", email) == key
    names["lookups"].close()


def section(page, title):
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


class Rival(threading.Thread):
    """Claims and gives up a few values for a few keys, and is rolled back or killed now and
    then."""

    def __init__(self, world: World, seed: int, keys: list[int], values: list[str]):
        super().__init__()
        self.client, self.random = Client(world), random.Random(seed)
        self.client.lookups = Lookups(self.client.context, grace=self.random.uniform(0, 0.3))
        self.keys, self.values, self.end = keys, values, time.monotonic() + 1.5
        self.errors, self.written, self.longest = [], 0, 0.0

    def run(self) -> None:
        # A slow machine has more time, until something was written.
        while not self.errors and time.monotonic() < self.end + (60 if self.written < 1 else 0):
            began = time.monotonic()
            try:
                self.step()
            except (Taken, Busy, ClaimSpent):
                pass
            except psycopg.OperationalError:
                pass  # Its connection was killed.
            except psycopg.errors.UniqueViolation:
                pass  # Two processes write the same row.
            except Exception as error:  # noqa: BLE001 # the test shows any error
                self.errors.append(error)
            self.longest = max(self.longest, time.monotonic() - began)
        self.client.close()

    def step(self) -> None:
        key, value = self.random.choice(self.keys), self.random.choice(self.values)
        what = self.random.choice(["write", "write", "write", "delete", "roll back", "kill"])
        if what == "delete":
            self.client.run(key, "DELETE FROM {shard}.users WHERE id = %s", key)
            return
        claims = self.client.lookups.claim(key, {"emails": value})
        self.rest()
        with self.client.connection(key) as connection, connection.transaction() as transaction:
            claims.use(connection)
            self.rest()
            connection.execute(
                self.client.sql(key, f"{INSERT} ON CONFLICT (id) DO UPDATE SET email = %s"),
                (key, value, value),
            )
            self.rest()
            if what == "roll back":
                raise psycopg.Rollback(transaction)
            if what == "kill":
                connection.cut()
        self.written += what == "write"

    def rest(self) -> None:
        """Sometimes, so that others get in between."""
        if self.random.random() < 0.2:
            time.sleep(self.random.uniform(0, 0.4))


@pytest.mark.parametrize("seed", range(6))
def test_rivals_leave_each_value_with_one_key(world, client, seed):
    """One table with UNIQUE is the judge: it takes what stands in all shards in the end."""
    keys = [next(_keys) for _ in range(4)]
    values = [f"{uuid.uuid4()}@example.com" for _ in range(3)]
    rivals = [Rival(world, seed * 100 + number, keys, values) for number in range(8)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert [error for rival in rivals for error in rival.errors] == []
    rows = [
        row
        for key in keys
        for row in client.run(key, "SELECT email, id FROM {shard}.users WHERE id = %s", key)
    ]
    with world.superuser("db1") as judge:
        judge.execute("CREATE TEMPORARY TABLE judge (email text UNIQUE, id bigint)")
        for row in rows:
            judge.execute("INSERT INTO judge VALUES (%s, %s)", row)
    assert sum(rival.written for rival in rivals) > 5
    for email, id in rows:
        assert client.lookups.find("emails", email) == id, "an entry leads to every row"
    # What the dead have left is no obstacle.
    for value in set(values) - {email for email, _ in rows}:
        client.add(next(_keys), value)
    assert max(rival.longest for rival in rivals) < 10
