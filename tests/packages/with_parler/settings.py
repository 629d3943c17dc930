"""Settings for the tests with django-parler."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "parler", "tests.packages.with_parler"]
MIGRATION_MODULES = made_migrations("with_parler")
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "German"), ("fr", "French")]
PARLER_LANGUAGES = {
    None: ({"code": "en"}, {"code": "de"}, {"code": "fr"}),
    "default": {"fallbacks": ["en"], "hide_untranslated": False},
}
