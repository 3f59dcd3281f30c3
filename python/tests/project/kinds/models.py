"""Models with all kinds of primary keys, and all kinds of relations to them. The application
`plain` has the same ones in one database, as the oracle of tests/orm/test_programs.py."""

from types import SimpleNamespace

from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import models

from pgshard.django import ShardedModel, ShardKeyField, ShardKeyForeignKey


class Owner(models.Model):
    """Not sharded. The key of some models refers to it."""

    name = models.CharField(max_length=50)


class Fan(models.Model):
    """Not sharded. Some models have a many-to-many field to it."""

    name = models.CharField(max_length=50)


KINDS = ("Made", "Num", "Uid", "Given", "Own")
"""The kinds of primary keys: made by the shard, a number of the table, a UUID, a number that the
application gives, the key itself."""


def declare(app, base, key, owner_key, fan):
    """Declares the models of an application."""

    def model(label, bases, **body):
        body["Meta"] = type("Meta", (), {"app_label": app})
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
    return made


MODELS = declare(
    "kinds",
    ShardedModel,
    ShardKeyField,
    lambda: ShardKeyForeignKey(Owner, models.CASCADE, related_name="owned"),
    Fan,
)
globals().update(vars(MODELS))
