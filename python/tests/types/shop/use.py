from typing_extensions import assert_type

from pgshard.django import ShardedQuerySet, alias_of_key, arun_in_shard, run_in_shard, shard_of
from shop.models import Address, Order, Profile


def orders(customer: int) -> list[Order]:
    found = Order.objects.filter(customer_id=customer).order_by("-id")
    assert_type(found, ShardedQuerySet[Order])
    return list(found.for_key(customer)[:10])


def totals(ids: list[int]) -> int:
    named = Order.objects.by_ids(ids)
    assert_type(named, list[Order])
    return sum(order.total for order in named)


def everything() -> int:
    every = Order.objects.filter(total__gt=5).across_shards()
    assert_type(every.list(5), list[Order])
    assert_type(every[0], Order)
    assert_type(every.first(), Order | None)
    assert_type(every.get(pk=1), Order)
    assert_type(every[:5], list[Order])
    for order in every:
        assert_type(order, Order)
    every.aggregate()
    return every.count()


def one(id: int) -> str:
    profile = Profile.objects.get(pk=id)
    assert_type(profile, Profile)
    with shard_of(id) as where:
        assert_type(where, str)
    assert_type(alias_of_key(1), str)
    assert_type(run_in_shard(1, lambda: 5), int)
    return profile.name + Address.objects.create(user_id=5, town="Ulm").town


async def later(ids: list[int]) -> int:
    for order in await Order.objects.aby_ids(ids):
        assert_type(order, Order)
    async for order in Order.objects.across_shards():
        assert_type(order, Order)
    return await arun_in_shard(1, lambda: 5)
