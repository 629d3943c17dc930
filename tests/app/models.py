"""Models of every shape that the app supports."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.db.models import F, Q

from pgembed_django import Chunker, embeddable
from tests.app.fields import IgnoreCaseField, PlainJSONField

EVIL = """it's {braces} 100% %s %(x)s "quoted" back\\slash $$ ünïcödé 🦉 \n"new"."title" --"""


class Category(models.Model):
    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


@embeddable(fields=["title", "contents"], when=Q(published_time__isnull=False))
class Article(models.Model):
    """The everyday shape: an integer key, two fields, a condition, an order."""

    title = models.CharField(max_length=200)
    contents = models.TextField(blank=True, default="")
    author = models.CharField(max_length=100, blank=True, default="")
    category = models.ForeignKey(Category, null=True, blank=True, on_delete=models.CASCADE)
    published_time = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["category__name", "-title"]

    def __str__(self) -> str:
        return self.title


@embeddable(fields=["body"])
class Note(models.Model):
    """A UUID key, no condition."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    body = models.TextField()
    seen = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.pk)


@embeddable(fields=["slug", "body"], priority=10)
class Page(models.Model):
    """A text key, which is part of the text."""

    slug = models.CharField(max_length=100, primary_key=True)
    body = models.TextField()

    def __str__(self) -> str:
        return self.slug


@embeddable(fields=["summary"], stale="hide")
class PageExtra(models.Model):
    """A foreign key as the primary key."""

    page = models.OneToOneField(Page, primary_key=True, on_delete=models.CASCADE)
    summary = models.TextField()

    def __str__(self) -> str:
        return str(self.page_id)


@embeddable(fields=["text"], chunker=Chunker(size=20, overlap=0, unit="characters"))
class AbstractComment(models.Model):
    """Decorated once, for each model that inherits from it."""

    text = models.TextField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.text


class ArticleComment(AbstractComment):
    article = models.ForeignKey(Article, on_delete=models.CASCADE)


class PageComment(AbstractComment):
    page = models.ForeignKey(Page, on_delete=models.CASCADE)


class PinnedPageComment(PageComment):
    """Its text is in its parent's table, and watched there."""

    rank = models.IntegerField(default=0)


@embeddable(fields=["name"])
class Team(Group):
    """A proxy of a model that belongs to another app."""

    class Meta:
        proxy = True


@embeddable(
    fields=["title", "price", "in_stock"], text="pitch", when=Q(in_stock=True), priority=-100
)
@embeddable(fields=["title"], name="ProductTitle", store_text=False)
class Product(models.Model):
    """Decorated twice, once with a method for its text."""

    title = models.CharField(max_length=200)
    price = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    in_stock = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.title

    def pitch(self) -> str:
        gate = Path(os.environ.get("TEST_PITCH_GATE", "/nowhere"))
        if "secret" in self.title and gate.is_fifo():
            gate.read_text()  # until a test writes there
        return f"{self.title}, now only {self.price}"


@embeddable(fields=["name", "binary_json", "plain_json"])
class Contact(models.Model):
    """Columns whose own equality is not that of their content."""

    name = IgnoreCaseField()
    binary_json = models.JSONField(default=dict)
    plain_json = PlainJSONField(null=True)

    def __str__(self) -> str:
        return str(self.name)


@embeddable(fields=["body"], when=Q(is_public=True))
class Archived(models.Model):
    """In another schema, and so is what is generated for it."""

    body = models.TextField()
    is_public = models.BooleanField(null=True)

    class Meta:
        db_table = '"archive"."document"'

    def __str__(self) -> str:
        return self.body


@embeddable(fields=["title", "order"], when=~Q(title=EVIL) & Q(order__gte=F("floor")))
class Oddity(models.Model):
    """Names that must be quoted, and a condition with every trap in it."""

    id = models.BigAutoField(primary_key=True, db_column="Key Of Row")
    title = models.TextField(db_column="Select", null=True)  # noqa: DJ001
    order = models.IntegerField(db_column='"Order"', null=True)
    floor = models.IntegerField(db_column="fl''oor", default=0)

    class Meta:
        db_table = "App Oddity"

    def __str__(self) -> str:
        return str(self.pk)


class Publication(models.Model):
    """Not embedded, but a model that inherits from it is."""

    issn = models.CharField(max_length=9)

    def __str__(self) -> str:
        return self.issn


@embeddable(fields=["blurb"])
class Magazine(Publication):
    """Only fields of its own table; its key points to its parent's."""

    blurb = models.TextField()


class City(models.Model):
    name = models.CharField(max_length=100)
    country = models.CharField(max_length=100, default="")

    def __str__(self) -> str:
        return self.name


class Author(models.Model):
    name = models.CharField(max_length=100)
    city = models.ForeignKey(City, null=True, on_delete=models.SET_NULL)
    seen = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class Tag(models.Model):
    word = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.word


class Label(models.Model):
    """A row of it belongs to a row of any model."""

    content_type = models.ForeignKey(ContentType, on_delete=models.CASCADE)
    object_id = models.TextField()
    target = GenericForeignKey()
    word = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.word


@embeddable(
    fields=["title"],
    related=[
        "author__name",
        "author__city__name",
        "tags__word",
        "remarks__body",
        "remarks__by__username",
        "labels__word",
    ],
)
class Story(models.Model):
    """Its text spans tables: relations of every kind, some over several hops."""

    title = models.CharField(max_length=200)
    author = models.ForeignKey(Author, null=True, on_delete=models.SET_NULL)
    tags = models.ManyToManyField(Tag, related_name="stories")
    labels = GenericRelation(Label)

    def __str__(self) -> str:
        return self.title


class Remark(models.Model):
    story = models.ForeignKey(Story, null=True, on_delete=models.CASCADE, related_name="remarks")
    by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    body = models.TextField()

    def __str__(self) -> str:
        return self.body


class Leaf(models.Model):
    """A parent of models that are embedded."""

    title = models.CharField(max_length=200)
    live = models.BooleanField(default=True)
    owner = models.ForeignKey(Author, null=True, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return self.title


class Sheet(Leaf):
    number = models.IntegerField(default=0)


@embeddable(
    fields=["title", "intro"],
    related=["owner__name"],
    text="full_text",
    when=Q(live=True, is_secret=False),
    stale="hide",
)
@embeddable(fields=["title", "intro"], when=Q(live=True), name="EssayPlain")
class Essay(Sheet):
    """Its title, condition and owner stand in the table of its grandparent."""

    intro = models.TextField(default="")
    is_secret = models.BooleanField(default=False)

    def full_text(self) -> str:
        return f"{self.title} by {self.owner.name if self.owner else 'nobody'}: {self.intro}"
