"""Statements that cannot run in a transaction: each becomes a file of its own."""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("shop", "0002_changes")]
    operations = [
        AddIndexConcurrently(
            "product", models.Index(fields=["user_id", "price"], name="product_both")
        ),
        migrations.AddField("receipt", "note", models.TextField(default="")),
        RemoveIndexConcurrently("product", "product_both"),
        migrations.RemoveField("receipt", "note"),
    ]
