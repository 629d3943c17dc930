"""Registers fields for translation, and declares what to embed of each language."""

from __future__ import annotations

from modeltranslation.translator import TranslationOptions, register

from pgembed_django import embeddable
from tests.packages.with_modeltranslation.models import News, Topic


@register(Topic)
class TopicOptions(TranslationOptions):
    fields = ("name",)


@register(News)
class NewsOptions(TranslationOptions):
    fields = ("title", "body")


embeddable(fields=["title_en", "body_en"], related=["topic__name_en"], name="NewsEn")(News)
# In German, what is not translated is in English.
embeddable(fields=["title_de", "title_en", "body_de", "body_en"], text="in_german", name="NewsDe")(
    News
)
