"""More random programs, what the ORM's queries, upserts, signals,
constraints, asynchronous methods and nested transactions do on shards and in one database.
"""

import datetime
import pickle
from functools import partial

import pytest
from programs import USERS, Program, Undo, find_differences, seen

pytestmark = pytest.mark.usefixtures("db")

WORDS = ("", "a", "b", "c", "d")


def in_order(rows):
    """Names in the query's order."""
    return [one.name for one in rows]


def run_async(function):
    """Runs a coroutine function in this thread, with its calls of the ORM in this thread, too."""
    from asgiref.sync import async_to_sync

    async def run():
        return await function()

    return async_to_sync(run)()


class QueryProgram(Program):
    """Tasks in boxes of several users."""

    often = ("step_query", "step_query", "step_query", "step_task", "step_box", "step_mark")

    def __init__(self, random):
        super().__init__(random, ())
        self.opening = [partial(self.make_box, user) for user in USERS for _ in range(2)]
        self.opening += [partial(self.make_task, user) for user in USERS * 3]
        self.opening += [partial(self.make_slot, user) for user in USERS]

    def of(self, user, *labels):
        """The name of an object of this user."""
        found = [
            name for name, (label, of) in self.labels.items() if label in labels and of == user
        ]
        return self.random.choice(found) if found else None

    def task(self):
        return self.some("Task", "Task", "OpenTask")

    def like(self, name, *labels):
        """Often an object of the same user."""
        if name is None or self.random.random() < 0.25:
            return self.some(*labels)
        return self.of(self.labels[name][1], *labels)

    def moment(self):
        from kinds.models import START

        return START + datetime.timedelta(hours=self.random.randrange(24 * 60))

    # ------------------------------------------------------------------------- writes

    def make_box(self, user):
        name, code, how = self.new("Box", user), self.random.randrange(6), self.random.randrange(6)

        def work(w):
            rows, given = w.m.Box.objects, {"name": name, "user_id": user, "code": code}
            lookups = {"user_id": user, "code": code}
            if how == 0:
                one, _ = yield lambda: rows.get_or_create(**lookups, defaults={"name": name})
            elif how == 1:
                one, _ = yield lambda: rows.update_or_create(
                    **lookups, defaults={"note": lambda: "noted"}, create_defaults={"name": name}
                )
            elif how == 2:
                one, _ = yield lambda: run_async(
                    lambda: rows.aget_or_create(**lookups, defaults={"name": name})
                )
            elif how == 3:
                one, _ = yield lambda: run_async(
                    lambda: rows.aupdate_or_create(
                        **lookups,
                        defaults={"note": "async"},
                        create_defaults={"name": name, "note": "new"},
                    )
                )
            elif how == 4:
                one = w.m.Box(**given)
                yield one.full_clean
                yield one.save
            else:
                one = yield lambda: rows.create(**given)
            w.objects[one.name] = one
            if one.name != name:
                return
            yield lambda: one.note
            yield one.refresh_from_db
            yield lambda: (one.note, one.code)

        return work

    def step_box(self):
        return self.make_box(self.random.choice(USERS))

    def make_task(self, user):
        label = self.random.choice(("Task", "Task", "OpenTask"))
        name, box = self.new(label, user), self.some("Box") if self.random.random() < 0.1 else None
        box, parent = box or self.of(user, "Box"), self.of(user, "Task")
        moment, number = self.moment(), self.random.randrange(-1, 20)
        word = self.random.choice((name, name, *WORDS))
        is_open, how = self.random.random() < 0.8, self.random.randrange(7)

        def work(w):
            from django.db.models import F, Value

            model = getattr(w.m, label)
            given = {
                "name": name,
                "user_id": user,
                "number": number,
                "word": word,
                "is_open": is_open,
                "at": moment,
                "day": moment.date(),
                "box": w.objects.get(box),
                "parent": w.objects.get(parent) if how % 2 else None,
            }
            one = None
            if how == 0:
                one = yield lambda: model(**given)
                yield one.full_clean
                yield one.save
            elif how == 1:
                (one,) = yield lambda: model.objects.bulk_create([model(**given)])
            elif how == 2:
                one = yield lambda: run_async(lambda: model.objects.acreate(**given))
            elif how == 3 and given["box"]:
                del given["box"]
                one = yield lambda: w.objects[box].tasks.create(**given)
            elif how == 4:
                one = yield lambda: model(**{**given, "number": Value(number) + 1, "level": 4})
                yield one.save
            elif how == 5:
                one = yield lambda: model(**given)
                yield lambda: run_async(one.asave)
                yield lambda: setattr(one, "number", F("number") + 2)
                yield one.save
                yield one.refresh_from_db
            else:
                one = yield lambda: model.objects.create(**given)
            w.objects[name] = one
            yield one.refresh_from_db
            yield lambda: (one.number, one.level, one.double, one.word, one.box, one.parent)

        return work

    def step_task(self):
        return self.make_task(self.random.choice(USERS))

    def make_slot(self, user):
        name, how = self.new("Slot", user), self.random.randrange(5)
        box, number = self.of(user, "Box"), self.random.randrange(4)

        def work(w):
            rows = w.m.Slot.objects
            given = {"user_id": user, "number": number}
            rest = {"name": name, "box": w.objects.get(box)}
            if how == 0:
                one, _ = yield lambda: rows.get_or_create(pk=(user, number), defaults=rest)
            elif how == 1:
                one, _ = yield lambda: rows.update_or_create(
                    **given, defaults={"note": "again"}, create_defaults=rest
                )
            elif how == 2:
                one = w.m.Slot(pk=(user, number), **rest)
                yield lambda: one.save(force_insert=True)
            elif how == 3:
                (one,) = yield lambda: rows.bulk_create([w.m.Slot(**given, **rest)])
            else:
                one = yield lambda: rows.create(**given, **rest)
            w.objects[one.name] = one
            yield lambda: one.pk

        return work

    def step_slot(self):
        """Composite primary keys."""
        if self.random.random() < 0.3:
            return self.make_slot(self.random.choice(USERS))
        names = [self.some("Slot") for _ in range(2)]
        if None in names:
            return None
        how, user = self.random.randrange(14), self.random.choice(USERS)

        def work(w):
            rows, (one, other) = w.m.Slot.objects, [w.objects[name] for name in names]
            own = rows.filter(user_id=user)
            yield [
                lambda: rows.get(pk=one.pk),
                lambda: rows.filter(pk__in=[one.pk, other.pk]),
                lambda: rows.filter(pk=one.pk).update(note="updated"),
                lambda: set(rows.in_bulk([one.pk, other.pk]).values()),
                lambda: [own.contains(one), one == other, len({one, other})],
                lambda: rows.filter(pk=one.pk).count(),
                lambda: own.values_list("pk", "name").order_by("pk"),
                lambda: one.box and one.box.slots.filter(pk=one.pk),
                lambda: rows.filter(pk=one.pk, user_id=user),
                lambda: rows.exclude(pk=one.pk).filter(user_id=user),
                lambda: own.order_by("-pk").first(),
                lambda: rows.filter(pk__lte=one.pk, user_id=user),
                lambda: rows.bulk_update([one, other], ["note"]),
                lambda: rows.filter(pk__in=own.values("pk")),
            ][how]
            yield one.refresh_from_db
            yield lambda: one.note
            if how == 13:
                yield lambda: one.delete()[0]
                w.forget()

        return work

    def step_bulk(self):
        user, how = self.random.choice(USERS), self.random.randrange(6)
        users = [self.user() if self.random.random() < 0.05 else user for _ in range(4)]
        names = [self.new("Box", of) for of in users]
        codes = [self.random.randrange(12) for _ in users]

        def work(w):
            from django.db import transaction

            rows = w.m.Box.objects
            some = [
                w.m.Box(name=name, user_id=of, code=code, note=f"bulk {code}")
                for name, of, code in zip(names, users, codes, strict=True)
            ]
            upsert = {
                "update_conflicts": True,
                "unique_fields": ["user_id", "code"],
                "update_fields": ["note"],
            }

            def create(**options):
                with transaction.atomic():
                    return len(rows.bulk_create(some, **options))

            yield [
                lambda: create(ignore_conflicts=True),
                lambda: create(**upsert),
                lambda: rows.bulk_create(some, batch_size=2, ignore_conflicts=True),
                lambda: run_async(lambda: rows.abulk_create(some, **upsert)),
                lambda: rows.bulk_create(iter(some[:2]), **upsert, batch_size=1),
                lambda: rows.bulk_create(some),
            ][how]
            found = yield lambda: rows.filter(user_id=user).order_by("code")
            w.objects.update((one.name, one) for one in found)
            yield lambda: found.values_list("code", "note")

        return work

    def step_bulk_update(self):
        names = [self.task()] + [None] * 2
        names[1:] = [self.like(names[0], "Task", "Task") for _ in names[1:]]
        how = self.random.randrange(6)
        if None in names:
            return None
        word = f"w{self.number}"

        def work(w):
            from django.db.models import Case, F, Value, When
            from django.db.models.functions import Concat

            some = [w.objects[name] for name in dict.fromkeys(names)]
            rows = w.m.Task.objects
            for at, one in enumerate(some):
                one.level = [at, F("level") + 1, Value(9)][how % 3]
                one.word = Concat("name", Value("!")) if how == 4 else f"{word}-{at}"
            if how == 5:
                yield lambda: rows.filter(user_id=some[0].user_id).update(
                    level=Case(When(name=some[0].name, then=F("number")), default=Value(1))
                )
            elif how == 3:
                yield lambda: run_async(lambda: rows.abulk_update(some, ["level", "word"]))
            else:
                yield lambda: rows.bulk_update(some, ["level", "word"], batch_size=how + 1)
            for one in some:
                yield one.refresh_from_db
                yield lambda one=one: (one.level, one.word, one.double)

        return work

    def step_update(self):
        name = self.task()
        box, how = self.like(name, "Box"), self.random.randrange(14)
        if name is None or box is None:
            return None
        user = self.labels[name][1]

        def work(w):
            from django.db.models import Count, F, OuterRef, Q, Subquery

            one, to, rows = w.objects[name], w.objects[box], w.m.Task.objects
            own = rows.filter(user_id=user)
            ordered = w.m.Box.objects.filter(user_id=OuterRef("user_id")).order_by("-code")
            unplaced = w.m.Box.objects.filter(user_id=user).order_by("code", "name")
            yield [
                lambda: own.update(number=F("number") + 1),
                lambda: own.update(number=F("number") - 3),
                lambda: own.update(level=Subquery(ordered.values("code")[:1])),
                lambda: own.filter(name=one.name).update(box=Subquery(unplaced.values("pk")[:1])),
                lambda: own.filter(box__code__gte=2).update(level=11),
                lambda: own.filter(pk__in=own.order_by("name")[:2]).update(level=12),
                lambda: own.order_by("-number").update(number=F("double")),
                lambda: own.filter(Q(box=to) | Q(level=3)).update(level=F("level") + 1),
                lambda: own.annotate(n=Count("children")).filter(n__gt=0).update(level=13),
                lambda: to.tasks.update(level=14),
                lambda: rows.filter(pk=one.pk).update(box=to),
                lambda: rows.filter(pk=one.pk).update(box_id=to.pk),
                lambda: own.update(parent=one),
                lambda: run_async(lambda: own.aupdate(at=one.at, day=None)),
            ][how]
            yield lambda: own.order_by("name").values_list("name", "number", "level", "box__name")
            w.forget()

        return work

    def step_children(self):
        """Related managers of references that may be null, and of a table of one's own."""
        box = self.some("Box")
        tasks = [self.like(box, "Task", "Task") for _ in range(2)]
        if box is None or None in tasks:
            return None
        how, name = self.random.randrange(18), f"link {self.number}"

        def work(w):
            from django.db.models import Count

            to, some = w.objects[box], [w.objects[task] for task in dict.fromkeys(tasks)]
            one = some[0]
            more = {"through_defaults": {"name": name, "user_id": to.user_id}}
            yield [
                lambda: to.tasks.add(*some),
                lambda: to.tasks.add(*some, bulk=False),
                lambda: to.tasks.set(some),
                lambda: to.tasks.set(some, bulk=False, clear=True),
                lambda: to.tasks.remove(*some),
                lambda: to.tasks.clear(),
                lambda: run_async(lambda: to.tasks.aset(some)),
                lambda: run_async(lambda: to.tasks.aadd(*some)),
                lambda: run_async(lambda: to.tasks.aremove(one)),
                lambda: one.boxes.add(to, **more),
                lambda: to.linked.set(some, **more),
                lambda: one.boxes.remove(to),
                lambda: one.boxes.clear(),
                lambda: run_async(lambda: to.linked.aadd(*some, **more)),
                lambda: to.linked.filter(level=3).update(level=5),
                lambda: one.boxes.set([to.pk], **more),
                lambda: one.boxes.add(to.pk, **more),
                lambda: w.m.Link.objects.create(task=one, box=to, name=name, user_id=to.user_id),
            ][how]
            w.forget()
            yield lambda: sorted(in_order(to.tasks.all()))
            yield lambda: sorted(in_order(to.linked.all()))
            yield lambda: sorted(in_order(one.boxes.filter(code__gte=0)))
            yield lambda: (to.linked.through.objects.filter(box=to).count(), to.links.count())
            yield lambda: to.tasks.filter(is_open=True).aggregate(n=Count("pk"))

        return work

    def step_saved(self):
        name, how = self.task(), self.random.randrange(15)
        other = self.like(name, "Task", "Box")
        if name is None or other is None:
            return None
        label, user = self.labels[name]
        is_task = self.labels[other][0] == "Task"
        copied = self.new(label, user)

        def work(w):
            one, than = w.fresh(name), w.objects[other]
            rows = type(one)._base_manager.filter(user_id=one.user_id)
            one.word = f"s-{copied}"
            if how == 0:
                yield lambda: one.save(update_fields=["word", "level"])
            elif how == 1:
                one = yield lambda: rows.only("name").get(name=name)
                yield one.get_deferred_fields
                yield lambda: (one.number, one.user_id)
                yield one.save
            elif how == 2:
                one = yield lambda: rows.defer("user_id", "word").get(name=name)
                one.level = 77
                yield one.save
                yield lambda: (one.user_id, one.box, one.word)
            elif how == 3:
                yield lambda: one.save(force_insert=True)
            elif how == 4:
                yield lambda: one.save(force_update=True)
            elif how == 5:
                one.pk, one._state.adding, one.name = None, True, copied
                yield one.save
                w.objects[copied] = one
            elif how == 6:
                yield lambda: one.refresh_from_db(fields=["word"])
                yield lambda: one.refresh_from_db(fields=["box", "double"])
                yield lambda: (one.word, one.box, one.double)
            elif how == 7:
                yield lambda: one.refresh_from_db(from_queryset=type(one)._base_manager.filter())
            elif how == 8:
                yield lambda: one.delete()[0]
                yield one.refresh_from_db
            elif how == 9:
                yield lambda: one.delete()[0]
                w.forget()
                yield lambda: one.pk
                yield one.save
                w.objects[name] = one
            elif how == 10:
                one = yield lambda: pickle.loads(pickle.dumps(one))
                yield one.save
                yield lambda: (one.box, one == w.objects[name])
            elif how == 11:
                yield lambda: setattr(one, "parent" if is_task else "box", than)
                yield one.full_clean
                yield one.save
            elif how == 12:
                one.parent_id = than.pk
                yield one.full_clean
                yield one.save
            elif how == 13:
                yield lambda: run_async(one.arefresh_from_db)
                yield lambda: run_async(one.adelete)[0]
                w.forget()
                return
            else:
                one = yield lambda: rows.defer("number").get(name=name)
                yield lambda: run_async(partial(one.arefresh_from_db, fields=["number", "parent"]))
                yield lambda: (one.number, one.parent)
            yield one.refresh_from_db
            yield lambda: (one.word, one.level, one.number, one.parent, one.box)
            w.forget()

        return work

    def step_constraint(self):
        name, how = self.task(), self.random.randrange(9)
        if name is None:
            return None
        other, user = self.of(self.labels[name][1], "Task", "OpenTask"), self.labels[name][1]
        new, key = self.new("Task", user), self.user(name)

        def work(w):
            from django.db import transaction
            from django.forms import modelform_factory

            one, than = w.fresh(name), w.objects.get(other)
            word = than.word if than else "none"
            made = w.m.Task(name=new, user_id=key, word=word)
            data = {"name": new, "user_id": key, "word": word, "number": -1 if how == 6 else 5}
            form = modelform_factory(w.m.Task, fields=["name", "user_id", "word", "number"])

            def save(some):
                with transaction.atomic():
                    some.save()

            def validated(some):
                if not some.is_valid():
                    return sorted(map(str, some.errors.items()))
                return "valid"

            if how == 0:
                yield lambda: save(made)
            elif how == 1:
                yield made.validate_constraints
                yield made.save
            elif how == 2:
                yield made.full_clean
                yield made.save
            elif how == 3:
                one.word = word
                yield one.full_clean
                yield one.save
            elif how == 4:
                one.number = -5
                yield lambda: save(one)
            elif how == 5:
                one.number = -5
                yield one.validate_constraints
            elif how in (6, 7):
                filled = form(data, instance=one if how == 7 and key == user else None)
                yield lambda: validated(filled)
                made = yield filled.save
            else:
                yield lambda: w.m.Task.open.update_or_create(
                    user_id=key, word=word, defaults={"level": 6}, create_defaults={"name": new}
                )
            w.forget()
            rows = w.m.Task.objects.filter(user_id=key)
            found = yield lambda: rows.filter(name=new).first()
            if found is not None:
                w.objects[new] = found
            yield lambda: rows.order_by("name").values_list("name", "word", "level")

        return work

    # ------------------------------------------------------------------------ signals

    def step_signals(self):
        name, how = self.task(), self.random.randrange(10)
        box, box_of = self.like(name, "Box"), self.random.randrange(4)
        if name is None or box is None:
            return None
        user = self.labels[name][1]
        new, audit = self.new("Task", user), self.new("Box", user)
        code = 1000 + self.number

        def work(w):
            from django.db import transaction
            from django.db.models import signals

            one, to, log = w.fresh(name), w.objects[box], []

            def receive(at, sender, instance, **kwargs):
                if sender not in w.all:
                    return
                about = instance.name if hasattr(instance, "name") else type(instance).__name__
                keys = kwargs.get("pk_set")
                log.append(
                    [
                        at,
                        sender.__name__,
                        about,
                        kwargs.get("created"),
                        kwargs.get("action"),
                        None if keys is None else len(keys),
                    ]
                )
                if sender is w.m.Task and at == "post_save" and box_of:
                    if box_of == 1:
                        raise Undo
                    # What a handler writes names the key, or is of the shard that is chosen.
                    using = kwargs["using"] if box_of == 2 else None
                    w.m.Box.objects.using(using).create(user_id=user, name=audit, code=code)
                    transaction.on_commit(lambda: log.append("committed"), using=kwargs["using"])
                if sender is w.m.Task and at == "pre_delete":
                    log.append(sorted(in_order(instance.children.all())))

            names = ("pre_save", "post_save", "pre_delete", "post_delete", "m2m_changed")
            receivers = {at: partial(receive, at) for at in names}
            more = {"through_defaults": {"user_id": user, "name": audit}}
            values = {"user_id": user, "name": new, "word": new}

            def inside(call):
                with transaction.atomic(using=one._state.db):
                    return call()

            calls = [
                lambda: w.m.Task.objects.create(**values),
                lambda: w.m.OpenTask.objects.create(**values),
                lambda: one.save(),
                lambda: inside(one.save),
                lambda: one.delete()[0],
                lambda: type(one).objects.filter(user_id=user, name=name).delete()[0],
                lambda: to.linked.add(one, **more),
                lambda: to.linked.set([one], clear=True, **more),
                lambda: to.delete()[0],
                lambda: w.m.Task.objects.update_or_create(
                    user_id=user, name=name, defaults={"level": 2}, create_defaults=values
                )[1],
            ]

            def listen():
                for at, receiver in receivers.items():
                    getattr(signals, at).connect(receiver, weak=False, dispatch_uid=at)
                try:
                    return calls[how](), log
                except Undo:
                    return "undone", log
                finally:
                    for at in names:
                        getattr(signals, at).disconnect(dispatch_uid=at)

            yield listen
            w.forget()
            for label, at in (("Task", new), ("Box", audit)):
                found = (
                    yield lambda label=label, at=at: (
                        getattr(w.m, label).objects.filter(user_id=user, name=at).first()
                    )
                )
                if found is not None:
                    w.objects[at] = found

        return work

    # -------------------------------------------------------------------- transactions

    def step_nested(self):
        user, how = self.random.choice(USERS), self.random.randrange(14)
        name, box = self.of(user, "Task"), self.some("Box")
        if name is None or box is None:
            return None
        of = self.user() if self.random.random() < 0.1 else user
        new = self.new("Task", of)

        def work(w):
            from django.db import DatabaseError, transaction

            log = []

            def create():
                return w.m.Task.objects.create(user_id=of, name=new, word=new)

            def fail():
                raise Undo

            def broken():
                log.append("robust")
                raise ValueError("of a hook")

            def whole():
                rows = w.m.Task.objects.filter(user_id=user)
                if how == 0:
                    with transaction.atomic(durable=True):
                        create()
                elif how == 1:
                    transaction.on_commit(broken, robust=True)
                    transaction.on_commit(lambda: log.append("second"))
                    create()
                elif how == 2:
                    try:
                        with transaction.atomic():
                            create()
                            rows.filter(name=name).update(number=-7)
                    except DatabaseError:
                        log.append("failed")
                    rows.filter(name=name).update(level=21)
                elif how == 3:
                    # Django 6.1 has another name for it.
                    make = getattr(transaction, "savepoint_create", transaction.savepoint)
                    outer = make()
                    create()
                    inner = make()
                    rows.filter(name=name).update(level=22)
                    transaction.savepoint_rollback(inner)
                    log.append(rows.get(name=name).level)
                    transaction.savepoint_commit(outer)
                elif how == 4:
                    locked = rows.select_for_update(of=("self",), skip_locked=True)
                    log.append(sorted(in_order(locked.select_related("box"))))
                elif how == 5:
                    locked = rows.select_for_update(no_key=True, nowait=True, of=("self", "box"))
                    with_box = locked.filter(box__isnull=False).select_related("box")
                    log.append(sorted(in_order(with_box)))
                elif how == 6:
                    one = rows.select_for_update().get(name=name)
                    one.level += 1
                    one.save(update_fields=["level"])
                    transaction.on_commit(lambda: log.append(rows.get(name=name).level))
                elif how == 7:
                    create()
                    for depth in range(3):
                        try:
                            with transaction.atomic():
                                rows.filter(name=name).update(level=30 + depth)
                                transaction.on_commit(lambda depth=depth: log.append(depth))
                                if depth % 2:
                                    fail()
                        except Undo:
                            log.append("undone")
                elif how == 8:
                    create()
                    fail()
                elif how == 9:
                    with transaction.atomic():
                        create()
                        transaction.set_rollback(True)
                        log.append(transaction.get_rollback())
                    log.append(rows.filter(name=new).exists())
                elif how == 10:
                    w.run(user, create)
                    log.append(transaction.get_connection().in_atomic_block)
                elif how == 11:
                    to = w.objects[box]
                    rows.filter(name=name).update(box=to)
                    log.append(to.tasks.count())
                elif how == 12:
                    transaction.on_commit(lambda: transaction.on_commit(lambda: log.append("on")))
                    transaction.on_commit(lambda: w.run(user, create))
                else:
                    w.run(user, create)
                    transaction.on_commit(fail)
                return log

            def attempt():
                try:
                    return w.run(user, whole), log
                except Undo:
                    return "undone", log

            yield attempt
            w.forget()
            rows = w.m.Task.objects.filter(user_id=user).order_by("name")
            found = yield lambda: rows.filter(name=new).first()
            if found is not None:
                w.objects[new] = found
            yield lambda: rows.values_list("name", "level", "number", "box__name")

        return work

    # -------------------------------------------------------------------------- reads

    def step_query(self):
        user, how = self.random.choice(USERS), self.random.randrange(79)
        name, box = self.of(user, "Task", "OpenTask"), self.some("Box")
        if name is None or box is None:
            return None

        def work(w):
            from django.core import serializers
            from django.core.paginator import Paginator
            from django.db import models
            from django.db.models import Count, Exists, F, OuterRef, Q, Subquery, Value, Window
            from django.db.models import functions as f
            from django.db.models.expressions import RawSQL

            one, to, rows = w.objects[name], w.objects[box], w.m.Task.objects
            own, boxes = rows.filter(user_id=user), w.m.Box.objects.filter(user_id=user)
            named, table = own.order_by("name"), w.table("task")
            inner = rows.filter(user_id=OuterRef("user_id"), number__gt=OuterRef("number"))
            by_number = own.order_by("number", "name")

            def listed(async_rows):
                async def collect():
                    return [one async for one in async_rows]

                return run_async(collect)

            ranked = own.annotate(
                rank=Window(f.RowNumber(), partition_by="box", order_by=["number", "name"])
            )
            yield [
                lambda: own.values("box__code").annotate(n=Count("pk")).order_by("box__code"),
                lambda: own.aggregate(
                    n=Count("pk"),
                    s=models.Sum("number"),
                    a=models.Avg("double"),
                    m=models.Min("at"),
                    x=models.Max("level", filter=Q(is_open=True)),
                    d=Count("box", distinct=True),
                    u=models.Sum("number", default=0),
                ),
                lambda: own.values_list("number", flat=True).distinct().order_by("number"),
                lambda: [tuple(x) for x in named.values_list("name", "box__name", named=True)],
                lambda: own.filter(number__gt=3).union(own.filter(level=3)),
                lambda: own.filter(number__gt=3).union(own.filter(level=3), all=True).count(),
                lambda: own.filter(number__gt=3).intersection(own.filter(level=3)),
                lambda: own.difference(own.filter(level=3)).order_by("name")[:3],
                lambda: own.union(rows.filter(user_id=to.user_id)),
                lambda: own.values_list("name").union(boxes.values_list("name")).order_by("name"),
                lambda: in_order(named[1:3]),
                lambda: in_order(named.reverse()[:2]),
                lambda: (named.first(), named.last(), own.earliest("at"), own.latest("at", "name")),
                lambda: in_order(named.iterator(chunk_size=2)),
                lambda: in_order(named.prefetch_related("children").iterator(chunk_size=2)),
                lambda: list(own.dates("day", "month")),
                lambda: list(own.datetimes("at", "day", order="DESC")),
                lambda: bool(own.explain()),
                lambda: [(x.name, x.user_id, x.word) for x in named.only("name")],
                lambda: [(x.name, x.box) for x in named.defer("box", "user_id")],
                lambda: named.select_related("box").only("name", "box__name"),
                lambda: [
                    (x.name, x.box and x.box.code)
                    for x in named.select_related("box").defer("box__code")
                ],
                lambda: rows.raw(
                    f"SELECT * FROM {table} WHERE user_id = %s ORDER BY name",
                    [user],
                    using=one._state.db,
                )[:],
                lambda: in_order(
                    rows.raw(
                        f"SELECT id, name FROM {table} WHERE user_id = %s ORDER BY 2",
                        [user],
                        using=one._state.db,
                    )
                ),
                lambda: own.extra(select={"twice": "number * 2"}).values_list("name", "twice"),
                lambda: own.extra(where=["number > %s"], params=[4]),
                lambda: own.annotate(x=RawSQL("number + %s", [1])).values_list("name", "x"),
                lambda: own.filter(pk__in=RawSQL(f"SELECT id FROM {table} WHERE number > %s", [4])),
                lambda: ranked.values_list("name", "rank").order_by("name"),
                lambda: ranked.filter(rank=1),
                lambda: by_number.annotate(
                    total=Window(models.Sum("number"), order_by=["number", "name"])
                ).values_list("name", "total"),
                lambda: by_number.annotate(
                    before=Window(f.Lag("name"), order_by=["number", "name"])
                ).values_list("name", "before"),
                lambda: own.annotate(more=Exists(inner)).values_list("name", "more"),
                lambda: own.filter(~Exists(inner)),
                lambda: named.annotate(
                    n=Subquery(inner.order_by("name").values("name")[:1])
                ).values_list("name", "n"),
                lambda: named.annotate(
                    n=Subquery(
                        inner.order_by().values("user_id").annotate(n=Count("pk")).values("n")
                    )
                ).values_list("name", "n"),
                lambda: own.filter(Exists(w.m.Link.objects.filter(task=OuterRef("pk"), box=to))),
                lambda: own.filter(Exists(w.m.Task.objects.filter(parent=OuterRef("pk")))),
                lambda: own.filter(number__in=boxes.values("code")),
                lambda: own.filter(box__in=boxes.filter(code__gt=2)),
                lambda: rows.filter(box__in=boxes.filter(code__gt=2)),
                lambda: boxes.filter(tasks__in=own.filter(level=3)).distinct(),
                lambda: boxes.filter(tasks__number__gt=3, tasks__level=3).distinct(),
                lambda: boxes.annotate(
                    n=Count("tasks"), m=Count("links", distinct=True)
                ).values_list("name", "n", "m"),
                lambda: boxes.annotate(
                    open=models.FilteredRelation("tasks", condition=Q(tasks__is_open=True))
                ).values_list("name", "open__name"),
                lambda: own.order_by("level", "name").distinct("level"),
                lambda: own.alias(x=F("number") + F("level")).filter(x__gt=7),
                lambda: own.annotate(
                    w=f.Upper("word"), c=f.Coalesce("box__name", Value("-"))
                ).values_list("name", "w", "c"),
                lambda: own.order_by(F("box__code").desc(nulls_last=True), "name").values_list(
                    "name"
                ),
                lambda: own.exclude(box__code=to.code),
                lambda: own.filter(box__user_id=user),
                lambda: rows.filter(box__user_id=user),
                lambda: own.filter(box=to, box__isnull=False),
                lambda: own.filter(parent__box=to),
                lambda: rows.filter(parent__parent__user_id=user),
                lambda: set(own.in_bulk(field_name="id").values()),
                lambda: rows.in_bulk([one.pk]).values(),
                lambda: [x.name for p in Paginator(named, 2) for x in p],
                lambda: (Paginator(named, 2).num_pages, Paginator(named, 3).get_page(9)[:]),
                lambda: pickle.loads(pickle.dumps(named)),
                lambda: listed(named),
                lambda: listed(named.aiterator(chunk_size=2)),
                lambda: run_async(named.afirst),
                lambda: run_async(partial(rows.aget, pk=one.pk)),
                lambda: run_async(own.acount),
                lambda: run_async(own.aexists),
                lambda: run_async(partial(own.aaggregate, n=Count("pk"))),
                lambda: run_async(partial(own.acontains, one)),
                lambda: run_async(partial(named.alast)),
                lambda: w.m.Task.open.filter(user_id=user),
                lambda: (
                    w.m.OpenTask.objects.filter(user_id=user),
                    w.m.OpenTask.open.filter(user_id=user).count(),
                ),
                lambda: [x["fields"]["name"] for x in serializers.serialize("python", named)],
                lambda: w.across(rows.order_by("name"))[1:7],
                lambda: w.across(rows).aggregate(
                    n=Count("pk"), s=models.Sum("number"), m=models.Max("at")
                ),
                lambda: w.across(rows.filter(Q(number__gt=5) | Q(level=3))).count(),
                lambda: [x.name for x in w.across(rows.order_by("-number", "name"))],
                lambda: w.by_ids(rows, [one, *w.of("Task")]),
                lambda: (one.get_next_by_at(user_id=user), one.get_previous_by_at(user_id=user)),
                lambda: own.filter(pk=one.pk).filter(box=to).exists(),
            ][how]

        return work

    def step_prefetched(self):
        boxes = [self.some("Box") for _ in range(3)]
        task, user = self.some("Task"), self.random.choice(USERS)
        how = self.random.randrange(12)
        if None in boxes or task is None:
            return None

        def work(w):
            from django.db.models import Count, Prefetch, prefetch_related_objects

            some = [w.fresh(name) for name in dict.fromkeys(boxes)]
            one = w.fresh(task)
            rows, own = w.m.Task.objects, w.m.Box.objects.filter(user_id=user).order_by("name")

            def shown(found, *names):
                return [[x.name, *(seen(set(getattr(x, at).all())) for at in names)] for x in found]

            def prefetched(*lookups):
                prefetch_related_objects(some, *lookups)
                return some

            ordered = rows.order_by("number", "name")
            yield [
                lambda: shown(own.prefetch_related("tasks", "linked"), "tasks", "linked"),
                lambda: shown(prefetched("tasks__children", "links"), "tasks", "links"),
                lambda: [
                    [x.name, in_order(x.top)]
                    for x in own.prefetch_related(Prefetch("tasks", ordered[:2], to_attr="top"))
                ],
                lambda: [
                    [x.name, in_order(x.top)]
                    for x in prefetched(Prefetch("tasks", ordered[1:3], to_attr="top"))
                ],
                lambda: [
                    [x.name, [(t.name, t.n) for t in x.top]]
                    for x in prefetched(
                        Prefetch("tasks", ordered.annotate(n=Count("children")), to_attr="top")
                    )
                ],
                lambda: shown(
                    prefetched(Prefetch("tasks", w.m.Task.open.filter(level=3))), "tasks"
                ),
                lambda: shown(prefetched(Prefetch("tasks", rows.filter(user_id=user))), "tasks"),
                lambda: shown(prefetched(Prefetch("linked", rows.only("name"))), "linked"),
                lambda: [
                    [t.box is x for t in x.tasks.all()]
                    for x in prefetched(Prefetch("tasks", rows.select_related("parent")))
                ],
                lambda: [
                    [x.name, x.tasks.count(), len(x.tasks.filter(level=3)), x.tasks.exists()]
                    for x in prefetched("tasks")
                ],
                lambda: [
                    [t.name, t.parent, t.box]
                    for t in rows.filter(user_id=one.user_id)
                    .order_by("name")
                    .prefetch_related("parent__box", "box", "boxes__tasks")
                ],
                lambda: [
                    [x.name, [[t.name, in_order(t.kids)] for t in x.top]]
                    for x in prefetched(
                        Prefetch(
                            "tasks",
                            ordered.prefetch_related(Prefetch("children", ordered, to_attr="kids")),
                            to_attr="top",
                        )
                    )
                ],
            ][how]

        return work

    def step_mark(self):
        """Generic references of a model that is not sharded."""
        names = [self.some("Task", "Box", "OpenTask") for _ in range(4)]
        if None in names:
            return None
        how, user = self.random.randrange(9), self.random.choice(USERS)
        mark = f"mark {self.number}"

        def work(w):
            from django.contrib.contenttypes.models import ContentType
            from django.contrib.contenttypes.prefetch import GenericPrefetch
            from django.db.models import prefetch_related_objects

            marks, some = w.m.Mark.objects, [w.objects[name] for name in names]
            ordered = marks.order_by("name", "pk")
            boxes, tasks = w.m.Box.objects, w.m.Task.objects

            def told(rows, *more):
                found = list(rows)
                return [
                    [one.name, one.about, *(seen(getattr(one.about, at, None)) for at in more)]
                    for one in found
                ]

            def about(one):
                kind = ContentType.objects.get_for_model(one)
                return marks.filter(content_type=kind, object_id=one.pk)

            def held():
                found = list(ordered)
                prefetch_related_objects(found, "about")
                prefetch_related_objects(found, "about__box")
                return told(found, "box")

            for at, one in enumerate(some):
                yield lambda at=at, one=one: marks.create(name=f"{mark}-{at}", about=one)
            yield [
                lambda: told(ordered),
                lambda: told(ordered.prefetch_related("about")),
                lambda: told(ordered.prefetch_related("about__box__tasks"), "box"),
                lambda: told(
                    ordered.prefetch_related(
                        GenericPrefetch("about", [boxes.all(), tasks.select_related("box")])
                    ),
                    "box",
                ),
                lambda: told(
                    ordered.prefetch_related(
                        GenericPrefetch(
                            "about", [boxes.filter(user_id=user), tasks.filter(level=3)]
                        )
                    )
                ),
                lambda: told(about(some[0]).order_by("name")),
                lambda: [about(some[0]).delete()[0], about(some[1]).count()],
                lambda: [
                    setattr(about(some[0]).first(), "about", some[1]),
                    marks.filter(name=f"{mark}-0").update(object_id=some[0].pk),
                ],
                held,
            ][how]
            yield lambda: told(about(some[2]).order_by("name"))

        return work

    def step_removed(self):
        name, how = self.some("Task", "Box", "Box", "OpenTask"), self.random.randrange(7)
        if name is None:
            return None
        user = self.labels[name][1]

        def work(w):
            one = w.objects[name]
            rows = type(one)._base_manager.filter(user_id=user)
            if how == 0:
                yield lambda: one.delete()[0]
            elif how == 1:
                yield lambda: rows.order_by("name")[:1].delete()
            elif how == 2:
                yield lambda: rows.filter(name=name).distinct().delete()[0]
            elif how == 3:
                yield lambda: run_async(rows.filter(name=name).adelete)[0]
            elif how == 4:
                yield lambda: rows.filter(pk__in=rows.order_by("name").values("pk")[:1]).delete()[0]
            elif how == 5:
                yield lambda: w.m.Link.objects.filter(user_id=user).delete()[0]
            else:
                yield lambda: w.m.Task.objects.filter(parent__name=name, user_id=user).delete()[0]
            w.forget()

        return work


def test_random_programs_of_queries_answer_as_in_one_database(world):
    counts = find_differences(QueryProgram)
    assert counts["programs"]
    assert counts["refusals"]
