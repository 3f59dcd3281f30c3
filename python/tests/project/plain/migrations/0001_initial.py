from django.db import migrations
from kinds.models import create_models


class Migration(migrations.Migration):
    """Creates the models as they are now."""

    initial = True
    dependencies = [("contenttypes", "0002_remove_content_type_name")]
    operations = create_models("plain")
