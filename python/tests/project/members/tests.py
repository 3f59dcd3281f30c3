"""Look-ups in the tests of a project."""

from django.db import IntegrityError, transaction
from django.test import TestCase, TransactionTestCase

from pgshard.django import alias_of_key

from .models import Member

EMAIL = "ada@example.com"


class Values(TestCase):
    """What one test claims is no obstacle to the next."""

    databases = "__all__"

    def check(self, key, other):
        member = Member.objects.create(id=key, email=EMAIL)
        self.assertEqual(Member.objects.get(email=EMAIL), member)
        with (
            self.assertRaises(IntegrityError),
            transaction.atomic(using=alias_of_key(other)),
        ):
            Member.objects.create(id=other, email=EMAIL)
        self.assertEqual(
            Member.objects.get_or_create(email=EMAIL, defaults={"id": other}), (member, False)
        )

    def test_one(self):
        self.check(1, 2)

    def test_two(self):
        self.check(2, 1)


class Emptied(TransactionTestCase):
    """The same with tables that are emptied after each test."""

    databases = "__all__"

    def check(self, key, other):
        member = Member.objects.create(id=key, email=EMAIL)
        self.assertEqual(Member.objects.get(email=EMAIL), member)
        with self.assertRaises(IntegrityError):
            Member.objects.create(id=other, email=EMAIL)
        member.delete()
        self.assertEqual(Member.objects.create(id=other, email=EMAIL).id, other)

    def test_one(self):
        self.check(1, 2)

    def test_two(self):
        self.check(2, 1)
