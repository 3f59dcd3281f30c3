"""The pages, by Django REST framework. Every query set names its shard, by the user in the address
or by the photo's ID."""

from rest_framework import generics
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from photos import actions
from photos.models import Follow, Photo
from photos.serializers import FollowSerializer, LikeSerializer, PhotoSerializer


class Newest(CursorPagination):
    """The newest first: an ID begins with its time."""

    ordering = "-id"
    page_size = 20


class Photos(generics.ListCreateAPIView):
    """A user's photos, and new ones."""

    serializer_class = PhotoSerializer
    pagination_class = Newest

    def get_queryset(self):
        """On the user's shard."""
        return Photo.objects.filter(user_id=self.kwargs["user"])

    def perform_create(self, serializer):
        """On the user's shard, which makes the ID."""
        serializer.save(user_id=self.kwargs["user"])


class OnePhoto(generics.RetrieveUpdateDestroyAPIView):
    """A photo, whose ID knows its shard."""

    queryset = Photo.objects.all()
    serializer_class = PhotoSerializer


class Feed(APIView):
    """The newest photos of the users that a user follows, from as many shards."""

    def get(self, request: Request, user: int) -> Response:
        """Those photos."""
        return Response(PhotoSerializer(actions.feed(user), many=True).data)


class Follows(generics.ListCreateAPIView):
    """The users that a user follows."""

    serializer_class = FollowSerializer

    def get_queryset(self):
        """The follows, on the shard of the user who looks."""
        return Follow.objects.filter(user_id=self.kwargs["user"]).order_by("whom")

    def perform_create(self, serializer):
        """Follows somebody. The second time changes nothing."""
        Follow.objects.get_or_create(user_id=self.kwargs["user"], **serializer.validated_data)


class Likes(APIView):
    """The users who like a photo."""

    def post(self, request: Request, pk: int) -> Response:
        """Likes it, once."""
        asked = LikeSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        return Response({"liked": actions.like(pk, asked.validated_data["by"])})
