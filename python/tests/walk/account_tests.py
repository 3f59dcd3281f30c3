"""Tests of the project that docs/django-recipes.md makes under "A user model on shards": what
django.contrib.auth does with it."""

import asyncio
import re
from io import StringIO
from unittest import mock

from accounts.models import Account
from django.contrib import auth
from django.contrib.auth import forms
from django.contrib.auth.models import Group, Permission
from django.contrib.auth.tokens import default_token_generator
from django.contrib.sessions.models import Session
from django.core import mail
from django.core.exceptions import FieldError, ValidationError
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from django.test import TestCase, TransactionTestCase
from photos.models import Post

from pgshard.django import NoShard, Taken, alias_of_key

EMAIL, OLD, NEW = "ada@example.com", "an old secret", "a new secret 2"


class SignUpForm(forms.BaseUserCreationForm):
    class Meta:
        model = Account
        fields = ["email"]


class Accounts(TransactionTestCase):
    databases = "__all__"

    def setUp(self):
        self.ada = Account.objects.create_user(EMAIL, OLD)
        self.eve = Account.objects.create_user("eve@example.com", OLD)

    def login(self, email=EMAIL, password=OLD):
        response = self.client.post("/login/", {"username": email, "password": password})
        return response.status_code == 302

    def whoami(self):
        return self.client.get("/whoami").json()["id"]

    def test_each_account_is_on_the_shard_of_its_key(self):
        for one in (self.ada, self.eve):
            self.assertEqual(Account.objects.get(email=one.email)._state.db, alias_of_key(one.pk))
        self.assertNotEqual(alias_of_key(self.ada.pk), alias_of_key(self.eve.pk))

    def test_a_user_logs_in_by_e_mail_and_out(self):
        self.assertEqual(auth.authenticate(username=EMAIL, password=OLD), self.ada)
        self.assertEqual(auth.authenticate(email=EMAIL, password=OLD), self.ada)
        self.assertIsNone(self.whoami())
        self.assertTrue(self.login())
        self.assertEqual(self.whoami(), self.ada.pk)
        self.assertEqual(Session.objects.get().get_decoded()["_auth_user_id"], str(self.ada.pk))
        self.client.post("/logout/")
        self.assertIsNone(self.whoami())
        self.client.force_login(self.eve)
        self.assertEqual(self.whoami(), self.eve.pk)

    def test_who_may_not_log_in_does_not(self):
        self.assertFalse(self.login(password="wrong"))
        self.assertFalse(self.login("nobody@example.com"))
        self.assertFalse(self.login(""))
        Account.objects.filter(email=EMAIL).update(is_active=False)
        self.assertFalse(self.login())
        self.assertIsNone(self.whoami())

    def test_a_login_notes_its_time(self):
        self.assertIsNone(self.ada.last_login)
        self.login()
        self.ada.refresh_from_db()
        self.assertIsNotNone(self.ada.last_login)

    def test_a_password_is_reset_by_a_link_in_a_mail(self):
        # Written in another way, and of nobody: the page is the same.
        for email in ("ADA@Example.COM", "nobody@example.com"):
            response = self.client.post("/password_reset/", {"email": email})
            self.assertRedirects(response, "/password_reset/done/")
        (message,) = mail.outbox
        self.assertEqual(message.to, [EMAIL])
        link = re.search(r"http://[^/]+(/reset/\S+)", message.body).group(1)
        page = self.client.get(link, follow=True)
        self.assertTrue(page.context["validlink"])
        answer = {"new_password1": NEW, "new_password2": NEW}
        self.assertRedirects(self.client.post(page.request["PATH_INFO"], answer), "/reset/done/")
        self.assertFalse(self.login(password=OLD))
        self.assertTrue(self.login(password=NEW))
        self.client.logout()
        self.assertFalse(self.client.get(link, follow=True).context["validlink"])

    def test_a_link_is_void_after_the_address_has_changed(self):
        token = default_token_generator.make_token(self.ada)
        self.assertTrue(default_token_generator.check_token(self.ada, token))
        self.ada.email = "ada@example.org"
        self.ada.save()
        read = Account.objects.get(pk=self.ada.pk)
        self.assertFalse(default_token_generator.check_token(read, token))
        self.assertTrue(self.login("ada@example.org"))
        self.assertFalse(self.login(EMAIL))

    def test_a_mail_with_a_link_for_nobody_leads_nowhere(self):
        page = self.client.get("/reset/OTk5OTk5OTk5OTk5OTk5OTk5OTk5/a-b/", follow=True)
        self.assertFalse(page.context["validlink"])

    def test_a_password_is_changed_and_the_session_goes_on(self):
        self.login()
        other = self.client_class()
        other.post("/login/", {"username": EMAIL, "password": OLD})
        answer = {"old_password": OLD, "new_password1": NEW, "new_password2": NEW}
        self.assertRedirects(
            self.client.post("/password_change/", answer), "/password_change/done/"
        )
        self.assertEqual(self.whoami(), self.ada.pk)
        self.assertIsNone(other.get("/whoami").json()["id"])
        self.assertTrue(self.login(password=NEW))

    def test_an_address_belongs_to_one_account(self):
        for email in (EMAIL, "ADA@example.com"):
            with self.assertRaises(Taken):
                Account.objects.create_user(email)
            with self.assertRaises(ValidationError):
                Account(id=10_000, email=email, password="x").full_clean()
        with self.assertRaises(IntegrityError):
            self.eve.email = EMAIL
            self.eve.save()

    def test_forms_show_an_address_that_is_taken(self):
        data = {"email": EMAIL, "password1": NEW, "password2": NEW}
        form = SignUpForm(data)
        self.assertEqual(form.errors, {"email": ["Account with this Email already exists."]})
        form = SignUpForm({**data, "email": "bo@example.com"})
        self.assertTrue(form.is_valid(), form.errors)
        form.instance.id = 10_000
        form.save()
        self.assertTrue(self.login("bo@example.com", NEW))

    def test_permissions_are_those_of_the_user_and_of_the_groups(self):
        add, change, delete = (
            Permission.objects.get(codename=f"{name}_account")
            for name in ("add", "change", "delete")
        )
        staff = Group.objects.create(name="staff")
        staff.permissions.add(add)
        self.ada.groups.add(staff)
        self.ada.user_permissions.add(change)
        ada, eve = Account.objects.get(pk=self.ada.pk), Account.objects.get(pk=self.eve.pk)
        wanted = {"accounts.add_account", "accounts.change_account"}
        self.assertEqual(ada.get_all_permissions(), wanted)
        self.assertEqual(ada.get_group_permissions(), {"accounts.add_account"})
        self.assertTrue(ada.has_perm("accounts.change_account"))
        self.assertFalse(ada.has_perm(f"accounts.{delete.codename}"))
        self.assertTrue(ada.has_module_perms("accounts"))
        self.assertEqual(eve.get_all_permissions(), set())
        self.assertFalse(eve.has_module_perms("accounts"))
        self.assertEqual([group.name for group in ada.groups.all()], ["staff"])
        self.assertEqual(list(eve.groups.all()), [])
        eve.is_superuser = True
        self.assertTrue(eve.has_perm(f"accounts.{delete.codename}"))

    def test_who_has_a_permission_cannot_be_queried(self):
        from django.contrib.auth.backends import ModelBackend

        with self.assertRaises(FieldError):
            ModelBackend().with_perm("accounts.add_account")

    def test_commands_create_a_superuser_and_change_a_password(self):
        call_command("createsuperuser", interactive=False, email="bo@example.com", verbosity=0)
        bo = Account.objects.get(email="bo@example.com")
        self.assertEqual((bo.is_superuser, bo.has_usable_password()), (True, False))
        with self.assertRaisesMessage(CommandError, "already taken"):
            call_command("createsuperuser", interactive=False, email=EMAIL, verbosity=0)
        with mock.patch("getpass.getpass", return_value=NEW):
            call_command("changepassword", "bo@example.com", stdout=StringIO())
        self.assertTrue(self.login("bo@example.com", NEW))
        with self.assertRaisesMessage(CommandError, "does not exist"):
            call_command("changepassword", "nobody@example.com", stdout=StringIO())

    def test_a_manager_refuses_what_is_neither_default_nor_a_shard(self):
        manager = Account.objects.db_manager("default")
        self.assertEqual(manager.get(email=EMAIL), self.ada)
        with self.assertRaises(NoShard):
            Account.objects.using("elsewhere")
        with self.assertRaises(NoShard):
            Account.objects.db_manager("elsewhere").get(email=EMAIL)
        there = alias_of_key(self.ada.pk)
        self.assertEqual(Account.objects.using(there).get(pk=self.ada.pk), self.ada)

    def test_a_deleted_account_is_logged_out_and_its_address_is_free(self):
        self.login()
        self.ada.groups.add(Group.objects.create(name="staff"))
        self.ada.delete()
        self.assertIsNone(self.whoami())
        self.assertFalse(self.login())
        self.assertNotEqual(Account.objects.create_user(EMAIL, NEW).pk, self.ada.pk)
        self.assertTrue(self.login(password=NEW))

    def test_rows_of_an_account_are_on_its_shard_and_go_with_it(self):
        post = Post.objects.create(user=self.ada, text="x")
        Post.objects.create(user=self.eve, text="y")
        self.assertEqual(post._state.db, alias_of_key(self.ada.pk))
        self.assertEqual(Post.objects.filter(user=self.ada).get(), post)
        self.assertEqual(self.ada.post_set.get().user, self.ada)
        found = Post.objects.select_related("user").get(pk=post.pk)
        self.assertEqual(found.user.email, EMAIL)
        self.ada.delete()
        self.assertEqual([one.text for one in Post.objects.across_shards()], ["y"])

    def test_asynchronous_code_authenticates(self):
        async def work():
            user = await auth.aauthenticate(username=EMAIL, password=OLD)
            return user, await Account.objects.aget_by_natural_key("eve@example.com")

        self.assertEqual(asyncio.run(work()), (self.ada, self.eve))


class InTransactions(TestCase):
    """The same in the transaction of a test case."""

    databases = "__all__"

    def check(self):
        Account.objects.create_user(EMAIL, OLD)
        self.assertTrue(self.client.login(username=EMAIL, password=OLD))
        self.client.post("/password_reset/", {"email": EMAIL})
        self.assertEqual([message.to for message in mail.outbox], [[EMAIL]])
        with self.assertRaises(Taken):
            Account.objects.create_user(EMAIL, OLD)

    def test_one(self):
        self.check()

    def test_two(self):
        self.check()
