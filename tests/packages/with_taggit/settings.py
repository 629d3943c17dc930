"""Settings for the tests with django-taggit."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "taggit", "tests.packages.with_taggit"]
MIGRATION_MODULES = made_migrations("with_taggit")
