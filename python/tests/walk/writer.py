"""A process of a website: adds, likes and removes photos through the project's own functions, until
it is told to end.

    writer.py NUMBER

It writes what was acknowledged into `acknowledged-NUMBER`, one line each. It reads its own photos
all the time, and fails if one is missing or differs from what was written. It also uses photos of
an earlier process with its number.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import django

sys.path.insert(0, os.getcwd())
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from photos import services  # noqa: E402

USERS = range(5, 61, 5)
"""The users who have photos from the start, on shards of both servers."""


class Writer:
    def __init__(self, number):
        self.number = number
        self.albums, self.photos, self.likes = [], {}, Counter()
        self.path = Path(f"acknowledged-{number}")
        self.log = self.path.open("a+")
        self.log.seek(0)
        for line in self.log:
            self.learn(*json.loads(line))
        self.count = len(self.photos)
        # Photos of many users; both writers like them.
        self.seeds = json.loads(Path("seeds").read_text())

    def learn(self, what, user, row, *more):
        if what == "album":
            self.albums.append((user, row))
        elif what == "photo":
            self.photos[row] = user, *more
        elif what == "like":
            self.likes[row] += 1
        elif what == "remove":
            del self.photos[row]

    def acknowledge(self, *line):
        self.learn(*line)
        print(json.dumps(line), file=self.log, flush=True)

    def step(self):
        what = random.choices(
            ["user", "album", "photo", "like", "seed", "remove"], [0.5, 2, 12, 8, 4, 3]
        )[0]
        if what == "user":
            user = User.objects.create(username=f"{self.number} {time.time_ns()}").pk
            self.acknowledge("album", user, services.add_album(user, "first"))
        elif what == "album" or not self.albums:
            user = random.choice(USERS)
            self.acknowledge("album", user, services.add_album(user, "another"))
        elif what == "photo" or not self.photos:
            user, album = random.choice(self.albums)
            title, category = f"{self.number}: {time.time_ns()}", random.choice([None, 1])
            photo = services.add_photo(user, album, category, title)
            self.acknowledge("photo", user, photo, title, category, album)
        elif what == "seed":
            user, photo, _ = random.choice(self.seeds)
            services.like(user, photo)
            self.acknowledge("like", user, photo)
        else:
            photo, (user, *_) = random.choice(list(self.photos.items()))
            {"like": services.like, "remove": services.remove}[what](user, photo)
            self.acknowledge(what, user, photo)

    def look(self):
        """Reads the photos of a user: ours must be as we wrote them."""
        user, _ = random.choice(self.albums)
        found = sorted(
            row for row in services.photos_of(user) if row[1].startswith(f"{self.number}:")
        )
        ours = [
            (id, title, self.likes[id])
            for id, (owner, title, *_) in self.photos.items()
            if owner == user
        ]
        assert found == sorted(ours), (user, set(found) ^ set(ours))


if __name__ == "__main__":
    ends, ready = [], None
    signal.signal(signal.SIGTERM, lambda *_: ends.append(True))
    writer = Writer(sys.argv[1])
    while not ends:
        writer.step()
        writer.look()
        if not ready:
            # This says that it is at work.
            ready = Path(f"writer-{writer.number}.new")
            ready.write_text(f"{os.getpid()}\n")
            ready.replace(f"writer-{writer.number}.pid")
        time.sleep(0.05)
