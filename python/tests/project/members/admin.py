"""The admin's pages of rows that are found by a value."""

from django.contrib import admin

from pgshard.django.admin import ShardedModelAdmin

from .models import Member


@admin.register(Member)
class MemberAdmin(ShardedModelAdmin):
    """Members, by their key or address."""

    fields = ["id", "email", "name"]
