"""The admin: shows whether search is fresh and what failed, and retries it. Edits no row."""

from __future__ import annotations

from django.contrib import admin

from pgembed_django.admin.jobs import JobAdmin
from pgembed_django.admin.lists import SpaceAdmin, WorkerAdmin
from pgembed_django.admin.mixin import VectorsFilter, VectorsMixin
from pgembed_django.admin.tasks import TaskAdmin, TaskRecordAdmin
from pgembed_django.models import Job, Space, Task, TaskRecord, Worker

__all__ = [
    "JobAdmin",
    "SpaceAdmin",
    "TaskAdmin",
    "TaskRecordAdmin",
    "VectorsFilter",
    "VectorsMixin",
    "WorkerAdmin",
]

admin.site.register(Job, JobAdmin)
admin.site.register(Space, SpaceAdmin)
admin.site.register(Task, TaskAdmin)
admin.site.register(TaskRecord, TaskRecordAdmin)
admin.site.register(Worker, WorkerAdmin)
