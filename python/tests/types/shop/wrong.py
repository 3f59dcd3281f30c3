from shop.models import Order

Order.objects.by_ids("x", wide=3)
Order.objects.nonsense()
Order.objects.across_shards().list("5")
