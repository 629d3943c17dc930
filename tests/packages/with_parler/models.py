"""Texts that django-parler has in a table of their own, with a row for each language."""

from __future__ import annotations

from django.db import models
from parler.fields import TranslatedField, TranslationsForeignKey
from parler.models import TranslatableModel, TranslatedFields, TranslatedFieldsModel

from pgembed_django import embeddable


class Article(TranslatableModel):
    """Its model of translations is written out."""

    author = models.CharField(max_length=100, blank=True)
    is_public = models.BooleanField(default=True)

    title = TranslatedField(any_language=True)
    body = TranslatedField()


@embeddable(fields=["title", "body"], related=["master__author"])
class ArticleTranslation(TranslatedFieldsModel):
    """Has vectors for each language."""

    master = TranslationsForeignKey(
        Article, on_delete=models.CASCADE, related_name="translations", null=True
    )
    title = models.CharField(max_length=200)
    body = models.TextField(blank=True)

    class Meta:
        unique_together = [("language_code", "master")]


@embeddable(
    fields=["brand"],
    related=["translations__title", "translations__language_code"],
    text="in_german",
)
class Product(TranslatableModel):
    """Its model of translations is generated."""

    brand = models.CharField(max_length=100)
    translations = TranslatedFields(title=models.CharField(max_length=200))

    def in_german(self) -> str:
        """Return it in German or, without a translation, in English."""
        self.set_current_language("de")
        return f"{self.title} ({self.brand})"


embeddable(fields=["title"])(Product.translations.field.model)
