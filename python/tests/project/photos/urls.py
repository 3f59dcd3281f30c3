"""Views that tests ask."""

from django.http import HttpRequest, JsonResponse
from django.urls import path

from .models import Photo


def photo(request: HttpRequest, id: int) -> JsonResponse:
    """One photo."""
    found = Photo.objects.get(pk=id)
    return JsonResponse({"id": str(found.pk), "title": found.title})


async def photos(request: HttpRequest, user: int) -> JsonResponse:
    """A user's photos."""
    return JsonResponse(
        {"titles": [found.title async for found in Photo.objects.filter(user_id=user).order_by("title")]}
    )


urlpatterns = [path("photos/<int:id>", photo), path("users/<int:user>/photos", photos)]
