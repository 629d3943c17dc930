"""Settings for the tests with django-modeltranslation."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

# First, so that the columns of languages are there when related lookups are followed.
INSTALLED_APPS = ["modeltranslation", *INSTALLED_APPS, "tests.packages.with_modeltranslation"]
MIGRATION_MODULES = made_migrations("with_modeltranslation")
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "German")]
MODELTRANSLATION_FALLBACK_LANGUAGES = ("en", "de")
