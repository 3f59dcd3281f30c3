# Creates 1000 rows on 100 shards, again and again, while others have some of their values.
import contextlib
import random

from django.db import IntegrityError, connections
from photos.models import Profile

from pgshard.django import alias

sent = []


def watch(execute, sql, params, many, context):
    if "photos_profile" in sql and "INSERT" in sql:
        sent.append(sql)
    return execute(sql, params, many, context)


source = random.Random(11)
rows = Profile.objects.across_shards()
written = 0
with contextlib.ExitStack() as stack:
    for shard in range(100):
        stack.enter_context(connections[alias(shard)].execute_wrapper(watch))
    for turn in range(4):
        users = range(10_000 * (turn + 1), 10_000 * (turn + 1) + 1000)
        batch = [
            Profile(user_id=user, name=f"name {user}", email=f"{user}@example.com")
            for user in users
        ]
        source.shuffle(batch)
        for _ in range(source.randint(1, 4)):
            taken = source.choice(batch)
            other = Profile(
                user_id=10_000_000 + written,
                name=f"other {written}",
                email=f"{written}@example.org",
            )
            name = source.choice(["name", "email"])
            setattr(other, name, getattr(taken, name).upper())
            with contextlib.suppress(IntegrityError):
                other.save()
                written += 1
        assert written, "the others have something"
        sent.clear()
        try:
            Profile.objects.bulk_create(batch)
        except IntegrityError as error:
            assert "belongs to key" in str(error), error
        else:
            raise AssertionError("a value is taken")
        assert sent == []
        assert rows.count() == written
        assert all(row.pk is None for row in batch)
        Profile.objects.filter(user_id__gte=10_000_000).across_shards().run(
            lambda some: some.delete()
        ).all()
        Profile.objects.bulk_create(batch)
        assert rows.count() == 1000
        assert {
            Profile.objects.filter(user_id__in=users).using(alias(shard)).count()
            for shard in range(100)
        } == {10}
        assert Profile.objects.get(email=batch[7].email) == batch[7]
        rows.run(lambda some: some.delete()).all()
        written = 0
