"""Photos, who likes them, and who follows whom. Each row is on the shard of the user it belongs
to."""

from django.conf import settings
from django.db import models

from pgshard.django import ShardedModel, ShardKeyForeignKey


class Photo(ShardedModel):
    """A photo, on its owner's shard."""

    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="photos")
    title = models.CharField(max_length=200)
    likes = models.IntegerField(default=0)

    class Meta:
        indexes = [models.Index(fields=["user", "-id"], name="photo_newest")]


class Like(ShardedModel):
    """Somebody likes a photo: on the shard of the photo."""

    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    photo = models.ForeignKey(Photo, models.CASCADE, related_name="liked")
    by = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["photo", "by"], name="like_once")]


class Follow(ShardedModel):
    """A user sees the photos of another: on the shard of the user who looks."""

    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="follows")
    whom = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "whom"], name="follow_once")]
