"""Photos and what belongs to them, by user; and a model that is not sharded."""

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower, Now

from pgshard.django import ShardedModel, ShardKeyField, ShardKeyForeignKey


class Category(models.Model):
    """Not sharded."""

    name = models.CharField(max_length=50, unique=True)


class Album(ShardedModel):
    """An album of a user."""

    user_id = ShardKeyField()
    name = models.CharField(max_length=100)

    class Meta:
        # Without base_manager_name, as most people write it.
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user_id", "name"], name="album_of_user")]


class Tag(ShardedModel):
    """A word of a user."""

    user_id = ShardKeyField()
    word = models.CharField(max_length=50)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user_id", "word"], name="tag_of_user")]


class Photo(ShardedModel):
    """A photo of a user."""

    user_id = ShardKeyField()
    album = models.ForeignKey(Album, models.CASCADE, null=True, related_name="photos")
    category = models.ForeignKey(
        Category, models.DO_NOTHING, null=True, db_constraint=False, related_name="photos"
    )
    tags = models.ManyToManyField(Tag, related_name="photos")
    title = models.CharField(max_length=100, db_comment="What it says {shard}")
    likes = models.IntegerField(default=0, db_default=0)
    made_at = models.DateTimeField(db_default=Now())
    lower = models.GeneratedField(
        expression=Lower("title"), output_field=models.CharField(max_length=100), db_persist=True
    )

    class Meta:
        indexes = [models.Index(fields=["-likes"], name="photo_likes")]
        constraints = [
            models.CheckConstraint(condition=models.Q(likes__gte=0), name="photo_likes_positive")
        ]


class Note(ShardedModel):
    """A note of a user, whose key is a reference."""

    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.DO_NOTHING, related_name="notes")
    text = models.TextField(default="{shard}")
