"""Writes and reads as users do until it is told to stop, then checks that everything is there."""

import random
import threading
import time
from pathlib import Path

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from pgshard.django import release
from photos import actions
from photos.models import Follow, Like, Photo

SECONDS_MAX = 300.0
"""The load ends by itself after this many seconds."""
PAUSE = 0.005
"""Seconds between two calls of a writer, so that the servers and the mover of shards get a
processor too."""


class Writer(threading.Thread):
    """Uploads and likes photos, and remembers what was acknowledged. The first call that fails ends
    it."""

    def __init__(self, users: list[int], name: str, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.users, self.stop, self.chance = users, stop, random.Random(name)
        self.photos: dict[int, str] = {}
        self.likes: list[tuple[int, int]] = []
        self.calls, self.longest = 0, 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        """Runs until it is told to stop."""
        try:
            while not self.stop.is_set():
                began = time.monotonic()
                self.call()
                self.longest = max(self.longest, time.monotonic() - began)
                self.calls += 1
                # As at the end of a request.
                release()
                time.sleep(PAUSE)
        except Exception as error:  # noqa: BLE001 # the check at the end shows any error
            self.error = error
        finally:
            release()

    def call(self) -> None:
        """Does one of the things that users do."""
        user, what = self.chance.choice(self.users), self.chance.random()
        if what < 0.5 or not self.photos:
            title = f"{self.name} {len(self.photos)}"
            self.photos[actions.upload(user, title).pk] = title
        elif what < 0.8:
            photo = self.chance.choice(list(self.photos))
            if actions.like(photo, user):
                self.likes.append((photo, user))
        elif what < 0.95:
            photo = self.chance.choice(list(self.photos))
            if Photo.objects.get(pk=photo).title != self.photos[photo]:
                raise AssertionError(f"photo {photo} is not the one that was asked for")
        else:
            actions.feed(user)


class Command(BaseCommand):
    """The command."""

    help = (
        "Writes and reads as users do until a file appears, then checks that everything is there."
    )

    def add_arguments(self, parser):
        """The numbers of users and writers, and the files."""
        parser.add_argument("--users", type=int, default=16)
        parser.add_argument("--writers", type=int, default=4)
        parser.add_argument("--stop", type=Path, required=True, help="ends when this file is there")
        parser.add_argument(
            "--started", type=Path, help="this file is made when all writers are writing"
        )

    def handle(self, *, users, writers, stop, started, **_):
        """Runs it. Raises `CommandError` if a call failed, or a row is missing or exists twice."""
        before = Photo.objects.across_shards().count(), Like.objects.across_shards().count()
        ids = [
            User.objects.get_or_create(username=f"user{number}")[0].pk
            for number in range(1, users + 1)
        ]
        for user in ids:
            for whom in ids[:4]:
                Follow.objects.get_or_create(user_id=user, whom=whom)
        event = threading.Event()
        threads = [Writer(ids, f"writer{number}", event) for number in range(writers)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + SECONDS_MAX
        while (
            time.monotonic() < end
            and not stop.exists()
            and any(thread.is_alive() for thread in threads)
        ):
            if started is not None and all(thread.calls for thread in threads):
                started.touch()
            time.sleep(0.05)
        event.set()
        for thread in threads:
            thread.join()
        self.audit(threads, before)

    def audit(self, threads, before):
        """Compares what was acknowledged with what is there."""
        wrong = [
            f"{thread.name}: {type(thread.error).__name__}: {thread.error}"
            for thread in threads
            if thread.error
        ]
        photos = {id: title for thread in threads for id, title in thread.photos.items()}
        likes = {pair for thread in threads for pair in thread.likes}
        there = {photo.pk: photo for photo in Photo.objects.by_ids(photos)}
        wrong += [f"photo {id} is lost" for id in photos if id not in there]
        wrong += [
            f"photo {id} is not the one that was written"
            for id, photo in there.items()
            if photo.title != photos[id]
        ]
        for id, photo in there.items():
            count = sum(1 for liked, _ in likes if liked == id)
            if not photo.likes == photo.liked.count() == count:
                wrong.append(
                    f"photo {id} has {photo.likes} likes, {photo.liked.count()} rows of them, and"
                    f" got {count}"
                )
        after = Photo.objects.across_shards().count(), Like.objects.across_shards().count()
        wanted = before[0] + len(photos), before[1] + len(likes)
        if after != wanted:
            wrong.append(f"there are {after} photos and likes, and there should be {wanted}")
        calls, longest = (
            sum(thread.calls for thread in threads),
            max(thread.longest for thread in threads),
        )
        self.stdout.write(
            f"{calls} calls, {sum(1 for thread in threads if thread.error)} failed; the longest"
            f" took {longest * 1000:.0f} ms\n{len(photos)} photos and {len(likes)} likes were"
            f" acknowledged, {len(there)} and {after[1] - before[1]} are there"
        )
        if wrong:
            raise CommandError("\n".join(wrong[:20]))
        self.stdout.write("nothing is lost, nothing is there twice")
