# Rows for the recipes of docs/django-recipes.md, before its jobs run.
from django.contrib.auth.models import User
from photos.accounts import EmailBackend, SignUpForm
from photos.follows import follow, repair, unfollow
from photos.models import Event, Follow, Follower, Photo, Profile
from photos.outbox import like
from photos.timeline import timeline

one, two, three = (User.objects.create(username=name) for name in ("one", "two", "three"))

follow(one.pk, two.pk)
follow(one.pk, three.pk)
follow(one.pk, two.pk)
made = [
    Photo.objects.create(user_id=user.pk, title=f" {n} ")
    for n in range(15)
    for user in (two, three)
]
Photo.objects.create(user_id=one.pk, title="own")
newest = sorted((photo.pk for photo in made), reverse=True)[:20]
assert [photo.pk for photo in timeline(one.pk)] == newest
assert timeline(two.pk) == []

assert Follower.objects.filter(user_id=two.pk).get().who == one.pk
follow(two.pk, one.pk)
unfollow(two.pk, one.pk)
assert not Follow.objects.filter(user_id=two.pk).exists()
assert not Follower.objects.filter(user_id=one.pk).exists()
# Half of each was written.
Follow.objects.create(user_id=three.pk, whom=two.pk)
Follower.objects.create(user_id=three.pk, who=two.pk)
repair(three.pk)
assert Follower.objects.filter(user_id=two.pk).count() == 2
assert Follower.objects.filter(user_id=three.pk).get().who == one.pk

Profile.objects.create(user=one, name="Ada", email="ada@example.com")
form = {"name": "ada", "email": "Ada@example.com", "password": "x"}
assert list(SignUpForm(form).errors) == ["name", "email"]
form = SignUpForm({"name": "Eve", "email": "eve@example.com", "password": "secret"})
assert form.is_valid(), form.errors
eve = form.save().user
assert EmailBackend().authenticate(None, "EVE@example.com", "secret") == eve
eve.delete()

like(made[0].pk, one.pk)
like(made[1].pk, one.pk)
assert Event.objects.across_shards().count() == 2
