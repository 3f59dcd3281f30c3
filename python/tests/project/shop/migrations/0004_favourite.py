"""A model that is not sharded and refers to some that are."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("contenttypes", "0002_remove_content_type_name"),
        ("shop", "0003_concurrently"),
    ]
    operations = [
        migrations.CreateModel(
            name="Favourite",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("object_id", models.BigIntegerField()),
                ("content_type", models.ForeignKey("contenttypes.contenttype", models.CASCADE)),
            ],
        ),
    ]
