"""The admin's pages of rows whose primary keys say no shard, or are the key."""

from django.contrib import admin

from pgshard.django.admin import ShardedModelAdmin

from .models import MODELS

admin.site.register(MODELS.Num, ShardedModelAdmin)
admin.site.register(MODELS.Own, ShardedModelAdmin)
