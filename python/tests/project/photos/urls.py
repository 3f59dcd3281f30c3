"""Views that tests call."""

import asyncio
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.db.models import F
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path

from pgshard.django import run_in_shard

from .models import Photo


def photo(request: HttpRequest, id: int) -> JsonResponse:
    """One photo."""
    found = Photo.objects.get(pk=id)
    return JsonResponse({"id": str(found.pk), "title": found.title})


def first(request: HttpRequest) -> JsonResponse:
    """A photo of a shard that the view does not name."""
    return JsonResponse({"title": Photo.objects.first().title})


async def afirst(request: HttpRequest) -> JsonResponse:
    """The same, asynchronously."""
    return JsonResponse({"title": (await Photo.objects.afirst()).title})


async def photos(request: HttpRequest, user: int) -> JsonResponse:
    """A user's photos."""
    return JsonResponse(
        {
            "titles": [
                found.title async for found in Photo.objects.filter(user_id=user).order_by("title")
            ]
        }
    )


async def titles(request: HttpRequest, user: int) -> StreamingHttpResponse:
    """A user's titles, streamed while the database returns them."""

    async def lines() -> AsyncIterator[str]:
        rows = Photo.objects.filter(user_id=user).order_by("title").aiterator(chunk_size=10)
        async for found in rows:
            if found.title == request.GET.get("fail"):
                raise ValueError(f"{found.title} cannot be sent")
            yield f"{found.title}\n"

    return StreamingHttpResponse(lines())


async def like(request: HttpRequest, id: int) -> JsonResponse:
    """Likes a photo, in a transaction; and never answers if the browser has gone."""
    photo = await Photo.objects.aget(pk=id)

    def work() -> int:
        Photo.objects.filter(pk=id).update(likes=F("likes") + 1)
        return Photo.objects.get(pk=id).likes

    likes = await sync_to_async(run_in_shard)(photo.user_id, work)
    if "wait" in request.GET:
        await asyncio.sleep(3600)
    return JsonResponse({"likes": likes})


urlpatterns = [
    path("first", first),
    path("afirst", afirst),
    path("photos/<int:id>/like", like),
    path("users/<int:user>/titles", titles),
    path("admin/", admin.site.urls),
    path("photos/<int:id>", photo),
    path("users/<int:user>/photos", photos),
]
