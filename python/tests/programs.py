"""Random programs of the ORM on shards, and the same in one plain database. Each answer is equal,
or an error is raised before anything is written.

PGSHARD_TEST_PROGRAMS names for how many seconds they run, PGSHARD_TEST_SEED the seed of the first.
"""

import os
import random
import time
import traceback
from collections import Counter
from contextlib import nullcontext

USERS = (
    3,
    12,
    19,
    4,
)  # The first and the third are on one shard, the last on the first one's host.
SHARDS = (3, 12, 4)
SECONDS = float(os.environ.get("PGSHARD_TEST_PROGRAMS", "8"))
SEED = int(os.environ.get("PGSHARD_TEST_SEED", "1"))
STEPS = 80
COMPARED = ("user_id", "number", "level", "double", "word", "note", "code", "is_open", "at", "day")
"""The columns that are compared, besides the names of rows."""


class Undo(Exception):
    """A program takes its transaction back."""


class World:
    """One of the two: the models, and what differs between them."""

    def __init__(self, models, sharded):
        self.m, self.sharded = models, sharded
        self.all = {*vars(models).values()}
        self.objects = {}
        """The objects that the program holds, by name."""
        self.log = []
        """What the hooks have said."""

    def run(self, user, work):
        """In a transaction of this user."""
        from django.db import transaction

        from pgshard.django import run_in_shard

        if self.sharded:
            return run_in_shard(user, work)
        with transaction.atomic():
            return work()

    def new_id(self, ids):
        """Of the numbers for a new object the one for this world: one of its shard, or of all."""
        return ids[0 if self.sharded else 1]

    def forget(self):
        """Reads each object again: an attempt that failed may have changed it."""
        models = {}
        for name, one in self.objects.items():
            models.setdefault(type(one), []).append(name)
        found = {}
        for model, names in models.items():
            for where in self.databases():
                rows = model._base_manager.using(where).filter(name__in=names)
                found.update((one.name, one) for one in rows)
        self.objects = {name: found[name] for name in self.objects if name in found}

    def databases(self):
        return [f"shard-{shard}" for shard in SHARDS] if self.sharded else ["default"]

    def of(self, label):
        """The objects of a model, by name."""
        model = getattr(self.m, label)
        return [one for _, one in sorted(self.objects.items()) if type(one) is model]

    def table(self, name):
        """A table of the application, in SQL."""
        return f"{{shard}}.kinds_{name}" if self.sharded else f"plain_{name}"

    def across(self, rows):
        """These rows of all users."""
        return rows.across_shards() if self.sharded else rows

    def by_ids(self, rows, objects):
        """The rows of these objects, in their order."""
        ids = [one.pk for one in objects]
        if self.sharded:
            return rows.by_ids(ids)
        found = rows.in_bulk(ids)
        return [found[id] for id in ids if id in found]

    def fresh(self, name):
        """An object as it was read just now."""
        one = self.objects[name]
        # An ID from before the shards names no shard: the key is named too.
        keys = {"user_id": one.user_id} if hasattr(one, "user_id") else {}
        return type(one)._base_manager.using(one._state.db).get(pk=one.pk, **keys)

    def everywhere(self):
        """Within it, rows are found by their IDs alone."""
        return nullcontext()

    def dump(self):
        """All rows, without IDs."""
        found = []
        for label, model in sorted(vars(self.m).items()):
            if label in ("Owner", "Fan"):
                found += [(label, one.name) for one in model.objects.all()]
                continue
            if label == "Mark":
                with self.everywhere():
                    found += [(label, one.name, seen(one.about)) for one in model.objects.all()]
                continue
            names = ["name"]
            names += [
                f"{field.name}__name"
                for field in model._meta.get_fields()
                if (
                    (field.concrete and field.many_to_one) or field.one_to_one or field.many_to_many
                )
                and not field.auto_created
                and field.name not in ("content_type", "owner", "fan", "fans")
            ]
            names += [
                field.attname for field in model._meta.concrete_fields if field.name in COMPARED
            ]
            for where in self.databases():
                rows = model._base_manager.using(where).order_by()
                found += [(label, *map(str, row)) for row in rows.values_list(*names)]
                if label in ("Liked", "Lent"):
                    found += [("fans", one.name, seen(set(one.fans.all()))) for one in rows]
                if label == "Remark":
                    found += [
                        ("about", one.name, seen(one.about))
                        for one in rows
                        if one.content_type.model_class() in vars(self.m).values()
                    ]
        return sorted(found, key=str)


