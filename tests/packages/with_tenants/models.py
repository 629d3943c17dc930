"""What each tenant has for itself."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import models

from pgembed_django import embeddable
from tests.packages.with_tenants.customers.models import Country


class Author(models.Model):
    name = models.TextField()

    def __str__(self) -> str:
        return self.name


@embeddable(fields=["title"], related=["author__name"])
class Article(models.Model):
    title = models.TextField()
    author = models.ForeignKey(Author, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return self.title


@embeddable(fields=["name", "country"], text="full_text", prefetch=["country"])
class Shop(models.Model):
    """Its text has a value of a table that tenants share."""

    name = models.TextField()
    country = models.ForeignKey(Country, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return self.name

    def full_text(self) -> str:
        return f"{self.name}, {self.country.name}"


@embeddable(fields=["username"])
class Member(User):
    """Tenants have users of their own, and those of all tenants are not embedded."""

    class Meta:
        proxy = True
