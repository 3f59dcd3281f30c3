"""The models after all migrations of this application, which use every operation that Django
has."""

from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.functions import Upper

from pgshard.django import ShardedModel, ShardKeyField


class Product(ShardedModel):
    """Its name was Item."""

    user_id = ShardKeyField()
    label = models.CharField(max_length=80, default="it's {shard}", db_default="it's {shard}")
    price = models.DecimalField(max_digits=12, decimal_places=3, null=True)
    words = models.JSONField(default=list)
    note = models.TextField(default="")

    class Meta:
        db_table = "shop_goods"
        indexes = [
            models.Index(Upper("label"), name="product_upper"),
            models.Index(fields=["price"], name="product_price", condition=models.Q(price__gt=0)),
            GinIndex(fields=["words"], name="product_words"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user_id", "label"], name="product_label", condition=models.Q(price__gt=1)
            )
        ]


class Purchase(ShardedModel):
    """Goods that are bought together."""

    user_id = ShardKeyField()
    products = models.ManyToManyField(Product)
    first = models.ForeignKey(Product, models.SET_NULL, null=True, related_name="+")


class Receipt(ShardedModel):
    """A line of a purchase."""

    user_id = ShardKeyField()
    purchase = models.OneToOneField(Purchase, models.CASCADE)


class Favourite(models.Model):
    """Anything that somebody likes. Not sharded."""

    content_type = models.ForeignKey(ContentType, models.CASCADE)
    object_id = models.BigIntegerField()
    target = GenericForeignKey()
