SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "pgshard.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
