"""The pages."""

from django.urls import path
from photos import views

urlpatterns = [
    path("users/<int:user>/photos", views.photos),
    path("users/<int:user>/feed", views.feed),
    path("photos/<int:id>", views.photo),
    path("photos/<int:id>/likes", views.likes),
]
