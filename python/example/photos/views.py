"""The pages, in JSON. IDs are texts, for browsers know no integers as large."""

import json

from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from photos import actions
from photos.models import Photo


def _shown(photo: Photo) -> dict[str, object]:
    return {"id": str(photo.pk), "user": photo.user_id, "title": photo.title, "likes": photo.likes}


@require_http_methods(["GET", "POST"])
def photos(request: HttpRequest, user: int) -> JsonResponse:
    """A user's newest photos, or a new one."""
    if request.method == "POST":
        return JsonResponse(_shown(actions.upload(user, json.loads(request.body)["title"])), status=201)
    newest = Photo.objects.filter(user_id=user).order_by("-id")[:20]
    return JsonResponse({"photos": [_shown(photo) for photo in newest]})


@require_GET
def feed(request: HttpRequest, user: int) -> JsonResponse:
    """The newest photos of those whom a user follows."""
    return JsonResponse({"photos": [_shown(photo) for photo in actions.feed(user)]})


@require_GET
def photo(request: HttpRequest, id: int) -> JsonResponse:
    """A photo, whose ID knows its shard."""
    return JsonResponse(_shown(get_object_or_404(Photo, pk=id)))


@require_POST
def likes(request: HttpRequest, id: int) -> JsonResponse:
    """Likes a photo."""
    return JsonResponse({"liked": actions.like(id, json.loads(request.body)["by"])})
