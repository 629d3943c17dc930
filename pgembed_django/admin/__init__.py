"""The admin: see what is waiting and what failed, and settle failures. Nothing is edited here."""

from __future__ import annotations

from django.contrib import admin

from pgembed_django.admin.jobs import JobAdmin
from pgembed_django.admin.operations import SpaceAdmin, WorkerAdmin
from pgembed_django.models import Job, Space, Worker

__all__ = ["JobAdmin", "SpaceAdmin", "WorkerAdmin"]

admin.site.register(Job, JobAdmin)
admin.site.register(Space, SpaceAdmin)
admin.site.register(Worker, WorkerAdmin)
