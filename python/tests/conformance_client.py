"""The package as a client for `pgshard conformance serve`: its core, and one connection to each
host."""

import json
import os
import sys
import time
from contextlib import nullcontext

import psycopg

from pgshard import Directory, PgshardError, Recovery, RecoveryContext, connect, met
from pgshard.ids import decode
from pgshard.keys import KeyKind, key_of_text, shard_of_key
from pgshard.stale import repeatable
from pgshard.template import render


class Client:
    def __init__(self):
        self.directory = Directory.open(os.environ["PGSHARD_CONFIG"])
        self.recovery_context = RecoveryContext(self.directory)
        self.connections = {}

    def connection(self, name):
        found = self.connections.get(name)
        if found is None or found.closed:
            found = connect(self.directory.host(name))
            self.directory.meet(found, self.directory.host(name))
            self.connections[name] = found
        return found

    def run(self, shard, texts, transaction):
        texts = [render(text, self.directory.schema(shard)) for text in texts]
        recovery = Recovery(self.recovery_context, shard)
        while True:
            place, began = self.directory.place(shard), time.monotonic()
            connection = self.connection(place.host)
            try:
                with connection.transaction() if transaction else nullcontext():
                    cursors = [connection.execute(text) for text in texts]
                return cursors[-1].fetchall() if cursors[-1].description else []
            except psycopg.Error as error:
                how = met(error.sqlstate, error.diag.message_primary or "")
                again = how is not None and (transaction or repeatable(texts[0]))
                if not again or not recovery.after(how, place, began, connection.close):
                    raise


def answer(client, asked):
    if asked["ask"] == "shard":
        kind = KeyKind(asked["kind"])
        return {"shard": shard_of_key(kind, key_of_text(kind, asked["key"]), asked["shards"])}
    if asked["ask"] == "decode":
        found = decode(int(asked["id"]))
        return {"ms": found.ms, "shard": found.shard, "seq": found.seq}
    if asked["ask"] == "map":
        client.directory.refresh()
        return {}
    try:
        shard = client.directory.shard_of_text(asked["key"])
        rows = client.run(shard, asked["sql"], asked["transaction"])
        return {"rows": [[None if value is None else str(value) for value in row] for row in rows]}
    except psycopg.Error as error:
        return {"error": error.sqlstate or "lost"}
    except PgshardError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    client = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["ask"] == "open":
            client, said = Client(), {}
        else:
            said = answer(client, asked)
        print(json.dumps(said), flush=True)
