"""The admin's pages: a list shows the rows of one user, whose ID is typed into the search box."""

from django.contrib import admin

from pgshard.django.admin import ShardedModelAdmin
from photos.models import Follow, Like, Photo


@admin.register(Photo)
class PhotoAdmin(ShardedModelAdmin):
    """Photos."""

    list_display = ["id", "title", "likes"]
    raw_id_fields = ["user"]


@admin.register(Like)
class LikeAdmin(ShardedModelAdmin):
    """Who likes which photo."""

    list_display = ["id", "photo_id", "by"]
    raw_id_fields = ["user", "photo"]


@admin.register(Follow)
class FollowAdmin(ShardedModelAdmin):
    """Who follows whom."""

    list_display = ["id", "user_id", "whom"]
    raw_id_fields = ["user"]
