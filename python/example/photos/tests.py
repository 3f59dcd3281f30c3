"""Tests of the pages, on shards that the runner makes for them."""

from django.contrib.auth.models import User
from django.test import TestCase

from photos.models import Follow, Like, Photo


class Pages(TestCase):
    """The pages, as browsers ask for them."""

    databases = "__all__"

    @classmethod
    def setUpTestData(cls):
        """Three users, who follow each other."""
        cls.users = [User.objects.create_user(f"user{number}").pk for number in range(3)]

    def post(self, address, **data):
        """A new photo or follow."""
        answer = self.client.post(address, data, content_type="application/json")
        self.assertIn(answer.status_code, (200, 201), answer.content)
        return answer.json()

    def test_photos_of_a_user(self):
        ann = self.users[0]
        made = [self.post(f"/users/{ann}/photos", title=f"p{number}") for number in range(21)]
        self.assertEqual((made[0]["user"], made[0]["likes"]), (ann, 0))
        page = self.client.get(f"/users/{ann}/photos").json()
        self.assertEqual(
            [photo["title"] for photo in page["results"]],
            [f"p{number}" for number in range(20, 0, -1)],
        )
        page = self.client.get(page["next"]).json()
        self.assertEqual([photo["title"] for photo in page["results"]], ["p0"])
        self.assertEqual(self.client.get(f"/users/{self.users[1]}/photos").json()["results"], [])

    def test_a_photo(self):
        made = self.post(f"/users/{self.users[0]}/photos", title="Prague")
        address = f"/photos/{made['id']}"
        self.assertEqual(self.client.get(address).json(), made)
        changed = self.client.patch(
            address, {"title": "Brno", "user": 1}, content_type="application/json"
        ).json()
        self.assertEqual(changed, {**made, "title": "Brno"})
        for liked in (True, False):
            self.assertEqual(self.post(f"{address}/likes", by=self.users[1]), {"liked": liked})
        self.assertEqual(self.client.get(address).json()["likes"], 1)
        self.assertEqual(self.client.delete(address).status_code, 204)
        self.assertEqual(self.client.get(address).status_code, 404)
        self.assertEqual(Like.objects.across_shards().count(), 0)

    def test_the_feed(self):
        ann, ben, cat = self.users
        for whom in (ben, cat, cat):
            self.post(f"/users/{ann}/follows", whom=whom)
        self.assertEqual(Follow.objects.filter(user_id=ann).count(), 2)
        for number in range(3):
            for user in (ben, cat):
                self.post(f"/users/{user}/photos", title=f"{user} {number}")
        titles = [photo["title"] for photo in self.client.get(f"/users/{ann}/feed").json()]
        self.assertEqual(
            titles, [f"{user} {number}" for number in (2, 1, 0) for user in (cat, ben)]
        )

    def test_the_admin(self):
        root = User.objects.create_superuser("root")
        self.client.force_login(root)
        ann = self.users[0]
        answer = self.client.post(
            "/admin/photos/photo/add/", {"user": ann, "title": "by hand", "likes": 0}
        )
        self.assertEqual(answer.status_code, 302, answer.content)
        photo = Photo.objects.get(user_id=ann)
        self.assertContains(self.client.get("/admin/photos/photo/", {"q": ann}), "by hand")
        self.assertContains(self.client.get(f"/admin/photos/photo/{photo.pk}/change/"), "by hand")
