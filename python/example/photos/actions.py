"""What users do. Views and the load both use these functions."""

from django.db.models import F

from pgshard.django import run_in_shard
from photos.models import Follow, Like, Photo


def upload(user: int, title: str) -> Photo:
    """A new photo, on the user's shard, which makes its ID."""
    return Photo.objects.create(user_id=user, title=title)


def like(photo_id: int, by: int) -> bool:
    """Likes a photo once: adds the row and raises the counter together. False if the user liked it
    already."""
    photo = Photo.objects.get(pk=photo_id)

    def work() -> bool:
        # The key too: an ID from before the shards names none.
        key = photo.user_id
        _, made = Like.objects.get_or_create(user_id=key, photo_id=photo.pk, by=by)
        if made:
            Photo.objects.filter(user_id=key, pk=photo.pk).update(likes=F("likes") + 1)
        return made

    return run_in_shard(photo.user_id, work)


def feed(user: int, count: int = 20) -> list[Photo]:
    """The newest photos of the users that a user follows, from as many shards."""
    whom = Follow.objects.filter(user_id=user).values_list("whom", flat=True)
    found = [
        photo for one in whom for photo in Photo.objects.filter(user_id=one).order_by("-id")[:count]
    ]
    # An ID begins with the time when it was made.
    return sorted(found, key=lambda photo: photo.pk, reverse=True)[:count]
