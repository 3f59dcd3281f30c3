"""Tests of the same project with the settings of its admin, whose users are Django's own."""

from accounts.models import Account
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import TransactionTestCase

PASSWORD = "a long secret"


class Staff(TransactionTestCase):
    databases = "__all__"

    def setUp(self):
        self.staff = User.objects.create_superuser("staff", password=PASSWORD)
        self.ada = Account.objects.create_user("ada@example.com", PASSWORD)

    def login(self, name):
        self.client.post("/admin/login/", {"username": name, "password": PASSWORD})
        return self.client.get("/admin/").status_code == 200

    def test_staff_edits_accounts_in_the_admin(self):
        self.assertTrue(self.login("staff"))
        page = self.client.get(f"/admin/accounts/account/?id={self.ada.pk}")
        self.assertEqual(list(page.context["cl"].result_list), [self.ada])
        Account.objects.create_user("eve@example.com")
        address = f"/admin/accounts/account/{self.ada.pk}/change/"
        page = self.client.post(address, {"email": "EVE@example.com", "is_active": "on"})
        self.assertEqual(page.context["errors"], [["Account with this Email already exists."]])
        page = self.client.post(address, {"email": "ada@example.org", "is_active": "on"})
        self.assertEqual(page.status_code, 302)
        self.assertEqual(Account.objects.get(email="ada@example.org"), self.ada)
        self.assertEqual(LogEntry.objects.get().user, self.staff)
        page = self.client.get(f"/admin/accounts/account/{self.ada.pk}/history/")
        self.assertContains(page, "Changed Email")
        self.assertContains(self.client.get("/admin/"), "ada@example.org")

    def test_accounts_are_no_staff(self):
        self.assertFalse(self.login("ada@example.com"))
