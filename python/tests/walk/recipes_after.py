# What is there after the jobs of docs/django-recipes.md have run twice.
import pathlib

from django.contrib.auth.models import User
from photos.erase import erase
from photos.models import Activity, Album, Event, Follow, Follower, Photo, Profile
from photos.outbox import deliver, like

one, two, three = User.objects.order_by("pk")
assert not Photo.objects.filter(title__startswith=" ").across_shards().exists()
assert Photo.objects.across_shards().count() == 31
assert Event.objects.across_shards().count() == 0
assert Activity.objects.filter(user_id=one.pk).count() == 2

# An event that was delivered, and whose row was not deleted, is delivered again.
photo = Photo.objects.filter(user_id=two.pk).first()
like(photo.pk, one.pk)
event = Event.objects.filter(user_id=two.pk).get()
Activity.objects.create(user_id=one.pk, event_id=event.pk, body={})
deliver(event._state.db)
assert Activity.objects.filter(user_id=one.pk).count() == 3

Album.objects.create(user_id=one.pk, name="a")
like(Photo.objects.filter(user_id=two.pk).first().pk, one.pk)
key = one.pk
erase(one)
assert list(User.objects.order_by("pk")) == [two, three]
for model in (Photo, Album, Follow, Follower, Event, Activity):
    assert not model.objects.filter(user_id=key).exists()
assert not Follow.objects.filter(whom=key).across_shards().exists()
assert not Follower.objects.filter(who=key).across_shards().exists()
assert not Event.objects.filter(to=key).across_shards().exists()
assert not Profile.objects.across_shards().exists()
assert Photo.objects.across_shards().count() == 30
pathlib.Path("done").touch()
