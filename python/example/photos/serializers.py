"""What the pages show. IDs are texts, for browsers know no integers as large."""

from rest_framework import serializers

from pgshard.django.contrib.rest_framework import ShardedModelSerializer
from photos.models import Follow, Photo


class PhotoSerializer(ShardedModelSerializer):
    """A photo. Whose it is stands in the address."""

    user = serializers.IntegerField(source="user_id", read_only=True)

    class Meta:
        """For Django REST framework."""

        model = Photo
        fields = ["id", "user", "title", "likes"]
        read_only_fields = ["likes"]


class FollowSerializer(serializers.ModelSerializer):
    """Whom a user follows."""

    class Meta:
        """For Django REST framework."""

        model = Follow
        fields = ["whom"]


class LikeSerializer(serializers.Serializer):
    """Who likes it."""

    by = serializers.IntegerField()
