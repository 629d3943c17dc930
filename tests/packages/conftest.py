"""Makes the migrations of the apps that are tested, and leaves out the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db.models import Model

from pgembed_django.declaration import specs
from pgembed_django.models import Job, Ripple
from tests.providers import Moody

FOLDER = Path(__file__).parent
TESTED = str(settings.SETTINGS_MODULE).removeprefix(f"{__package__}.").partition(".")[0]

is_chosen = (FOLDER / TESTED).is_dir()
collect_ignore = [path.name for path in FOLDER.glob("with_*") if path.name != TESTED]
collect_ignore += [] if is_chosen else ["test_migrations.py"]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, django_db_blocker: Any
) -> None:
    """Make the migrations before the database."""
    with django_db_blocker.unblock():
        if is_chosen:
            call_command("makemigrations", *settings.MIGRATION_MODULES, verbosity=0)


def pytest_configure(config: pytest.Config) -> None:
    """Let the packages use what Django is going to remove."""
    if is_chosen:
        for kind in ("DeprecationWarning", "PendingDeprecationWarning"):
            config.addinivalue_line("filterwarnings", f"ignore::{kind}")


@pytest.fixture
def texts() -> Callable[..., dict[Any, str]]:
    """The stored texts of a model's rows by key."""

    def of(model: type[Model], *, name: str | None = None) -> dict[Any, str]:
        [spec] = specs.of(model, name=name)
        chunks: Any = spec.embedding_model._default_manager.filter(embedding__isnull=False)
        return dict(chunks.order_by("source_id", "position").values_list("source_id", "passage"))

    return of


@pytest.fixture
def asked(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The model and the text of all that is embedded."""
    provider = {**settings.PGEMBED_PROVIDERS["default"], "BACKEND": "tests.providers.Moody"}
    settings.PGEMBED_PROVIDERS = {"default": provider}
    monkeypatch.setattr(Moody, "asked", [])
    return Moody.asked


@pytest.fixture
def is_quiet() -> Callable[[], bool]:
    """Whether nothing waits to be embedded."""

    def check() -> bool:
        return not Ripple.objects.exists() and not Job.objects.filter(status="pending").exists()

    return check
