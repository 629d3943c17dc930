"""Settings for the tests with django-import-export."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "import_export", "tests.packages.with_importexport"]
MIGRATION_MODULES = made_migrations("with_importexport")