class OneDatabase(World):
    """The models of shards, on an unsharded host."""

    def new_id(self, ids):
        return ids[1]

    def databases(self):
        from pgshard.django.cluster import ALL_ROWS

        return [ALL_ROWS]

    def everywhere(self):
        from pgshard.django.cluster import ALL_ROWS
        from pgshard.django.routing import within

        return within(ALL_ROWS)


def seen(value):
    """An answer without IDs, which differ."""
    from django.db.models import Model, QuerySet

    if isinstance(value, Model):
        return (type(value).__name__, value.name)
    if isinstance(value, dict):
        return sorted((str(name), seen(one)) for name, one in value.items())
    if isinstance(value, (set, frozenset)) or (
        isinstance(value, QuerySet) and not value.query.order_by
    ):
        return sorted(map(seen, value), key=str)
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [seen(one) for one in value]
    return value


class Program:
    """Makes steps by chance. A step is a name and a function of a world; what is chosen by chance
    is chosen once, for both."""

    often = ()
    """Steps that are chosen more often."""

    def __init__(self, random, kinds):
        self.random, self.kinds = random, kinds
        self.opening = []
        self.number = 0
        self.ids = Counter()
        self.labels = {}
        """By name: the label of the model of each object, and its user."""

    # ------------------------------------------------------------------------ choices

    def new(self, label, user):
        self.number += 1
        name = f"n{self.number}"
        self.labels[name] = (label, user)
        return name

    def user(self, like=None, often=0.7):
        """A user: often the one of `like`."""
        if like is not None and self.random.random() < often:
            return self.labels[like][1]
        return self.random.choice(USERS)

    def some(self, *labels):
        """The name of an object of one of these models; None if there is none."""
        names = [name for name, (label, _) in self.labels.items() if label in labels]
        return self.random.choice(names) if names else None

    def kind(self):
        return self.random.choice(self.kinds)

    def step(self):
        if self.opening:
            made = self.opening.pop(0)()
            if made is not None:
                return "opening", made
        names = [name for name in dir(self) if name.startswith("step_")]
        makers = [getattr(self, name) for name in (*names, *self.often * 4)]
        while True:
            maker = self.random.choice(makers)
            made = maker()
            if made is not None:
                return maker.__name__, made


def refusals():
    from django.db.transaction import TransactionManagementError

    from pgshard import LegacyId
    from pgshard.django import NoShard, Unsharded, WrongShard

    return (NoShard, WrongShard, LegacyId, Unsharded, TransactionManagementError)


def is_of_another_shard(answer):
    """Whether this is what `full_clean` raises for a row of one shard that refers to another."""
    from django.core.exceptions import ValidationError

    if not isinstance(answer, ValidationError):
        return False
    errors = [error for some in answer.error_dict.values() for error in some]
    return all(error.code in ("shard", "invalid") for error in errors)


def attempt(call):
    """The answer of a call, and what it was seen as; or its error."""
    try:
        answer = call()
        return answer, seen(answer)
    except Exception as error:  # noqa: BLE001
        return error, ("error", type(error).__name__)


