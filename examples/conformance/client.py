"""A client of a pgshard cluster in 160 lines, with psycopg and nothing of ours, for those who write
one in another language. It keeps the rules of docs/protocol.md:
`pgshard conformance serve -- python3 examples/conformance/client.py`. One thread, and a connection
a host; an application's client also limits how many callers wait, and pools its connections.
"""

import contextlib
import hashlib
import json
import random
import sys
import time
import uuid

import psycopg

RETRY_FOR = 15.0  # Longer than a fence's deadline of 10 s.
NEVER_AGAIN = ("CALL", "DO", "VACUUM", "CLUSTER")
LOOK = "SELECT state, epoch, peer, deadline_in_ms, last_fence_ago_ms, open_token, incoming_epoch FROM pgshard.look(%s)"


def shard_of(kind, key, shards):
    if kind == "integer":
        return int(key) % shards  # Python's % is never negative; most languages' is.
    data = uuid.UUID(key).bytes if kind == "uuid:sha256" else key.encode()
    return int(hashlib.sha256(data).hexdigest()[:15], 16) % shards


def decode(id):
    bits = id & (1 << 64) - 1  # 41 bits of milliseconds, 13 of the shard, 10 of a sequence, in a signed number.
    return {"ms": bits >> 23, "shard": bits >> 10 & 8191, "seq": bits & 1023}


class Look:
    """What a host reports about a shard."""

    def __init__(self, row):
        self.state, epoch, self.peer, deadline, ago, self.token, self.incoming = row
        self.epoch = epoch or 0
        self.overdue = self.state == "fenced" and deadline is not None and deadline < 0
        self.last_fence_ago = None if ago is None else max(ago, 0) / 1000


class Client:
    def __init__(self, asked):
        self.shards, self.prefix, self.hosts = asked["shards"], asked["prefix"], asked["hosts"]
        self.key = asked["key"]
        self.places = [tuple(place) for place in asked["map"]]
        self.connections = {}

    def learn(self, shard, host, epoch):
        if epoch > self.places[shard][1]:
            self.places[shard] = host, epoch  # The newest report counts, from any host.

    def connection(self, host):
        found = self.connections.get(host)
        if found is None or found.closed:
            found = psycopg.connect(self.hosts[host], autocommit=True, prepare_threshold=None)
            there = found.execute("SELECT shards, key_kind FROM pgshard.cluster").fetchone()
            if there != (self.shards, self.key):
                found.close()
                raise RuntimeError(f"host {host} has recorded {there}, which is not what the config says")
            self.connections[host] = found
        return found

    def ask(self, host, sql, *params):
        """A question about shards. Always of its own: never within the transaction that failed."""
        with psycopg.connect(self.hosts[host], autocommit=True) as connection:
            return connection.execute(sql, params).fetchone()

    def run(self, shard, texts, transaction):
        """The rows of the last statement. What failed is run again where nothing of it can have stayed."""
        since, rounds = time.monotonic(), 0
        while True:
            (host, epoch), began = self.places[shard], time.monotonic()
            connection = self.connection(host)
            try:
                return self.send(connection, shard, texts, transaction)
            except psycopg.Error as error:
                code = error.sqlstate or ""
                # The parser does not find at a signpost's view what it wants of a table: names and kinds, not SH001.
                may_be_move = code == "SH001" or code[:2] in ("42", "0A", "3F", "55")
                again = transaction or texts[0].split()[0].upper() not in NEVER_AGAIN
                if not (may_be_move and again):
                    raise
                if self.is_own(shard, host, epoch, code, began, since):
                    raise
                connection.close()  # Its session may remember the signpost.
                rounds += 1
                if rounds > 1:
                    self.wait(since)

    def send(self, connection, shard, texts, transaction):
        schema = f'"{self.prefix}{shard:04d}"'
        texts = [text.replace("{shard}", schema) for text in texts]
        with connection.transaction() if transaction else contextlib.nullcontext():
            cursors = [connection.execute(text) for text in texts]
        return cursors[-1].fetchall() if cursors[-1].description else []

    def is_own(self, shard, host, epoch, code, began, since):
        """Follows the shard until it is served. True: the error is the application's own."""
        unopened = None
        while True:
            look = Look(self.ask(host, LOOK, shard))
            if look.state == "serving":
                ran = time.monotonic() - began + 0.050
                disturbed = look.last_fence_ago is not None and look.last_fence_ago <= ran
                self.learn(shard, host, look.epoch)
                return not (code == "SH001" or disturbed or look.epoch > epoch)
            if look.state is None and look.incoming is None:
                raise RuntimeError(f"host {host} never had shard {shard}")
            if look.state == "fenced" and look.overdue and self.ask(host, "SELECT pgshard.expire_fence(%s)", shard)[0]:
                continue
            if look.state == "moved":
                peer = Look(self.ask(look.peer, LOOK, shard))
                if peer.state in ("serving", "fenced") and peer.epoch >= look.epoch:
                    self.learn(shard, look.peer, peer.epoch)
                    return False
                if peer.state == "moved" and peer.epoch > look.epoch:
                    host = look.peer  # It has moved on.
                    continue
                if peer.incoming is not None and peer.incoming >= look.epoch:
                    unopened = unopened or time.monotonic()
                    if time.monotonic() - unopened > 0.1 and look.token is not None:
                        self.ask(look.peer, "SELECT pgshard.finish_open(%s, %s)", shard, look.token)
            self.wait(since)

    def wait(self, since):
        waited = time.monotonic() - since
        if waited > RETRY_FOR:
            raise RuntimeError("the shard could not be used in time")
        time.sleep(min(max(waited / 4, 0.002), 0.050) * (1 - random.random() / 2))


def answer(client, asked):
    if asked["ask"] == "shard":
        return {"shard": shard_of(asked["kind"], asked["key"], asked["shards"])}
    if asked["ask"] == "decode":
        return decode(int(asked["id"]))
    if asked["ask"] == "map":
        for shard, (host, epoch) in enumerate(asked["map"]):
            client.learn(shard, host, epoch)
        return {}
    shard = shard_of("integer", asked["key"], client.shards)
    try:
        rows = client.run(shard, asked["sql"], asked["transaction"])
        return {"rows": [[None if value is None else str(value) for value in row] for row in rows]}
    except psycopg.Error as error:
        return {"error": error.sqlstate or "lost"}
    except RuntimeError as error:
        return {"error": str(error)}


client = None
for line in sys.stdin:
    asked = json.loads(line)
    if asked["ask"] == "open":
        client, said = Client(asked), {}
    else:
        said = answer(client, asked)
    print(json.dumps(said), flush=True)
