"""Look-ups on an unsharded host, against a real server: the table itself is the look-up, and its
own unique index keeps the values unique."""

import datetime
import threading
import uuid

import psycopg
import pytest
from one_database import OneDatabase

from pgshard import (
    ClaimedTwice,
    Directory,
    LayoutChanged,
    Lookups,
    LookupUnusable,
    Placement,
    RecoveryContext,
    Taken,
    ValueUnusable,
)
from pgshard.lookups.table import lower_of

TABLES = """
CREATE TABLE app.users (id bigint PRIMARY KEY, email text UNIQUE, name varchar(80), place int);
CREATE UNIQUE INDEX ON app.users (lower(name));
CREATE TABLE app.cards (owner bigint NOT NULL, number uuid, since date, kind smallint,
    UNIQUE (number, since, kind));
CREATE TABLE app.loose (id bigint PRIMARY KEY, code text);
CREATE TABLE app.folded (id bigint PRIMARY KEY, code text);
CREATE TABLE app.parts (id bigint PRIMARY KEY, code text) PARTITION BY HASH (id);
CREATE TABLE app.sums (id bigint PRIMARY KEY, code numeric UNIQUE);
CREATE TABLE app.weak (id bigint, code text UNIQUE);
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
[lookups.cards]
table = "cards"
columns = ["number", "since", "kind"]
key = "owner"
""" + "".join(
    f'[lookups.{name}]\ntable = "{name}"\ncolumns = ["code"]\nkey = "id"\n'
    for name in ("loose", "parts", "sums", "weak", "gone")
)
LOOKUPS += '[lookups.folded]\ntable = "folded"\ncolumns = ["code"]\nkey = "id"\nfold = "ascii"\n'
INSERT = "INSERT INTO app.users (id, email) VALUES (%s, %s)"
_keys = iter(range(1, 1 << 40))


@pytest.fixture(scope="module")
def world():
    made = OneDatabase(TABLES)
    made.path.write_text(made.path.read_text() + LOOKUPS)
    yield made
    made.close()


@pytest.fixture
def lookups(world):
    found = Lookups(RecoveryContext(Directory.open(world.path)))
    yield found
    found.close()


@pytest.fixture
def old(world):
    with world.connect("db1") as connection:
        connection.autocommit = True
        yield connection


@pytest.fixture
def key():
    return next(_keys)


@pytest.fixture
def other():
    return next(_keys)


@pytest.fixture
def email():
    return f"{uuid.uuid4()}@example.com"


def register(lookups, connection, key, email):
    claims = lookups.claim(key, {"emails": email})
    with connection.transaction():
        claims.use(connection)
        connection.execute(INSERT, [key, email])


def test_a_value_has_one_key(lookups, old, key, other, email):
    assert lookups.find("emails", email) is None
    register(lookups, old, key, email)
    assert lookups.find("emails", email) == key
    with pytest.raises(Taken) as error:
        lookups.claim(other, {"emails": email})
    assert (error.value.lookup, error.value.key) == ("emails", str(key))
    # One's own again, and a value that is given up.
    lookups.claim(key, {"emails": email}).use(old)
    old.execute("UPDATE app.users SET email = NULL WHERE id = %s", [key])
    assert lookups.find("emails", email) is None
    register(lookups, old, other, email)
    assert lookups.find_all("emails", ["no", email, "a\0b", email]) == [None, other, None, other]
    assert lookups.find_all("emails", []) == []


def test_a_row_of_another_caller_is_refused_by_the_index(lookups, old, key, other, email):
    claims = lookups.claim(key, {"emails": email})
    old.execute(INSERT, [other, email])
    with old.transaction(force_rollback=True):
        claims.use(old)
        with pytest.raises(psycopg.errors.UniqueViolation):
            old.execute(INSERT, [key, email])
    assert lookups.find("emails", email) == other


