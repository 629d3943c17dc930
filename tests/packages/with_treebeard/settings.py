"""Settings for the tests with django-treebeard."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "treebeard", "tests.packages.with_treebeard"]
MIGRATION_MODULES = made_migrations("with_treebeard")
