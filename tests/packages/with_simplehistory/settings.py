"""Settings for the tests with django-simple-history."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "simple_history", "tests.packages.with_simplehistory"]
MIGRATION_MODULES = made_migrations("with_simplehistory")
