"""Random programs on rows of all kinds of primary keys, and on all kinds of relations between them:
each answer is as in one database, or an error is raised before anything is written."""

import uuid
from functools import partial

import pytest
from programs import USERS, Program, Undo, find_differences, seen

pytestmark = pytest.mark.usefixtures("db")

FANS = 5
KINDS = ("Made", "Num", "Uid", "Given", "Own")


class RelationProgram(Program):
    """Rows of all kinds of primary keys, and all kinds of relations between them."""

    often = (
        "step_refer",
        "step_read",
        "step_many",
        "step_prefetch",
        "step_assign",
        "step_identity",
    )

    def __init__(self, random):
        super().__init__(random, random.sample(KINDS, random.randint(2, len(KINDS))))
        # Each user has a row of each kind, and some have rows that refer to them.
        self.opening = [partial(self.create, kind, user) for kind in self.kinds for user in USERS]
        self.opening += [self.step_refer] * 8

    # ------------------------------------------------------------------------- writes

    def values(self, label, user, name):
        """What a new object has, by world. Two shards have the same primary keys."""
        made = {"name": name, "user_id": user}
        if label in ("SubMade", "SubNum"):
            made["more"] = "more"
        self.ids[label, user % 16] += 1
        ids = self.ids[label, user % 16], self.number
        if label not in ("Uid", "Given"):
            return lambda w: made
        kind = (lambda id: uuid.UUID(int=id)) if label == "Uid" else int
        return lambda w: {**made, "id": kind(w.new_id(ids))}

    def step_create(self):
        label = self.random.choice((*self.kinds, *self.kinds, "SubMade", "SubNum"))
        return self.create(label, self.user())

    def create(self, label, user):
        name = self.new(label, user)
        values, how = self.values(label, user, name), self.random.randrange(5)

        def work(w):
            rows, given = getattr(w.m, label).objects, values(w)
            one = rows.model(**given)
            lookups = {"name": name, "user_id": user}
            if how == 0:
                one = yield lambda: rows.create(**given)
            elif how == 1:
                yield one.save
            elif how == 2 and label not in ("SubMade", "SubNum"):
                yield lambda: rows.bulk_create([one])
            elif how == 3:
                one, _ = yield lambda: rows.get_or_create(**lookups, defaults=given)
            else:
                one, _ = yield lambda: rows.update_or_create(**lookups, defaults=given)
            w.objects[name] = one

        return work

    def step_refer(self):
        kind = self.kind()
        target = self.some(kind, f"Sub{kind}")
        label = self.random.choice(("Ref", "Ref", "One")) + kind
        if target is None:
            return None
        user = self.user(target)
        name, how = self.new(label, user), self.random.randrange(8)

        def work(w):
            to, model = w.objects[target], getattr(w.m, label)
            values = {"name": name, "user_id": user}
            if how == 1:
                one = model(**values)
                yield lambda: setattr(one, "to", to)
                yield one.save
            elif how == 2:
                one = model(to=to, name=name)
                one.user_id = user
                yield one.save
            elif how == 3:
                one = model(to=to, **values)
                yield lambda: model.objects.bulk_create([one])
            elif how == 4 and label.startswith("Ref"):
                one = yield lambda: to.refs.create(**values)
            elif how == 5:
                one, _ = yield lambda: model.objects.get_or_create(to=to, **values)
            elif how == 6 and label.startswith("Ref"):
                one = yield lambda: model.objects.create(**values)
                w.objects[name] = one
                yield lambda: to.refs.add(one)
            elif how == 7:
                one, _ = yield lambda: model.objects.update_or_create(**values, defaults={"to": to})
            else:
                one = yield lambda: model.objects.create(to=to, **values)
            w.objects[name] = one
            yield lambda: one.to
            yield one.refresh_from_db
            yield lambda: one.to

        return work

    def step_related(self):
        """New rows of related managers: on shards they get the key of their object."""
        kind = self.random.choice(("Made", "Num"))
        forward = self.random.random() < 0.4
        target = self.some("RefMade" if forward else kind)
        if target is None:
            return None
        user = self.labels[target][1]
        label = "Made" if forward else f"Ref{kind}"
        name, how = self.new(label, user), self.random.randrange(4)

        def work(w):
            manager = w.objects[target].many if forward else w.objects[target].refs
            key = {} if w.sharded else {"user_id": user}
            if how == 0:
                one, _ = yield lambda: manager.get_or_create(name=name, defaults=key)
            elif how == 1:
                one, _ = yield lambda: manager.update_or_create(name=name, defaults=key)
            elif how == 2:
                one, _ = yield lambda: manager.update_or_create(
                    name=name, defaults={}, create_defaults=key
                )
            else:
                one = yield lambda: manager.create(name=name, **key)
            w.objects[name] = one
            yield lambda: (one.name, one.user_id)
            yield lambda: manager.get_or_create(name=name)
            yield lambda: manager.filter(user_id=user).count()

        return work

    def step_keyless(self):
        target = self.some("Made", "SubMade")
        if target is None:
            return None
        name = self.new("Keyless", self.labels[target][1])

        def work(w):
            to, rows = w.objects[target], w.m.Keyless.objects
            w.objects[name] = one = yield lambda: rows.create(name=name, to=to)
            yield lambda: one.to
            yield lambda: set(to.keyless.all())
            yield lambda: set(rows.filter(to=to))
            yield lambda: set(rows.filter(to__user_id=to.user_id))

        return work

    def step_number_of_number(self):
        ref, parent = self.some("RefNum"), self.some("RefNumOfNum")
        if ref is None:
            return None
        user = self.user(ref)
        name = self.new("RefNumOfNum", user)

        def work(w):
            rows, to, above = w.m.RefNumOfNum.objects, w.objects[ref], w.objects.get(parent)
            one = yield lambda: rows.create(user_id=user, name=name, to=to, parent=above)
            w.objects[name] = one
            yield lambda: (one.to, one.parent)
            yield lambda: set(rows.filter(to=to))
            yield lambda: above and set(above.refs_of_parent.all())
            yield lambda: {
                (x.name, x.to and x.to.name, x.parent and x.parent.name)
                for x in rows.filter(user_id=user).select_related("parent", "to")
            }

        return work

    def step_assign(self):
        kind = self.kind()
        ref, target = self.some(f"Ref{kind}", f"One{kind}"), self.some(kind)
        if ref is None or target is None:
            return None
        how = self.random.randrange(4)

        def work(w):
            one, to = w.objects[ref], w.objects[target]
            rows = type(one).objects
            if how == 0:
                yield lambda: rows.filter(user_id=one.user_id, name=one.name).update(to=to)
            else:
                yield lambda: setattr(one, "to", to)
            if how == 1:
                yield one.save
            elif how == 2:
                yield lambda: rows.bulk_update([one], ["to"])
            elif how == 3:
                yield lambda: one.save(update_fields=["to"])
            yield one.refresh_from_db
            yield lambda: one.to

        return work

    def step_many(self):
        kind = self.kind()
        ref = self.some(f"Ref{kind}")
        targets = [self.some(kind) for _ in range(self.random.randint(1, 3))]
        if ref is None or None in targets:
            return None
        call = self.random.choice(("add", "add", "remove", "remove", "set", "set", "clear"))
        back = self.random.random() < 0.3

        def work(w):
            one, others = w.objects[ref], [w.objects[name] for name in targets]
            manager = one.many
            if back:
                manager, others = getattr(others[0], f"bags{kind.lower()}"), [one]
            if call == "set":
                yield lambda: manager.set(others)
            elif call == "clear":
                yield manager.clear
            else:
                yield lambda: getattr(manager, call)(*others)
            through = {one._meta.model_name: one}
            yield lambda: set(manager.all())
            yield lambda: (one.many.count(), one.many.through.objects.filter(**through).count())

        return work

    def step_remark(self):
        target = self.some("Made", "Num")
        if target is None:
            return None
        user, how = self.user(target), self.random.randrange(3)
        name = self.new("Remark", user)

        def work(w):
            about, rows = w.objects[target], w.m.Remark.objects
            if how == 0:
                one = yield lambda: rows.create(user_id=user, name=name, about=about)
            elif how == 1:
                one = w.m.Remark(user_id=user, name=name)
                yield lambda: setattr(one, "about", about)
                yield one.save
            else:
                one = yield lambda: about.remarks.create(user_id=user, name=name)
            w.objects[name] = one
            yield lambda: rows.get(name=name, user_id=user).about
            yield lambda: set(about.remarks.all())

        return work

    def step_owned(self):
        user, how = self.random.choice(USERS), self.random.randrange(6)
        name = self.new("Owned", user)

        def work(w):
            rows = w.m.Owned.objects
            owner, _ = yield lambda: w.m.Owner.objects.get_or_create(
                pk=user, defaults={"name": "owner"}
            )
            if how == 0:
                yield lambda: sum(owner.delete()[1].values())
                w.forget()
                return
            if how == 1:
                one = yield lambda: owner.owned.create(name=name)
            else:
                one = yield lambda: rows.create(owner=owner, name=name)
            w.objects[name] = one
            found = w.m.Owner.objects.prefetch_related("owned").order_by("pk")
            yield lambda: one.owner.pk
            yield lambda: (set(owner.owned.all()), set(rows.filter(owner=owner)))
            yield lambda: [(o.pk, seen(set(o.owned.all()))) for o in found]

        return work

    def step_elsewhere(self):
        """A many-to-many field to rows that are not sharded."""
        from django.db.models import Count, Prefetch, prefetch_related_objects

        label = self.random.choice(("Liked", "Lent"))
        user, how = self.random.choice(USERS), self.random.randrange(10)
        name, other = self.some(label), self.some(label)
        fans = self.random.sample(range(FANS), self.random.randint(0, 3))
        made = f"fan {self.number}"
        if name is None or self.random.random() < 0.2:
            name = self.new(label, user)

        def work(w):
            model = getattr(w.m, label)
            if name not in w.objects:
                values = {"user_id": user, "name": name}
                w.objects[name] = yield lambda: model.objects.create(**values)
            one = w.objects[name]
            known = w.m.Fan.objects.order_by("pk")  # Others may have got its name by an update.
            some = [
                known.filter(name=f"f{at}").first() or known.create(name=f"f{at}") for at in fans
            ]
            rows = model.objects.filter(user_id=one.user_id)
            loan = label == "Lent" and not w.sharded
            more = {"through_defaults": {"user_id": one.user_id}} if loan else {}
            asked = one.fans.order_by("name")
            yield [
                lambda: one.fans.set(some, **more),
                lambda: one.fans.set([fan.pk for fan in some], clear=True, **more),
                lambda: one.fans.add(*(some[:1] * (label == "Liked")), **more),
                lambda: one.fans.remove(*some),
                one.fans.clear,
                lambda: one.fans.create(name=made, **more),
                lambda: one.fans.get_or_create(name=made, **more),
                lambda: one.fans.update_or_create(name=made, defaults={"name": "f0"}, **more),
                lambda: one.fans.filter(name__in=["f1", made]).update(name="f2"),
                lambda: (one.fans.exists(), one.fans.filter(name="f1").first()),
            ][how]
            yield lambda: [set(one.fans.all()), one.fans.count(), list(asked), len(asked)]
            yield lambda: [one.fans.filter(name="f1").exists(), set(one.fans.exclude(name="f1"))]
            yield lambda: sorted(rows.annotate(n=Count("fans")).values_list("name", "n"))
            yield lambda: [set(rows.filter(fans__in=some)), set(rows.exclude(fans__in=some))]
            yield lambda: [set(rows.filter(fans=fan)) for fan in some]
            both = [w.fresh(at) for at in (name, other) if at in w.objects]
            prefetch = Prefetch("fans", w.m.Fan.objects.order_by("-name"), to_attr="found")
            yield lambda: prefetch_related_objects(both, "fans", prefetch)
            yield lambda: [[set(x.fans.all()), list(x.found), x.fans.count()] for x in both]
            yield lambda: sorted(seen(set(x.fans.all())) for x in rows.prefetch_related("fans"))
            if how == 0:
                yield lambda: rows.filter(fans__name="f1").count()
            if how == 1:
                yield lambda: some[0].liked.count() if some else None

        return work

    def step_delete(self):
        label = self.random.choice((*self.kinds, *(f"Ref{kind}" for kind in self.kinds)))
        name, how = self.some(label), self.random.randrange(3)
        if name is None:
            return None

        def work(w):
            one = w.objects[name]
            rows = type(one).objects.filter(user_id=one.user_id)
            if how == 0:
                yield lambda: one.delete()[0]
            elif how == 1:
                yield lambda: rows.filter(name=name).delete()[0]
            else:
                yield lambda: rows.filter(pk=one.pk).delete()[0]
            w.forget()

        return work

    def step_delete_related(self):
        """By an object, which may be of another shard."""
        kind = self.kind()
        target, how = self.some(kind), self.random.randrange(4)
        if target is None:
            return None
        user = self.user(target)

        def work(w):
            to, refs = w.objects[target], getattr(w.m, f"Ref{kind}").objects
            yield [
                lambda: refs.filter(user_id=user, to=to).delete()[0],
                lambda: refs.filter(user_id=user, many=to).update(to=None),
                lambda: refs.filter(user_id=user).exclude(many=to).update(to=None),
                lambda: to.refs.all().delete()[0],
            ][how]
            w.forget()

        return work

    def step_move(self):
        """Another key."""
        name, user = self.some(*self.kinds), self.user()
        if name is None or self.labels[name][0] == "Own":
            return None

        def work(w):
            one = w.objects[name]
            one.user_id = user
            yield one.save

        return work

    # -------------------------------------------------------------------------- reads

    def step_read(self):
        from django.db.models import Case, Count, Exists, OuterRef, Q, Subquery, Value, When

        kind = self.kind()
        targets = [self.some(kind) for _ in range(2)]
        if None in targets:
            return None
        user, label = self.user(targets[0], often=0.4), f"Ref{kind}"
        how = self.random.randrange(30)
        bags = f"bags{kind.lower()}"

        def work(w):
            to, other = (w.objects[name] for name in targets)
            refs, rows = getattr(w.m, label).objects, type(to).objects
            own, of_user = refs.filter(user_id=user), rows.filter(user_id=user)
            yield lambda: seen(
                [
                    lambda: own.filter(to=to),
                    lambda: refs.filter(to=to),
                    lambda: own.exclude(to=to),
                    lambda: own.filter(Q(to=to) | Q(to=other)),
                    lambda: own.filter(to__in=[to, other]),
                    lambda: refs.filter(to__in=[to, other]),
                    lambda: own.filter(many=to),
                    lambda: own.exclude(many=to),
                    lambda: rows.filter(user_id=user, refs__to=other),
                    lambda: own.filter(to__in=rows.filter(user_id=user)),
                    lambda: (own.filter(to=to) | own.filter(many=other)).distinct(),
                    lambda: (own.filter(to=to).exists(), own.filter(to=to).count()),
                    lambda: rows.filter(**{"user_id": user, f"{bags}__to": to}).distinct(),
                    lambda: refs.filter(to__user_id=user).exclude(to__name=to.name),
                    lambda: of_user.annotate(n=Count("refs")).values_list("name", "n"),
                    lambda: own.annotate(
                        x=Case(When(to=other, then=Value(1)), default=Value(0))
                    ).values_list("name", "x"),
                    lambda: of_user.filter(Exists(refs.filter(to=OuterRef("pk")))),
                    lambda: of_user.filter(~Exists(refs.filter(to=OuterRef("pk"), many=other))),
                    lambda: of_user.filter(pk__in=own.values("to")),
                    lambda: own.select_related("to").values_list("name", "to__name"),
                    lambda: own.filter(~Q(to=other)),
                    lambda: own.filter(~Q(many=other) & Q(to=to)),
                    lambda: refs.filter(to=to, many=other),
                    lambda: own.aggregate(n=Count("to"), m=Count("many")),
                    lambda: (to.refs.filter(many=other), to.refs.exclude(many=other)),
                    lambda: getattr(to, bags).filter(to=other).distinct(),
                    lambda: own.filter(to=to).union(own.filter(to=other)),
                    lambda: own.filter(to__in=rows.filter(refs__to=other)),
                    lambda: of_user.annotate(
                        x=Subquery(
                            refs.filter(to=OuterRef("pk")).order_by("name").values("name")[:1]
                        )
                    ).values_list("name", "x"),
                    lambda: (own.filter(to=to) & own.exclude(many=other)).distinct(),
                ][how]()
            )

        return work

    def step_identity(self):
        kind = self.kind()
        names = [self.some(kind) for _ in range(3)]
        if None in names:
            return None

        def work(w):
            some = [w.objects[name] for name in names]
            for one in some:
                yield one.refresh_from_db
            rows = type(some[0]).objects.filter(user_id=some[0].user_id)
            yield lambda: [
                [a == b for a in some for b in some],
                len(set(some)),
                some[0] in some[1:],
                [rows.contains(one) for one in some],
                list(rows.in_bulk([some[0].pk]).values()),
                rows.get(pk=some[0].pk),
                type(some[0]).objects.get(pk=some[0].pk, user_id=some[0].user_id),
            ]

        return work

    def step_prefetch(self):
        from django.db.models import Prefetch, prefetch_related_objects

        kind = self.kind()
        names = [self.some(kind) for _ in range(4)]
        refs = [self.some(f"Ref{kind}") for _ in range(4)]
        if None in names or None in refs:
            return None
        bags, how = f"bags{kind.lower()}", self.random.randrange(4)

        def work(w):
            fresh = {name: w.fresh(name) for name in {*names, *refs}}
            some, theirs = [fresh[name] for name in names], [fresh[name] for name in refs]
            if how == 0:
                yield lambda: prefetch_related_objects(some, "refs__to", bags)
                yield lambda: [
                    [
                        set(x.refs.all()),
                        [r.to for r in x.refs.all()] == [x] * len(x.refs.all()),
                        set(getattr(x, bags).all()),
                    ]
                    for x in some
                ]
            if how == 1:
                prefetch_related_objects(theirs, "to__refs", "many")
                return [[x.to, x.to and set(x.to.refs.all()), set(x.many.all())] for x in theirs]
            elif how == 2:
                rows = type(theirs[0]).objects.select_related("to")
                found = Prefetch("refs", rows, to_attr="found")
                yield lambda: prefetch_related_objects(some, found, "one")
                yield lambda: [
                    [set(x.found), {r.to for r in x.found}, getattr(x, "one", None)] for x in some
                ]
            else:
                rows = type(some[0]).objects.filter(user_id=some[0].user_id)
                yield lambda: sorted(
                    str([x.name, seen(set(x.refs.all())), seen(set(getattr(x, bags).all()))])
                    for x in rows.prefetch_related("refs__many", bags)
                )

        return work

    def step_prefetch_generic(self):
        from django.db.models import prefetch_related_objects

        remarks = [self.some("Remark") for _ in range(4)]
        targets = [self.some("Num", "Made") for _ in range(1)] + [self.some("Num")] * 2
        if None in remarks or None in targets:
            return None

        def work(w):
            some = [w.fresh(name) for name in remarks]
            yield lambda: prefetch_related_objects(some, "about")
            others = [w.fresh(name) for name in targets[1:]]
            yield lambda: prefetch_related_objects(others, "remarks__about")
            yield lambda: [
                [one.about for one in some],
                [set(one.remarks.all()) for one in others],
                [[r.about == one for r in one.remarks.all()] for one in others],
            ]

        return work

    def step_inheritance(self):
        name = self.some("SubMade", "SubNum")
        if name is None:
            return None

        def work(w):
            one = w.objects[name]
            model, lower = type(one), type(one).__name__.lower()
            parent = yield lambda: getattr(one, f"{lower[3:]}_ptr")
            one.more += "!"
            yield one.save
            yield lambda: [
                parent.name,
                getattr(parent, lower),
                model.objects.filter(user_id=one.user_id, more=one.more).count(),
                getattr(w.m, lower[3:].title())
                .objects.filter(user_id=one.user_id, **{f"{lower}__more": one.more})
                .count(),
                set(one.refs.all()),
            ]

        return work

    def step_unplaced(self):
        """What names no shard."""
        label = self.random.choice((*self.kinds, *(f"Ref{kind}" for kind in self.kinds)))
        name, how = self.some(label), self.random.randrange(4)
        if name is None:
            return None

        def work(w):
            rows = getattr(w.m, label).objects
            yield [
                lambda: rows.count(),
                lambda: rows.filter(name=name),
                lambda: rows.filter(name=name).update(name=name),
                lambda: rows.get(pk=w.objects[name].pk),
            ][how]

        return work

    # -------------------------------------------------------------------- transactions

    def step_transaction(self):
        user = self.user()
        inner = [self.block(user) for _ in range(self.random.randint(1, 4))]
        fails = self.random.random() < 0.3

        def work(w):
            said, before = [], len(w.log)

            def whole():
                for one in inner:
                    said.append(one(w))
                said.append(len(w.log) - before)
                if fails:
                    raise Undo

            def attempt():
                try:
                    w.run(user, whole)
                except Undo:
                    said.append("undone")
                return said, w.log[before:]

            yield attempt
            w.forget()

        return work

    def block(self, user):
        """What happens within a transaction: without naming a database, as others write it."""
        from django.db import transaction

        name = self.new("RefMade", self.user() if self.random.random() < 0.1 else user)
        values = {"user_id": self.labels[name][1], "name": name}
        how, fails = self.random.randrange(7), self.random.random() < 0.4

        def create(w):
            w.objects[name] = w.m.RefMade.objects.create(**values)

        def work(w):
            transaction.on_commit(lambda: w.log.append(name))
            if how == 0:
                create(w)
            elif how in (1, 2):
                try:
                    with transaction.atomic(savepoint=how == 1):
                        create(w)
                        transaction.on_commit(lambda: w.log.append(f"{name} inner"))
                        if fails and how == 1:
                            raise Undo
                except Undo:
                    del w.objects[name]
            elif how == 3:
                with transaction.atomic():
                    create(w)
                    if fails:
                        transaction.set_rollback(True)
                        del w.objects[name]
            elif how == 4:
                make = getattr(transaction, "savepoint_create", transaction.savepoint)
                sid = make()
                create(w)
                if fails:
                    transaction.savepoint_rollback(sid)
                    del w.objects[name]
                else:
                    transaction.savepoint_commit(sid)
            elif how == 5:

                @transaction.atomic
                def again(depth):
                    if depth:
                        again(depth - 1)
                    else:
                        create(w)

                again(2)
            else:
                create(w)
                rows = w.m.RefMade.objects.select_for_update().filter(user_id=user)
                return len(rows)
            return transaction.get_connection().in_atomic_block

        return work


def test_random_programs_answer_as_in_one_database(world):
    counts = find_differences(RelationProgram)
    assert counts["programs"]
    assert counts["refusals"]
