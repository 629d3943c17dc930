"""In the apps of tenants only where a test puts it there."""

from __future__ import annotations

from django.db import models

from pgembed_django import embeddable
from tests.packages.with_tenants.customers.models import Country


@embeddable(fields=["name"], related=["country__name"])
class Branch(models.Model):
    name = models.TextField()
    country = models.ForeignKey(Country, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return self.name
