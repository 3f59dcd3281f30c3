"""Tasks of Celery, in processes forked from one that has already used shards. The broker is the
folder CELERY_FOLDER."""

import os

import django
from celery import Celery, signals

django.setup()

from photos.models import Photo  # noqa: E402 # models need the settings

from pgshard.django.backend import pools  # noqa: E402

folder = os.environ["CELERY_FOLDER"]
app = Celery("worker", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": folder,
    "data_folder_out": folder,
    "control_folder": folder,
}
app.conf.task_ignore_result = True


def in_use() -> int:
    """The connections that this process has taken."""
    return sum(pool.in_use for pool in pools._pools.by_host.values())


@signals.worker_init.connect
def begun(**_: object) -> None:
    """Runs before the pool's processes are forked: the parent then has a connection and an open
    cursor."""
    Photo.objects.create(user_id=3, title="parent")
    begun.rows = Photo.objects.filter(user_id=3).iterator(chunk_size=1)
    next(begun.rows)


@signals.worker_shutdown.connect
def ended(**_: object) -> None:
    """What the parent had open still works."""
    assert len(list(begun.rows)) == 0
    Photo.objects.create(user_id=3, title="parent ended")


@app.task
def add(user: int, fails: bool) -> None:
    """Notes how many connections the process had before."""
    before = in_use()
    Photo.objects.create(user_id=user, title=f"{os.getpid()} had {before}")
    if fails:
        raise ValueError("the task failed")
