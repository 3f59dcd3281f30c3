"""Tests of the project that docs/django-recipes.md makes under "Unique everywhere": a profile on
shards next to Django's user in `default`."""

from unittest import mock

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.test import TestCase, TransactionTestCase
from photos.accounts import SignUpForm
from photos.models import Profile

from pgshard.django import Busy, alias_of_key

PASSWORD = "a long secret"


class Profiles(TransactionTestCase):
    databases = "__all__"

    def sign_up(self, name="Ada", email="ada@example.com"):
        return self.client.post("/sign-up", {"name": name, "email": email, "password": PASSWORD})

    def test_signing_up_makes_a_user_in_default_and_a_profile_on_the_users_shard(self):
        self.assertRedirects(self.sign_up(), "/", fetch_redirect_response=False)
        user = User.objects.get()
        self.assertEqual(user._state.db, "default")
        found = [
            Profile.objects.get(name="Ada"),
            Profile.objects.get(email="ada@example.com"),
            Profile.objects.get(name__iexact="ADA"),
            Profile.objects.get(email__iexact="ADA@EXAMPLE.COM"),
            user.profile,
        ]
        self.assertEqual({row.pk for row in found}, {found[0].pk})
        self.assertEqual({row._state.db for row in found}, {alias_of_key(user.pk)})
        self.assertFalse(Profile.objects.filter(name="ADA").exists())
        self.assertFalse(Profile.objects.filter(email="eve@example.com").exists())

    def test_a_conflict_is_an_error_of_its_field(self):
        self.sign_up()
        response = self.sign_up("ADA", "Ada@Example.com")
        self.assertEqual(response.status_code, 200)
        self.assertEqual(
            response.context["form"].errors,
            {
                "name": ["Profile with this Name already exists."],
                "email": ["Profile with this Email already exists."],
            },
        )
        response = self.sign_up("Eve", "ada@example.com")
        self.assertEqual(list(response.context["form"].errors), ["email"])
        self.assertEqual(User.objects.count(), 1)
        self.assertEqual(Profile.objects.across_shards().count(), 1)
        self.assertEqual(self.sign_up("Eve", "eve@example.com").status_code, 302)

    def test_a_conflict_since_the_form_was_checked_is_an_error_too_and_leaves_no_user(self):
        save = SignUpForm.save

        def late(form):
            if not User.objects.exists():
                other = User.objects.create_user("other")
                Profile.objects.create(user=other, name="other", email="ada@example.com")
            return save(form)

        with mock.patch.object(SignUpForm, "save", late):
            response = self.sign_up()
        self.assertEqual(response.status_code, 200)
        self.assertEqual(
            response.context["form"].errors, {"email": ["Profile with this Email already exists."]}
        )
        self.assertEqual([user.username for user in User.objects.all()], ["other"])
        # The user name was claimed, and is free.
        self.assertEqual(self.sign_up("Ada", "ada@example.org").status_code, 302)

    def test_a_user_logs_in_by_e_mail(self):
        self.sign_up()
        user = User.objects.get()
        for email in ("ada@example.com", "ADA@example.com"):
            response = self.client.post("/login", {"username": email, "password": PASSWORD})
            self.assertEqual(response.status_code, 302)
            self.assertEqual(self.client.get("/whoami").json(), {"id": user.pk})
            self.client.logout()
        self.assertIsNone(authenticate(username="ada@example.com", password="wrong"))
        self.assertIsNone(authenticate(username="eve@example.com", password=PASSWORD))
        self.assertIsNone(authenticate(username=None, password=PASSWORD))
        self.assertEqual(self.client.get("/whoami").json(), {"id": None})

    def test_an_address_changes_and_the_former_one_is_free(self):
        self.sign_up()
        self.sign_up("Eve", "eve@example.com")
        ada = Profile.objects.get(name="Ada").user
        self.client.force_login(ada, "photos.accounts.EmailBackend")
        response = self.client.post("/profile", {"name": "Ada", "email": "EVE@example.com"})
        self.assertEqual(
            response.context["form"].errors, {"email": ["Profile with this Email already exists."]}
        )
        response = self.client.post("/profile", {"name": "ada", "email": "ada@example.org"})
        self.assertEqual(response.status_code, 302)
        self.assertEqual(Profile.objects.get(email="ada@example.org").user, ada)
        self.assertEqual(Profile.objects.get(name="ada").user, ada)
        self.assertFalse(Profile.objects.filter(email="ada@example.com").exists())
        self.assertEqual(self.sign_up("Bo", "ada@example.com").status_code, 302)
        self.assertEqual(Profile.objects.get(email="ada@example.com").name, "Bo")

    def test_a_deleted_user_leaves_name_and_address_to_others(self):
        self.sign_up()
        User.objects.get().delete()
        self.assertEqual(Profile.objects.across_shards().count(), 0)
        self.assertFalse(Profile.objects.filter(email="ada@example.com").exists())
        self.assertEqual(self.sign_up().status_code, 302)
        self.assertEqual(Profile.objects.get(name="Ada").user, User.objects.get())

    def test_a_claim_in_the_way_leaves_no_user(self):
        with (
            mock.patch("pgshard.django.claiming.claim", side_effect=Busy("the value is claimed")),
            self.assertRaises(Busy),
        ):
            self.sign_up()
        self.assertFalse(User.objects.exists())


class InTransactions(TestCase):
    """The same in the transaction of a test case."""

    databases = "__all__"

    def check(self):
        data = {"name": "Ada", "email": "ada@example.com", "password": PASSWORD}
        self.assertEqual(self.client.post("/sign-up", data).status_code, 302)
        response = self.client.post("/sign-up", {**data, "name": "Eve"})
        self.assertEqual(list(response.context["form"].errors), ["email"])
        self.assertEqual(Profile.objects.get(email__iexact="ADA@example.com").name, "Ada")

    def test_one(self):
        self.check()

    def test_two(self):
        self.check()
