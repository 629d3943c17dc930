"""The Django app. Its label is ``pgembed``, which is also the prefix of its tables."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.translation import gettext_lazy as _


class PgembedConfig(AppConfig):
    name = "pgembed_django"
    label = "pgembed"
    verbose_name = _("Embeddings")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Importing checks registers the system checks.
        from pgembed_django import checks, unmigrated  # noqa: F401
        from pgembed_django.contrib import tracing
        from pgembed_django.declaration.decorator import follow_relations
        from pgembed_django.spaces import repairs
        from pgembed_django.triggers.related import extend_migrations

        extend_migrations()
        follow_relations()
        tracing.install()
        pre_migrate.connect(unmigrated.before_migrate, sender=self)
        post_migrate.connect(unmigrated.after_migrate, sender=self)
        post_migrate.connect(repairs.after_migrate, sender=self)
