"""Settings for the tests with django-polymorphic."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "polymorphic", "tests.packages.with_polymorphic"]
MIGRATION_MODULES = made_migrations("with_polymorphic")
