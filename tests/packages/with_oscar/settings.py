"""Settings for the tests with django-oscar, whose app catalogue is forked."""

import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

import oscar
from oscar.defaults import *  # noqa: F403

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

# Its reports, as they are loaded.
warnings.filterwarnings("ignore", r"Calling select_related\(\) with no arguments")

FORKED = {
    "oscar.apps.catalogue.apps.CatalogueConfig": (
        "tests.packages.with_oscar.catalogue.apps.CatalogueConfig"
    )
}
INSTALLED_APPS = [
    *dict.fromkeys([*(FORKED.get(name, name) for name in oscar.INSTALLED_APPS), *INSTALLED_APPS]),
    "tests.packages.with_oscar",
]
MIGRATION_MODULES = made_migrations("catalogue", "with_oscar")
# As oscar_fork_app does.
shutil.copytree(
    Path(oscar.__file__).parent / "apps/catalogue/migrations",
    Path(find_spec(MIGRATION_MODULES["catalogue"]).origin).parent,
    dirs_exist_ok=True,
)
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
HAYSTACK_SIGNAL_PROCESSOR = "haystack.signals.BaseSignalProcessor"
OSCAR_DELETE_IMAGE_FILES = False
SITE_ID = 1
