"""The pages."""

from django.contrib import admin
from django.urls import path
from photos import views

urlpatterns = [
    path("users/<int:user>/photos", views.Photos.as_view()),
    path("users/<int:user>/feed", views.Feed.as_view()),
    path("users/<int:user>/follows", views.Follows.as_view()),
    path("photos/<shardid:pk>", views.OnePhoto.as_view()),
    path("photos/<shardid:pk>/likes", views.Likes.as_view()),
    path("admin/", admin.site.urls),
]
