"""Pages and snippets, as a site with Wagtail has them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from modelcluster.contrib.taggit import ClusterTaggableManager
from modelcluster.fields import ParentalKey, ParentalManyToManyField
from modelcluster.models import ClusterableModel
from taggit.models import TaggedItemBase
from wagtail.admin.panels import FieldPanel, InlinePanel
from wagtail.blocks import CharBlock, RichTextBlock, StreamBlock, StreamValue
from wagtail.fields import RichTextField, StreamField
from wagtail.images.blocks import ImageChooserBlock
from wagtail.models import DraftStateMixin, Orderable, Page, RevisionMixin
from wagtail.snippets.models import register_snippet

from pgembed_django import embeddable


class Body(StreamBlock):
    heading = CharBlock()
    paragraph = RichTextBlock()
    image = ImageChooserBlock()

    def get_searchable_content(self, value: StreamValue) -> list[str]:
        # Images have no text, and to read those of a page takes a query.
        texts = [place for place, raw in enumerate(value.raw_data) if raw["type"] != "image"]
        return super().get_searchable_content([value[place] for place in texts])


@embeddable(
    fields=["title", "intro", "body"],
    related=["tags__name", "questions__answer"],
    when=Q(live=True),
)
class BlogPage(Page):
    intro = RichTextField(blank=True)
    body = StreamField(Body(), blank=True)
    tags = ClusterTaggableManager(through="BlogTag", blank=True)

    content_panels = [
        *Page.content_panels,
        FieldPanel("intro"),
        FieldPanel("body"),
        FieldPanel("tags"),
        InlinePanel("questions"),
    ]


class BlogTag(TaggedItemBase):
    content_object = ParentalKey(BlogPage, on_delete=models.CASCADE, related_name="tagged_items")


class Question(Orderable):
    page = ParentalKey(BlogPage, on_delete=models.CASCADE, related_name="questions")
    answer = RichTextField()

    panels = [FieldPanel("answer")]


@embeddable(
    fields=["title"],
    related=["tags__name", "stops__name", "speakers__name"],
    text="programme",
    when=Q(live=True),
)
class EventPage(Page):
    """Its text is made by a method, which reads its children, its tags and snippets."""

    tags = ClusterTaggableManager(through="EventTag", blank=True)
    speakers = ParentalManyToManyField("Speaker", blank=True)

    def programme(self) -> str:
        related = [*self.stops.all(), *self.speakers.all(), *self.tags.all()]
        return f"{self.title}: {', '.join(one.name for one in related)}"


class EventTag(TaggedItemBase):
    content_object = ParentalKey(EventPage, on_delete=models.CASCADE, related_name="tagged_items")


class Stop(Orderable):
    page = ParentalKey(EventPage, on_delete=models.CASCADE, related_name="stops")
    name = models.TextField()


@register_snippet
class Speaker(models.Model):
    name = models.TextField()

    def __str__(self) -> str:
        return self.name


@register_snippet
@embeddable(fields=["name"], related=["tags__name"], when=Q(live=True))
class Dish(DraftStateMixin, RevisionMixin, ClusterableModel):
    name = models.TextField()
    tags = ClusterTaggableManager(through="DishTag", blank=True)


class DishTag(TaggedItemBase):
    content_object = ParentalKey(Dish, on_delete=models.CASCADE, related_name="tagged_items")
