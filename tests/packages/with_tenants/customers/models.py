"""What all tenants share: who they are, and the countries."""

from __future__ import annotations

from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Customer(TenantMixin):
    pass


class Domain(DomainMixin):
    pass


class Country(models.Model):
    name = models.TextField()

    def __str__(self) -> str:
        return self.name
