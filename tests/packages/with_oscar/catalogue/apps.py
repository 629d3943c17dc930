"""As oscar_fork_app writes it."""

from __future__ import annotations

from oscar.apps.catalogue import apps


class CatalogueConfig(apps.CatalogueConfig):
    name = "tests.packages.with_oscar.catalogue"
