"""Settings for the tests with django-tenants."""

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

SHARED_APPS = [
    "django_tenants",
    "tests.packages.with_tenants.customers",
    *(name for name in INSTALLED_APPS if name.startswith("django.")),
]
TENANT_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.postgres",
    "pgtrigger",
    "pgembed_django",
    "tests.packages.with_tenants",
]
INSTALLED_APPS = list(
    dict.fromkeys(
        [*SHARED_APPS, *TENANT_APPS, "tests.packages.with_tenants.refused", *INSTALLED_APPS]
    )
)
MIGRATION_MODULES = made_migrations("with_tenants", "customers", "refused", "app")
TENANT_MODEL = "customers.Customer"
TENANT_DOMAIN_MODEL = "customers.Domain"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
PGTRIGGER_SCHEMA = None
SILENCED_SYSTEM_CHECKS = ["commands.E001"]

WORKERS = ("acme", "umbra")
for schema in WORKERS:
    DATABASES[schema] = {
        **DATABASES["default"],
        "ENGINE": "django.db.backends.postgresql",
        "OPTIONS": {
            **DATABASES["default"].get("OPTIONS", {}),
            "options": f"-c search_path={schema},public",
        },
        "TEST": {"MIRROR": "default"},
    }
