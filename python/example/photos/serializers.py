"""What the pages show. IDs are texts, because browsers have no exact integers of that size."""

from rest_framework import serializers

from pgshard.django.contrib.rest_framework import ShardedModelSerializer
from photos.models import Follow, Photo


class PhotoSerializer(ShardedModelSerializer):
    """A photo. The address says whose it is."""

    user = serializers.IntegerField(source="user_id", read_only=True)

    class Meta:
        """Django REST framework calls this."""

        model = Photo
        fields = ["id", "user", "title", "likes"]
        read_only_fields = ["likes"]


class FollowSerializer(serializers.ModelSerializer):
    """Whom a user follows."""

    class Meta:
        """Django REST framework calls this."""

        model = Follow
        fields = ["whom"]


class LikeSerializer(serializers.Serializer):
    """The users who like a photo."""

    by = serializers.IntegerField()
