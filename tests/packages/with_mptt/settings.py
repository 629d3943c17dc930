"""Settings for the tests with django-mptt."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "mptt", "tests.packages.with_mptt"]
MIGRATION_MODULES = made_migrations("with_mptt")
