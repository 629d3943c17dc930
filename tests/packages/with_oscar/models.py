"""Categories are embedded without a fork: a proxy has what is declared."""

from __future__ import annotations

from oscar.core.loading import get_model

from pgembed_django import embeddable


@embeddable(fields=["name", "description"], related=["product__title"])
class Shelf(get_model("catalogue", "Category")):
    class Meta:
        proxy = True
