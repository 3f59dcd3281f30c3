from django.conf import settings
from django.db import models

from pgshard.django import ShardedModel, ShardKeyField, ShardKeyForeignKey, ShardKeyOneToOneField


class Order(ShardedModel):
    customer_id = ShardKeyField()
    total = models.IntegerField(default=0)


class Profile(ShardedModel):
    user = ShardKeyOneToOneField(settings.AUTH_USER_MODEL, models.CASCADE)
    name = models.CharField(max_length=50)


class Address(ShardedModel):
    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    town = models.CharField(max_length=50)
