"""The URLs of the chat page, one for each tenant."""

from __future__ import annotations

from django.urls import path
from django.views.generic import RedirectView

from memory import views

app_name = "memory"
urlpatterns = [
    path("", RedirectView.as_view(pattern_name="memory:chat"), {"tenant": "ada"}),
    path("<slug:tenant>/", views.chat_page, name="chat"),
]