def test_rivals_leave_each_value_with_one_key(world, lookups, email):
    written, refused = [], []

    def rival():
        with world.connect("db1") as connection:
            for turn in range(20):
                mine = next(_keys)
                try:
                    register(lookups, connection, mine, f"{turn}-{email}")
                    written.append(turn)
                except (Taken, psycopg.errors.UniqueViolation):
                    refused.append(turn)

    threads = [threading.Thread(target=rival) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(written) == list(range(20))
    assert len(refused) == 60


def test_a_to_z_are_a_to_z_and_other_letters_are_not(lookups, old, key, other):
    old.execute("INSERT INTO app.users (id, name) VALUES (%s, %s)", [key, f"ÉVE {key}"])
    assert lookups.find("names", f"Éve {key}") == key
    assert lookups.find("names", f"éve {key}") is None
    with pytest.raises(Taken):
        lookups.claim(other, {"names": f"Éve {key}"})


def test_several_columns_of_several_types(lookups, old, key, other):
    number, day = uuid.uuid4(), datetime.date(2026, 5, 1)
    old.execute("INSERT INTO app.cards VALUES (%s, %s, %s, 3)", [key, number, day])
    assert lookups.find("cards", (number, day, 3)) == key
    assert lookups.find("cards", (number, day, 1 << 40)) is None
    assert lookups.find("cards", (number, datetime.date.max, 3)) is None
    with pytest.raises(Taken):
        lookups.claim(other, {"cards": (number, day, 3)})


def test_what_cannot_be_looked_up_is_refused(lookups, key, email):
    with pytest.raises(LookupUnusable, match="its columns are text, and the values given are int"):
        lookups.find("emails", 7)
    with pytest.raises(LookupUnusable, match="3 columns"):
        lookups.claim(key, {"cards": (7, 8)})
    with pytest.raises(ValueUnusable):
        lookups.find("emails", "\ud800")
    with pytest.raises(LookupUnusable, match="does not define it"):
        lookups.find("nobody", email)
    request = lookups.request("emails", email, key)
    with pytest.raises(ClaimedTwice):
        lookups.tables.claim_all([request, request], [])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("loose", 'CREATE UNIQUE INDEX CONCURRENTLY ON "app"."loose" ("code")'),
        ("parts", "an ordinary table"),
        ("sums", "each column must be"),
        ("weak", "its key column must be"),
        ("gone", "no such table"),
    ],
)
def test_a_table_that_cannot_be_a_look_up_is_refused(lookups, key, name, says):
    for call in (lambda: lookups.find(name, "a"), lambda: lookups.claim(key, {name: "a"})):
        with pytest.raises(LookupUnusable) as error:
            call()
        assert says in str(error.value)
        assert "host db1" in str(error.value)


def test_the_statement_of_the_error_mends_it(world, lookups, old, key):
    old.execute("INSERT INTO app.loose VALUES (1, 'a'), (2, 'a')")
    for index in (
        "CREATE UNIQUE INDEX ON app.loose (code) WHERE id > 1",
        "CREATE UNIQUE INDEX ON app.loose (code, id)",
        "CREATE UNIQUE INDEX ON app.loose (md5(code || id))",
    ):
        old.execute(index)
    with pytest.raises(LookupUnusable) as error:
        lookups.find("loose", "a")
    statement = str(error.value).split("`")[1]
    # An index that could not be built stays, invalid.
    with pytest.raises(psycopg.errors.UniqueViolation):
        old.execute(statement)
    with pytest.raises(LookupUnusable):
        lookups.find("loose", "a")
    old.execute("DELETE FROM app.loose WHERE id = 2")
    old.execute(statement)
    assert lookups.find("loose", "a") == 1


@pytest.mark.parametrize(
    ("index", "is_taken"),
    [
        ("pg_catalog.lower(code)", True),
        ('pg_catalog.lower(code COLLATE "C")', True),
        ("code", False),
        ("app.lower(code)", False),
        ("pg_catalog.lower(code), id", False),
    ],
)
def test_an_index_that_folds_otherwise_is_refused(world, lookups, old, index, is_taken):
    with world.superuser("db1") as connection:
        # PostgreSQL writes this one without its schema.
        connection.execute(
            "CREATE OR REPLACE FUNCTION app.lower(text) RETURNS text IMMUTABLE LANGUAGE sql"
            " RETURN $1"
        )
        connection.execute("ALTER DATABASE app SET search_path = app, pg_catalog")
    old.execute(f"CREATE UNIQUE INDEX folded_code ON app.folded ({index})")
    try:
        if is_taken:
            assert lookups.find("folded", "Ada") is None
        else:
            with pytest.raises(LookupUnusable, match="no unique index"):
                lookups.find("folded", "Ada")
    finally:
        old.execute("DROP INDEX app.folded_code")
        with world.superuser("db1") as connection:
            connection.execute("ALTER DATABASE app RESET search_path")


def test_a_shard_that_leaves_the_host_ends_the_call(world, lookups, old, key, email):
    claims = lookups.claim(key, {"emails": email})
    place = lookups.directory.place(claims.shard)
    lookups.directory.learn(claims.shard, Placement("db2", place.epoch + 1))
    with pytest.raises(LayoutChanged, match="make the call again"):
        claims.use(old)
    assert lookups.tables.host is None


@pytest.mark.parametrize(
    ("expression", "collation"),
    [
        ("lower(name)", ""),
        ("lower((name)::text)", ""),
        ('lower((name COLLATE "C"))', '"C"'),
        ('lower(((name)::text COLLATE app."tr x"))', 'app."tr x"'),
        ("lower((name || 'x'::text))", None),
        ("lower((name)::character(9))", None),
        ("upper(name)", None),
        ('lower("name2")', None),
        ('lower((name COLLATE "C")) || lower(name)', None),
    ],
)
def test_which_expressions_fold_a_column(expression, collation):
    assert lower_of(expression, "name") == collation
