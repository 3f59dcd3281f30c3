"""Models with all kinds of primary keys, and all kinds of relations to them. The application
`plain` has the same ones in one database, as the oracle of tests/orm/test_programs.py."""

import datetime
from types import SimpleNamespace

from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.db.models import F, Q

from pgshard.django import ShardedManager, ShardedModel, ShardKeyField, ShardKeyForeignKey


class Owner(models.Model):
    """Not sharded. The key of some models refers to it."""

    name = models.CharField(max_length=50)


class Fan(models.Model):
    """Not sharded. Some models have a many-to-many field to it."""

    name = models.CharField(max_length=50)


class Mark(models.Model):
    """Not sharded. It refers to any object."""

    name = models.CharField(max_length=50)
    content_type = models.ForeignKey(ContentType, models.CASCADE, related_name="+")
    object_id = models.BigIntegerField()
    about = GenericForeignKey()


KINDS = ("Made", "Num", "Uid", "Given", "Own")
"""The kinds of primary keys: made by the shard, a number of the table, a UUID, a number that the
application gives, the key itself."""


START = datetime.datetime(2026, 1, 30, 23, 30, tzinfo=datetime.timezone.utc)


class Open:
    """A manager of the rows that are open."""

    use_in_migrations = True

    def get_queryset(self):
        return super().get_queryset().filter(is_open=True)


class OpenManager(Open, ShardedManager):
    pass


