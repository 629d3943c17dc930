"""The URLs of the search page and of articles."""

from __future__ import annotations

from django.urls import path

from website import views

app_name = "website"
urlpatterns = [
    path("", views.search_page, name="search"),
    path("articles/<int:pk>/", views.article_page, name="article"),
]
