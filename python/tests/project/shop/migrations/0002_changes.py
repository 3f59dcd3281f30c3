"""Everything that can be changed."""

from django.contrib.postgres.indexes import GinIndex
from django.db import migrations, models
from django.db.models.functions import Upper


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.AddField("item", "words", models.JSONField(default=list)),
        migrations.AddField(
            "item", "old", models.ForeignKey("shop.purchase", models.CASCADE, null=True)
        ),
        migrations.AddConstraint(
            "item", models.CheckConstraint(condition=models.Q(price__gte=0), name="item_price")
        ),
        migrations.RemoveConstraint("item", "item_price"),
        migrations.AddField("item", "code", models.CharField(max_length=9, unique=True, null=True)),
        migrations.RenameField("item", "code", "codes"),
        # The constraint and its index for LIKE still have the old name.
        migrations.AlterField("item", "codes", models.CharField(max_length=9, null=True)),
        migrations.AlterField(
            "item", "codes", models.CharField(max_length=9, null=True, db_index=True)
        ),
        migrations.AlterField("item", "codes", models.CharField(max_length=10, null=True)),
        migrations.RemoveField("item", "codes"),
        migrations.AlterField("item", "old", models.BigIntegerField(null=True)),
        migrations.AlterUniqueTogether("item", set()),
        migrations.RenameField("item", "name", "label"),
        migrations.AlterField(
            "item",
            "label",
            models.CharField(max_length=80, default="it's {shard}", db_default="it's {shard}"),
        ),
        migrations.AlterField(
            "item", "price", models.DecimalField(max_digits=12, decimal_places=3, null=True)
        ),
        migrations.RemoveField("item", "old"),
        migrations.RenameModel("Item", "Product"),
        migrations.RenameIndex("product", "product_name", old_name="item_name"),
        migrations.RemoveIndex("product", "product_name"),
        migrations.AddIndex("product", models.Index(Upper("label"), name="product_upper")),
        migrations.AddIndex(
            "product",
            models.Index(fields=["price"], name="product_price", condition=models.Q(price__gt=0)),
        ),
        migrations.AddIndex("product", GinIndex(fields=["words"], name="product_words")),
        migrations.AddConstraint(
            "product",
            models.UniqueConstraint(
                fields=["user_id", "label"], name="product_label", condition=models.Q(price__gt=1)
            ),
        ),
        migrations.RenameField("purchase", "items", "products"),
        migrations.AddField(
            "purchase",
            "first",
            models.ForeignKey("shop.product", models.SET_NULL, null=True, related_name="+"),
        ),
        migrations.AlterModelTable("product", "shop_goods"),
        migrations.DeleteModel("Gone"),
        migrations.RunSQL(
            "UPDATE {shard}.shop_goods SET label = 'a' WHERE false",
            migrations.RunSQL.noop,
            hints={"model_name": "product"},
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.AddField("product", "note", models.TextField(default="")),
            ],
            state_operations=[migrations.AddField("product", "note", models.TextField(default=""))],
        ),
    ]
