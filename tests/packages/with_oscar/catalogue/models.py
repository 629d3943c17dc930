"""A fork of the app of django-oscar, with products that are embedded."""

from __future__ import annotations

from django.db.models import Q
from oscar.apps.catalogue.abstract_models import AbstractProduct

from pgembed_django import embeddable

VALUES = ("text", "richtext", "integer", "float", "boolean", "date", "datetime", "option__option")


@embeddable(
    fields=["title", "description", "parent"],
    related=[
        "parent__title",
        "categories__name",
        "attribute_values__attribute__name",
        "attribute_values__attribute__type",
        *(f"attribute_values__value_{value}" for value in VALUES),
        "attribute_values__value_multi_option__option",
    ],
    text="full_text",
    when=Q(is_public=True),
)
class Product(AbstractProduct):
    def full_text(self) -> str:
        values = sorted(self.attribute_values.all(), key=lambda value: value.pk)
        categories = sorted(category.name for category in self.categories.all())
        attributes = [value.summary() for value in values]
        return "\n".join([self.get_title(), self.description, *categories, *attributes])


from oscar.apps.catalogue.models import *  # noqa: E402, F403
