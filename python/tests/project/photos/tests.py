"""Tests as users write them; both `manage.py test` and pytest run them."""

from django.db import DataError, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, runner
from django.test.testcases import DatabaseOperationForbidden

from pgshard.django import run_in_shard

from .models import Category, Photo


class Rollback(TestCase):
    """What one test writes is gone in the next."""

    databases = "__all__"

    @classmethod
    def setUpTestData(cls):
        cls.photo = Photo.objects.create(user_id=1, title="of the class")

    def test_one(self):
        Photo.objects.create(user_id=2, title="x")
        Category.objects.create(name="x")
        self.assertEqual(Photo.objects.across_shards().count(), 2)
        with self.assertNumQueries(1, using="shard-1"):
            Photo.objects.get(pk=self.photo.pk)

    def test_two(self):
        Photo.objects.create(user_id=2, title="y")
        self.assertEqual(Photo.objects.across_shards().count(), 2)
        self.assertEqual(Photo.objects.by_ids([self.photo.pk]), [self.photo])

    def test_hooks(self):
        def work():
            Photo.objects.create(user_id=2, title="x")
            transaction.on_commit(lambda: None, using="shard-2")

        with self.captureOnCommitCallbacks(using="shard-2") as hooks:
            run_in_shard(2, work)
        self.assertEqual(len(hooks), 1)

    def test_an_error_at_the_end(self):
        # Django checks deferred constraints after each test, and must not if the transaction has
        # failed.
        with self.assertRaises(DataError), connections["shard-1"].cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    def test_views(self):
        for _ in range(2):
            answer = self.client.get(f"/photos/{self.photo.pk}")
            self.assertEqual(answer.json()["title"], "of the class")
        self.assertEqual(Photo.objects.across_shards().count(), 1)


class Fixtures(TestCase):
    """The rows of a fixture, of two users and of no user, are each where they belong."""

    databases = "__all__"
    fixtures = ["rows"]

    def test_rows_are_there_once(self):
        self.assertEqual(Photo.objects.across_shards().count(), 2)
        self.assertEqual(
            [photo.title for photo in Photo.objects.filter(user_id=1)], ["of the first"]
        )
        self.assertEqual([tag.word for tag in Photo.objects.for_key(2).get().tags.all()], ["blue"])
        self.assertEqual(Category.objects.count(), 1)


class Named(TestCase):
    """Only the shards that the test names may be used."""

    databases = {"shard-1"}

    def test_allowed(self):
        Photo.objects.create(user_id=1, title="x")
        with self.assertRaises(DatabaseOperationForbidden):
            Photo.objects.create(user_id=2, title="x")


class Flush(TransactionTestCase):
    """Tables are emptied after each test."""

    databases = "__all__"

    def test_one(self):
        self.assertEqual(Photo.objects.across_shards().count(), 0)
        photo = Photo.objects.create(user_id=3, title="x")
        photo.tags.create(user_id=3, word="w")

    def test_two(self):
        self.assertEqual(Photo.objects.across_shards().count(), 0)
        Photo.objects.create(user_id=3, title="x")


class Copies(TestCase):
    """With `--parallel`, each process has a copy of the shards."""

    def test_own(self):
        photo = Photo.objects.create(user_id=1, title="x")
        with connections[photo._state.db].cursor() as cursor:
            cursor.execute("SELECT current_database()")
            name = cursor.fetchone()[0]
        if runner._worker_id:
            self.assertTrue(name.endswith(f"_shards_{runner._worker_id}"), name)


class Nothing(SimpleTestCase):
    """No database at all."""

    def test_forbidden(self):
        with self.assertRaises(DatabaseOperationForbidden):
            Photo.objects.for_key(1).count()
