"""Texts of rows that django-import-export imports and exports."""

from __future__ import annotations

from django.db import models

from pgembed_django import embeddable


class Category(models.Model):
    name = models.TextField(unique=True)

    def __str__(self) -> str:
        return self.name


@embeddable(fields=["name", "description"], related=["category__name"], trigger_level="statement")
class Product(models.Model):
    sku = models.CharField(max_length=20, unique=True)
    name = models.TextField()
    description = models.TextField(blank=True)
    price = models.IntegerField(default=0)
    category = models.ForeignKey(Category, null=True, on_delete=models.SET_NULL)

    def __str__(self) -> str:
        return self.name
