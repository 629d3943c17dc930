"""Models of django-polymorphic: rows of a parent come back as those of its children."""

from __future__ import annotations

from django.db import models
from polymorphic.models import PolymorphicModel

from pgembed_django import embeddable


@embeddable(
    fields=["title"], related=["book__author", "film__director", "film__cast__name"], text="summary"
)
class Item(PolymorphicModel):
    """Its text is made by the method of each row's own class."""

    title = models.CharField(max_length=100)

    def summary(self) -> str:
        return self.title


@embeddable(fields=["title", "author"])
class Book(Item):
    """Has vectors of its own too. A part of their text is in its parent's table."""

    author = models.CharField(max_length=100)

    def summary(self) -> str:
        return f"{self.title} by {self.author}"


class Person(models.Model):
    """Plays in films."""

    name = models.CharField(max_length=100)


class Film(Item):
    """Has no vectors but those of its parent."""

    director = models.CharField(max_length=100)
    cast = models.ManyToManyField(Person)

    def summary(self) -> str:
        # By the way that related names: only there it is prefetched.
        cast = ", ".join(sorted(person.name for person in self.film.cast.all()))
        return f"{self.title} directed by {self.director} with {cast}"


@embeddable(fields=["title", "author", "illustrator"])
class Comic(Book):
    """Two tables lie above its own."""

    illustrator = models.CharField(max_length=100)


@embeddable(fields=["body"], related=["item__title"])
class Review(models.Model):
    """Its text has a column of a polymorphic row."""

    item = models.ForeignKey(Item, on_delete=models.CASCADE)
    body = models.TextField()
