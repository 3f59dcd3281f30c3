"""The tables."""

from django.db import migrations, models

import pgshard.django.fields

KEYS = [
    ("id", pgshard.django.fields.ShardedBigAutoField(primary_key=True, serialize=False)),
    ("user_id", pgshard.django.fields.ShardKeyField()),
]


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            "Item",
            [
                *KEYS,
                ("name", models.CharField(max_length=20)),
                ("price", models.IntegerField(default=0)),
            ],
            options={
                "unique_together": {("user_id", "name")},
                "indexes": [models.Index(fields=["name"], name="item_name")],
            },
        ),
        migrations.CreateModel("Purchase", [*KEYS, ("items", models.ManyToManyField("shop.item"))]),
        migrations.CreateModel(
            "Receipt",
            [
                *KEYS,
                ("purchase", models.OneToOneField(on_delete=models.CASCADE, to="shop.purchase")),
            ],
        ),
        migrations.CreateModel(
            "Gone", [*KEYS, ("item", models.ForeignKey("shop.item", models.CASCADE))]
        ),
        # This is for another database, so nothing of it is in the shards.
        migrations.RunPython(migrations.RunPython.noop, migrations.RunPython.noop),
        migrations.RunSQL("SELECT 1", "SELECT 1", hints={"sharded": False}),
    ]
