"""The admin's pages."""

from django.contrib import admin

from pgshard.django.admin import ShardedModelAdmin

from .models import Album, Note, Photo, Tag


class PhotoInline(admin.TabularInline):
    """The photos of an album."""

    model = Photo
    fields = ["user_id", "title", "likes"]
    extra = 0


@admin.register(Album)
class AlbumAdmin(ShardedModelAdmin):
    """Albums, with their photos."""

    inlines = [PhotoInline]
    search_fields = ["name"]


@admin.register(Photo)
class PhotoAdmin(ShardedModelAdmin):
    """Photos, with their albums and tags."""

    fields = ["user_id", "title", "likes", "album", "tags"]
    list_display = ["id", "title", "album", "category"]
    list_select_related = ["album", "category"]
    search_fields = ["title"]


@admin.register(Tag)
class TagAdmin(ShardedModelAdmin):
    """Words, which have no search fields."""


@admin.register(Note)
class NoteAdmin(ShardedModelAdmin):
    """Notes, whose key is a reference."""

    raw_id_fields = ["user"]
    list_display = ["id", "user", "text"]