def declare(app, base, key, owner_key, fan, open_manager):
    """Declares the models of an application."""

    def model(label, bases, meta=None, **body):
        body["Meta"] = type("Meta", (), {"app_label": app, **(meta or {})})
        return type(label, bases, {"__module__": f"{app}.models", **body})

    def name():
        return models.CharField(max_length=50)

    made = SimpleNamespace()
    remark = model(
        "Remark",
        (base,),
        user_id=key(),
        name=name(),
        content_type=models.ForeignKey(
            ContentType, models.DO_NOTHING, db_constraint=False, related_name="+"
        ),
        object_id=models.BigIntegerField(),
        about=GenericForeignKey(),
    )
    made.Remark = remark
    made.Made = model("Made", (base,), user_id=key(), name=name(), remarks=GenericRelation(remark))
    made.Num = model(
        "Num",
        (base,),
        id=models.BigAutoField(primary_key=True),
        user_id=key(),
        name=name(),
        remarks=GenericRelation(remark),
    )
    made.Uid = model(
        "Uid", (base,), id=models.UUIDField(primary_key=True), user_id=key(), name=name()
    )
    made.Given = model(
        "Given", (base,), id=models.BigIntegerField(primary_key=True), user_id=key(), name=name()
    )
    made.Own = model("Own", (base,), id=None, user_id=key(primary_key=True), name=name())
    made.SubMade = model("SubMade", (made.Made,), more=name())
    made.SubNum = model("SubNum", (made.Num,), more=name())
    for kind in KINDS:
        target = getattr(made, kind)
        setattr(
            made,
            f"Ref{kind}",
            model(
                f"Ref{kind}",
                (base,),
                # The many-to-many field comes before the key.
                many=models.ManyToManyField(target, related_name=f"bags{kind.lower()}"),
                user_id=key(),
                name=name(),
                to=models.ForeignKey(target, models.CASCADE, null=True, related_name="refs"),
            ),
        )
        setattr(
            made,
            f"One{kind}",
            model(
                f"One{kind}",
                (base,),
                user_id=key(),
                name=name(),
                to=models.OneToOneField(target, models.CASCADE, related_name="one"),
            ),
        )
    made.RefNumOfNum = model(
        "RefNumOfNum",
        (base,),
        id=models.BigAutoField(primary_key=True),
        user_id=key(),
        name=name(),
        to=models.ForeignKey(made.RefNum, models.SET_NULL, null=True, related_name="refs"),
        parent=models.ForeignKey("self", models.CASCADE, null=True, related_name="refs_of_parent"),
    )
    made.Keyless = model(
        "Keyless",
        (base,),
        name=name(),
        to=models.ForeignKey(made.Made, models.CASCADE, related_name="keyless"),
    )
    made.Owned = model("Owned", (base,), owner=owner_key(), name=name())
    made.Liked = model(
        "Liked",
        (base,),
        user_id=key(),
        name=name(),
        fans=models.ManyToManyField(fan, db_constraint=False, related_name="liked"),
    )
    made.Lent = model(
        "Lent",
        (base,),
        user_id=key(),
        name=name(),
        fans=models.ManyToManyField(fan, through=f"{app}.Loan", related_name="lent"),
    )
    made.Loan = model(
        "Loan",
        (base,),
        user_id=key(),
        name=name(),
        lent=models.ForeignKey(made.Lent, models.CASCADE),
        fan=models.ForeignKey(fan, models.DO_NOTHING, db_constraint=False, related_name="+"),
    )
    made.Box = model(
        "Box",
        (base,),
        user_id=key(),
        name=name(),
        code=models.IntegerField(),
        note=models.CharField(max_length=50, blank=True),
        owner=models.ForeignKey(
            fan, models.DO_NOTHING, null=True, blank=True, db_constraint=False, related_name="+"
        ),
        meta={
            "constraints": [models.UniqueConstraint("user_id", "code", name="box_code")],
        },
    )
    counted = model(
        "Counted",
        (base,),
        number=models.IntegerField(default=0),
        level=models.IntegerField(db_default=3),
        double=models.GeneratedField(
            expression=F("number") * 2, output_field=models.IntegerField(), db_persist=True
        ),
        meta={"abstract": True},
    )
    made.Task = model(
        "Task",
        (counted,),
        user_id=key(),
        name=name(),
        word=models.CharField(max_length=50, blank=True),
        is_open=models.BooleanField(default=True),
        day=models.DateField(null=True, blank=True),
        at=models.DateTimeField(default=START),
        box=models.ForeignKey(
            made.Box, models.SET_NULL, null=True, blank=True, related_name="tasks"
        ),
        parent=models.ForeignKey(
            "self", models.CASCADE, null=True, blank=True, related_name="children"
        ),
        boxes=models.ManyToManyField(made.Box, through=f"{app}.Link", related_name="linked"),
        objects=models.Manager() if base is models.Model else ShardedManager(),
        open=open_manager(),
        meta={
            "constraints": [
                models.UniqueConstraint(
                    fields=["user_id", "word"], condition=Q(is_open=True), name="task_word"
                ),
                models.CheckConstraint(condition=Q(number__gte=0), name="task_number"),
            ],
        },
    )
    made.OpenTask = model("OpenTask", (made.Task,), objects=open_manager(), meta={"proxy": True})
    made.Link = model(
        "Link",
        (base,),
        user_id=key(),
        name=name(),
        task=models.ForeignKey(made.Task, models.CASCADE, related_name="links"),
        box=models.ForeignKey(made.Box, models.CASCADE, related_name="links"),
    )
    made.Slot = model(
        "Slot",
        (base,),
        id=None,
        pk=models.CompositePrimaryKey("user_id", "number"),
        user_id=key(),
        number=models.IntegerField(),
        name=name(),
        note=models.CharField(max_length=50, blank=True),
        box=models.ForeignKey(
            made.Box, models.CASCADE, null=True, blank=True, related_name="slots"
        ),
    )
    return made


def create_models(app):
    """The operations that create the models of an application, for its migration."""
    from django.apps import apps
    from django.db.migrations.autodetector import MigrationAutodetector
    from django.db.migrations.state import ProjectState

    before, after = ProjectState.from_apps(apps), ProjectState.from_apps(apps)
    for label, name in list(before.models):
        if label == app:
            before.remove_model(label, name)
    made = MigrationAutodetector(before, after)._detect_changes()
    return [operation for migration in made[app] for operation in migration.operations]


MODELS = declare(
    "kinds",
    ShardedModel,
    ShardKeyField,
    lambda: ShardKeyForeignKey(Owner, models.CASCADE, related_name="owned"),
    Fan,
    OpenManager,
)
globals().update(vars(MODELS))