def following(steps, answer):
    """The next call of a step, after the answer of the last; None at its end."""
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def play(seed, here, there, counts, make):
    """Runs a program. Raises `AssertionError` with the first difference."""
    chance = random.Random(seed)
    program = make(chance)
    for at in range(STEPS):
        # What is gone cannot be chosen any more.
        held = here.objects.keys() & there.objects.keys()
        program.labels = {name: one for name, one in program.labels.items() if name in held}
        name, work = program.step()
        counts["steps"] += 1
        counts[name] += 1
        mine, plain = work(here), work(there)
        sent = [None, None]
        while True:
            call, same = following(mine, sent[0]), following(plain, sent[1])
            assert (call is None) == (same is None), name
            if call is None:
                break
            counts["calls"] += 1
            answer, given = attempt(call)
            failed = isinstance(answer, Exception)
            assert not isinstance(answer, NameError), "the program itself is wrong"
            across = isinstance(answer, ValueError) and "across different databases" in str(answer)
            if across or isinstance(answer, refusals()):
                counts["refusals"] += 1
                counts[f"refused {name}"] += 1
            else:
                wanted_answer, wanted = attempt(same)
                if is_of_another_shard(answer) and wanted is None:
                    wanted, counts["refusals"] = given, counts["refusals"] + 1
                if given != wanted:
                    said = answer if failed else wanted_answer
                    cause = said if isinstance(said, Exception) else None
                    where = f"seed {seed}, step {at}, {name}"
                    raise AssertionError(f"{where}: {given}, and plain {wanted}") from cause
                counts["errors"] += failed
                if failed:
                    counts[f"{given[1]} {name}"] += 1
                sent = [answer, wanted_answer]
            if failed:
                here.forget()
                there.forget()
                break
        if at % 40 == 39:
            mine, plain = here.dump(), there.dump()
            left, right = [x for x in mine if x not in plain], [x for x in plain if x not in mine]
            assert mine == plain, f"seed {seed}, before step {at + 1}: {left}, and plain {right}"


def clear(kinds, plain):
    """Empties both worlds. Each shard numbers its rows from one."""
    from django.apps import apps
    from django.db import connection, connections

    from pgshard.django.sharded import is_sharded

    for shard in SHARDS:
        tables = [
            f"{{shard}}.{model._meta.db_table}"
            for model in apps.get_app_config("kinds").get_models(include_auto_created=True)
            if is_sharded(model)
        ]
        with connections[f"shard-{shard}"].cursor() as cursor:
            cursor.execute("; ".join(f"DELETE FROM {table}" for table in tables))
            for table in ("num", "refnumofnum"):
                cursor.execute(f"SELECT setval('{{shard}}.kinds_{table}_id_seq', 1, false)")
    for model in (kinds.Owner, kinds.Fan, kinds.Mark):
        model.objects.all()._raw_delete("default")
    tables = [
        model._meta.db_table
        for model in apps.get_app_config("plain").get_models(include_auto_created=True)
    ]
    with connection.cursor() as cursor:
        cursor.execute("; ".join(f"DELETE FROM {table}" for table in tables))


def find_differences(make, world=World, begin=lambda seed: None):
    """Runs programs of this kind for some time, each after `begin`. Raises `AssertionError` with
    the first differences of some of them; otherwise returns what they did, counted."""
    from django.test import override_settings
    from kinds import models as kinds
    from plain import models as plain

    counts, end, seed, failed = Counter(), time.monotonic() + SECONDS, SEED, []
    while time.monotonic() < end and len(failed) < 5:
        clear(kinds, plain)
        try:
            begin(seed)
            here, there = world(kinds.MODELS, sharded=True), World(plain.MODELS, sharded=False)
            here.m.Owner, there.m.Owner = kinds.Owner, plain.Owner
            here.m.Fan, there.m.Fan = kinds.Fan, plain.Fan
            here.m.Mark, there.m.Mark = kinds.Mark, plain.Mark
            with override_settings(PGSHARD_UNCOVERED_WRITES="error"):
                play(seed, here, there, counts, make)
        except AssertionError as error:
            failed.append("".join(traceback.format_exception(error)))
        counts["programs"] += 1
        seed += 1
    clear(kinds, plain)
    print(dict(counts))
    assert not failed, "\n\n".join(failed)
    return counts
