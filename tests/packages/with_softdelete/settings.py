"""Settings for the tests with django-soft-delete."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_softdelete", "tests.packages.with_softdelete"]
MIGRATION_MODULES = made_migrations("with_softdelete")
