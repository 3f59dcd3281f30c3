"""Many requests at a time, as an ASGI server makes them: each has a thread for the ORM, and gives
back what it took."""

import asyncio
import gc
import json
import threading
import time
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.usefixtures("db")

U = 3


@pytest.fixture
def in_use(world):
    from pgshard.django.backend import pools

    pools.release()
    return lambda: sum(pool.in_use for pool in pools._pools.by_host.values())


class Browser:
    """One request to the application."""

    def __init__(self, path, query=""):
        from asgiref.testing import ApplicationCommunicator
        from django.core.asgi import get_asgi_application

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", b"testserver")],
        }
        self.talk = ApplicationCommunicator(get_asgi_application(), scope)

    async def send(self):
        await self.talk.send_input({"type": "http.request", "body": b"", "more_body": False})

    async def receive(self):
        """The next message from the application. Raises its error, if it has ended with one."""
        sent = asyncio.ensure_future(self.talk.output_queue.get())
        await asyncio.wait(
            (sent, self.talk.future), timeout=60, return_when=asyncio.FIRST_COMPLETED
        )
        if not sent.done():
            sent.cancel()
            assert self.talk.future.done(), "the application sends nothing"
            await self.talk.future
        return await sent

    async def answer(self):
        """The status and the body, when the body is complete."""
        await self.send()
        start = await self.receive()
        body, more = b"", True
        while more:
            part = await self.receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        await self.talk.wait(timeout=60)
        return start["status"], body

    async def leave(self):
        """Closes the connection."""
        await self.talk.send_input({"type": "http.disconnect"})
        await self.talk.wait(timeout=60)


@contextmanager
def uncollected():
    """Without Python's cycle collector, which runs at any time and would give back connections that
    nothing else gives back."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def eventually(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.02)
    assert condition()


def test_many_requests_at_a_time_give_their_connections_back(m, in_use):
    photos = [m.Photo.objects.create(user_id=user, title=f"photo {user}") for user in range(16)]
    m.Photo.objects.bulk_create([m.Photo(user_id=U, title=f"{n:03d}") for n in range(100)])
    from pgshard.django import release

    release()

    async def work():
        paths = [f"/photos/{photo.pk}" for photo in photos] + [
            f"/users/{user}/photos" for user in range(16)
        ]
        paths += [f"/photos/{photos[U].pk}/like"] * 8 + [f"/users/{U}/titles"] * 4
        answers = await asyncio.gather(*(Browser(path).answer() for path in paths))
        await eventually(lambda: in_use() == 0)
        return dict(zip(paths, answers)), answers

    found, answers = asyncio.run(work())
    assert {status for status, _ in answers} == {200}
    for photo in photos:
        assert json.loads(found[f"/photos/{photo.pk}"][1])["title"] == photo.title
    assert json.loads(found["/users/5/photos"][1]) == {"titles": ["photo 5"]}
    assert found[f"/users/{U}/titles"][1].decode().split("\n")[:100] == [
        f"{n:03d}" for n in range(100)
    ]
    assert m.Photo.objects.get(pk=photos[U].pk).likes == 8


def test_a_browser_that_leaves_keeps_nothing(m, in_use):
    photo = m.Photo.objects.create(user_id=U, title="x")
    m.Photo.objects.bulk_create([m.Photo(user_id=U, title=f"{n:04d}") for n in range(2000)])
    from pgshard.django import release

    release()

    async def work():
        waiting, streaming = (
            Browser(f"/photos/{photo.pk}/like", "wait=1"),
            Browser(f"/users/{U}/titles"),
        )
        await waiting.send()
        await streaming.send()
        start = await streaming.talk.receive_output(timeout=60)
        assert start["status"] == 200
        await streaming.talk.receive_output(timeout=60)

        def liked():
            return in_use() > 0

        await eventually(liked)
        await streaming.leave()
        await waiting.leave()
        await eventually(lambda: in_use() == 0)

    asyncio.run(work())
    assert m.Photo.objects.for_key(U).count() == 2001


def test_a_browser_that_leaves_while_rows_are_read_keeps_nothing(m, in_use):
    from django.db.models.signals import post_init

    m.Photo.objects.bulk_create([m.Photo(user_id=U, title=f"{n:04d}") for n in range(100)])
    from pgshard.django import release

    release()
    reading, gone = threading.Event(), threading.Event()

    def slowly(instance, **_):
        if instance.title == "0055":
            reading.set()
            gone.wait(60)

    async def work():
        streaming = Browser(f"/users/{U}/titles")
        await streaming.send()
        await eventually(reading.is_set)
        await streaming.talk.send_input({"type": "http.disconnect"})
        # The request is cancelled now, during a call to the database that goes on.
        for _ in range(100):
            await asyncio.sleep(0)
        gone.set()
        await streaming.talk.wait(timeout=60)
        assert in_use() == 0

    post_init.connect(slowly, sender=m.Photo)
    try:
        with uncollected():
            asyncio.run(work())
    finally:
        post_init.disconnect(slowly, sender=m.Photo)


def test_an_answer_that_breaks_off_keeps_nothing(m, in_use):
    m.Photo.objects.bulk_create([m.Photo(user_id=U, title=f"{n:04d}") for n in range(100)])
    from pgshard.django import release

    release()

    async def work():
        streaming = Browser(f"/users/{U}/titles", "fail=0055")
        # `failed` keeps the error and everything it refers to, as a server may that logs it.
        with pytest.raises(ValueError, match="0055 cannot be sent") as failed:
            await streaming.answer()
        await eventually(lambda: in_use() == 0)
        assert failed.value

    with uncollected():
        asyncio.run(work())
