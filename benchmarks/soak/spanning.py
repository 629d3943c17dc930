"""Write the tables that texts of stories and essays span: authors, tags, comments, parents.

All locks are taken first: table after table as ``Rows`` names them, in key order, and as strong as
the actions need. Rows that others point to are locked too, as foreign keys are checked at the
commit. Through rows are written by whoever has locked the story. So a deadlock can only be our
fault. Locks are no stronger than needed, so that a comment is saved while its story is moved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import F, Model

from benchmarks.related.models import Author, Comment, Essay, Sheet, Story, Tag
from benchmarks.soak.actions import BESIDE, WORDS, Texts, pieces
from benchmarks.soak.server import POISON

AUTHORS, TAGS, STORIES, ESSAYS = 8, 20, 1500, 1000
"""How many rows to keep of each."""

HOT_SHARE = 0.7
"""So many stories are of the first author: more than a page of units when it is renamed."""

POISONED = 0.01

UNLOCKED, POINT, CHANGE, DELETE = range(4)
"""What rows are locked for."""

LOCK = "SELECT {key} FROM {table} WHERE {key} = ANY(%s) ORDER BY {key} FOR {strength}"
STRENGTHS = {POINT: "KEY SHARE", CHANGE: "NO KEY UPDATE", DELETE: "UPDATE"}

Through = Story.tags.through


class Rows(NamedTuple):
    """The keys of locked rows."""

    authors: Sequence[int] = ()
    tags: Sequence[int] = ()
    stories: Sequence[int] = ()
    comments: Sequence[int] = ()
    sheets: Sequence[int] = ()
    essays: Sequence[int] = ()


class Needs(NamedTuple):
    """What the rows of each table are locked for."""

    authors: int = UNLOCKED
    tags: int = UNLOCKED
    stories: int = UNLOCKED
    comments: int = UNLOCKED
    sheets: int = UNLOCKED
    essays: int = UNLOCKED


class Action(NamedTuple):
    """What a transaction does. ``do`` returns texts that it carried over: see ``actions``."""

    do: Callable[[Rows, Texts], Sequence[str] | None]
    needs: Needs = Needs()


def value(texts: Texts) -> str:
    """Return a value that was not written before.

    Values of other rows come and go, so that a story has a text again which it had before. It is
    rightly embedded again: ``BESIDE`` keeps it from being counted.
    """
    return f"{texts.tag()} {BESIDE}"


def comment(texts: Texts) -> str:
    """Return a comment, shorter than half a chunk: no chunk is cut but between two values."""
    poison = f" {POISON}" if texts.draw.random() < POISONED else ""
    return f"{value(texts)}{poison} {' '.join(texts.draw.choices(WORDS, k=2))}."


# Stories, and what they are made of


def add_authors(rows: Rows, texts: Texts) -> None:
    if Author.objects.count() < AUTHORS:
        Author.objects.create(name=value(texts))
    if Tag.objects.count() < TAGS:
        Tag.objects.create(word=value(texts))


def rename_authors(rows: Rows, texts: Texts) -> None:
    Author.objects.filter(pk__in=rows.authors).update(name=value(texts))


def rename_tags(rows: Rows, texts: Texts) -> None:
    for tag in Tag.objects.filter(pk__in=rows.tags):
        tag.word = value(texts)
        tag.save()


def retitle(rows: Rows, texts: Texts) -> None:
    Story.objects.filter(pk__in=rows.stories).update(title=value(texts))


def move(rows: Rows, texts: Texts) -> None:
    """Give stories another author, or none."""
    author = texts.draw.choice([None, *rows.authors, *rows.authors])
    Story.objects.filter(pk__in=rows.stories).update(author=author)


def move_to_a_renamed_one(rows: Rows, texts: Texts) -> None:
    rename_authors(rows, texts)
    move(rows, texts)


def tag(rows: Rows, texts: Texts) -> None:
    for story in Story.objects.filter(pk__in=rows.stories[:20]):
        story.tags.add(*rows.tags)


def tag_anew(rows: Rows, texts: Texts) -> None:
    """Replace tags: some are removed, and some added."""
    for story in Story.objects.filter(pk__in=rows.stories[:20]):
        story.tags.set(rows.tags)


def untag(rows: Rows, texts: Texts) -> None:
    Through.objects.filter(story__in=rows.stories).delete()


def move_tags(rows: Rows, texts: Texts) -> None:
    """Move through rows to another story."""
    if rows.stories:
        target = texts.draw.choice(rows.stories)
        known = Through.objects.filter(story=target).values("tag")
        moved = Through.objects.filter(story__in=rows.stories).exclude(tag__in=known)
        one_each = moved.order_by("tag", "pk").distinct("tag").values_list("pk", flat=True)
        Through.objects.filter(pk__in=list(one_each)).update(story=target)


def add_comments(rows: Rows, texts: Texts) -> None:
    if Comment.objects.count() < 2 * STORIES:
        Comment.objects.bulk_create(
            Comment(story_id=story, body=comment(texts)) for story in rows.stories
        )


def edit_comments(rows: Rows, texts: Texts) -> None:
    for one in Comment.objects.filter(pk__in=rows.comments):
        one.body = comment(texts)
        one.save(update_fields=["body"])


def move_comments(rows: Rows, texts: Texts) -> None:
    if rows.stories:
        target = texts.draw.choice(rows.stories)
        Comment.objects.filter(pk__in=rows.comments).update(story=target)


def edit_and_move_comments(rows: Rows, texts: Texts) -> None:
    move_comments(rows, texts)
    edit_comments(rows, texts)


def delete_comments(rows: Rows, texts: Texts) -> None:
    Comment.objects.filter(pk__in=rows.comments)._raw_delete("default")  # noqa: SLF001


def add_stories(rows: Rows, texts: Texts) -> None:
    draw = texts.draw
    if not rows.authors or Story.objects.count() >= STORIES:
        return
    count = draw.choice((1, 1, 5, 200))
    stories = Story.objects.bulk_create(
        Story(title=value(texts), author_id=draw.choice(rows.authors)) for _ in range(count)
    )
    if rows.tags:
        Through.objects.bulk_create(
            Through(story=story, tag_id=draw.choice(rows.tags)) for story in stories
        )
    Comment.objects.bulk_create(Comment(story=story, body=comment(texts)) for story in stories)


def delete_stories(rows: Rows, texts: Texts) -> None:
    """Delete with cascade: their comments and through rows first."""
    Story.objects.filter(pk__in=rows.stories).delete()


def delete_authors(rows: Rows, texts: Texts) -> None:
    """Delete with SET NULL."""
    Author.objects.filter(pk__in=rows.authors).delete()


def delete_tags(rows: Rows, texts: Texts) -> None:
    Tag.objects.filter(pk__in=rows.tags).delete()


# Essays, and their parents


def add_essays(rows: Rows, texts: Texts) -> None:
    if Essay.objects.count() < ESSAYS:
        for _ in range(texts.draw.randint(1, 5)):
            Essay.objects.create(title=texts.tag(), intro=texts.body())


def retitle_sheets(rows: Rows, texts: Texts) -> None:
    Sheet.objects.filter(pk__in=rows.sheets).update(title=texts.tag())


def flip_sheets(rows: Rows, texts: Texts) -> list[str]:
    """Move essays into or out of their condition by their parents' column."""
    Sheet.objects.filter(pk__in=rows.sheets).update(is_live=~F("is_live"))
    entered = Essay.objects.filter(pk__in=rows.sheets, is_live=True)
    return [text for essay in entered for text in pieces(essay)]


def edit_intros(rows: Rows, texts: Texts) -> None:
    for essay in Essay.objects.filter(pk__in=rows.essays):
        essay.intro = texts.edited(essay.intro)
        essay.save(update_fields=["intro"])


def save_essays(rows: Rows, texts: Texts) -> None:
    """Write the parent, then the child."""
    for essay in Essay.objects.filter(pk__in=set(rows.sheets) & set(rows.essays)).order_by("pk"):
        essay.title, essay.intro = texts.tag(), texts.body()
        essay.save()


def delete_essays(rows: Rows, texts: Texts) -> None:
    Essay.objects.filter(pk__in=set(rows.sheets) & set(rows.essays)).delete()


CHANGES = (
    Action(add_authors),
    *[Action(rename_authors, Needs(authors=CHANGE)), Action(rename_tags, Needs(tags=CHANGE))] * 2,
    Action(retitle, Needs(stories=CHANGE)),
    *[Action(move, Needs(authors=POINT, stories=CHANGE))] * 2,
    Action(move_to_a_renamed_one, Needs(authors=CHANGE, stories=CHANGE)),
    *[Action(tag, Needs(tags=POINT, stories=CHANGE))] * 2,
    Action(tag_anew, Needs(tags=POINT, stories=CHANGE)),
    *(Action(untag, Needs(stories=CHANGE)), Action(move_tags, Needs(stories=CHANGE))),
    *[Action(add_comments, Needs(stories=POINT))] * 3,
    *[Action(edit_comments, Needs(comments=CHANGE))] * 2,
    Action(move_comments, Needs(stories=POINT, comments=CHANGE)),
    Action(edit_and_move_comments, Needs(stories=POINT, comments=CHANGE)),
    *[Action(add_stories, Needs(authors=POINT, tags=POINT))] * 3,
    *(Action(add_essays), Action(retitle_sheets, Needs(sheets=CHANGE))),
    *(Action(flip_sheets, Needs(sheets=CHANGE)), Action(edit_intros, Needs(essays=CHANGE))),
    *[Action(save_essays, Needs(sheets=CHANGE, essays=CHANGE))] * 2,
)
DELETIONS = (
    Action(delete_comments, Needs(comments=DELETE)),
    Action(delete_stories, Needs(stories=DELETE, comments=DELETE)),
    Action(delete_authors, Needs(authors=DELETE, stories=CHANGE)),
    Action(delete_tags, Needs(tags=DELETE, stories=CHANGE)),
    Action(delete_essays, Needs(sheets=DELETE, essays=DELETE)),
)
"""A transaction does at most one of them, as the last action."""

DELETION_SHARE = 0.15
AT_ONCE, DELETED_AT_ONCE = 200, 10
"""How many rows of a table a transaction takes at most."""


def fill(seed: int) -> None:
    """Write the rows to begin with."""
    texts = Texts("first", random.Random(f"{seed} first"))
    for _ in range(TAGS):
        add_authors(Rows(), texts)
    authors = list(Author.objects.order_by("pk").values_list("pk", flat=True))
    rows = Rows(
        [*authors[:1] * len(authors), *authors], list(Tag.objects.values_list("pk", flat=True))
    )
    while Story.objects.count() < STORIES:
        add_stories(rows, texts)
    while Essay.objects.count() < 100:
        add_essays(rows, texts)


def choose(draw: random.Random, *, is_repeatable_read: bool) -> list[Action]:
    """Return what a transaction is to do."""
    actions = draw.choices(CHANGES, k=draw.choice((1, 1, 2, 4)))
    # With an old snapshot, it would not see all rows that point to those that it deletes.
    if not is_repeatable_read and draw.random() < DELETION_SHARE:
        actions.append(draw.choice(DELETIONS))
    return actions


def lock(actions: Sequence[Action], draw: random.Random, size: int) -> Rows:
    """Lock some rows for these actions, and all others that they will write."""
    size = min(size, DELETED_AT_ONCE if actions[-1] in DELETIONS else AT_ONCE)
    needed = Needs(*map(max, *(one.needs for one in actions), Needs()))
    authors = _locked(Author, _authors(draw, needed.authors), needed.authors)
    tags = _locked(Tag, _some(Tag, draw, draw.randint(1, 3)), needed.tags)
    stories = _some(Story, draw, size)
    if needed.authors == DELETE:
        stories += Story.objects.filter(author__in=authors).values_list("pk", flat=True)
    if needed.tags == DELETE:
        stories += Through.objects.filter(tag__in=tags).values_list("story", flat=True)
    stories = _locked(Story, stories, needed.stories)
    comments = _some(Comment, draw, size)
    if needed.stories == DELETE:
        comments += Comment.objects.filter(story__in=stories).values_list("pk", flat=True)
    comments = _locked(Comment, comments, needed.comments)
    essays = _some(Essay, draw, size)
    sheets = _locked(Sheet, essays, needed.sheets)
    return Rows(authors, tags, stories, comments, sheets, _locked(Essay, essays, needed.essays))


def _authors(draw: random.Random, need: int) -> list[int]:
    """Most stories get the first author, which is never deleted."""
    first, *others = Author.objects.order_by("pk").values_list("pk", flat=True) or [0]
    if need == DELETE:
        return draw.sample(others, min(2, len(others)))
    is_first = draw.random() < (HOT_SHARE if need == POINT else 0.25)
    return [first] if is_first or not others else [draw.choice(others)]


def _some(model: type[Model], draw: random.Random, size: int) -> list[Any]:
    keys = list(model._base_manager.order_by("pk").values_list("pk", flat=True))
    return draw.sample(keys, min(size, len(keys)))


def _locked(model: type[Model], keys: Sequence[Any], need: int) -> list[Any]:
    """Lock the rows that are still there, in key order."""
    if need == UNLOCKED:
        return []
    key = model._meta.pk.column
    statement = LOCK.format(key=key, table=model._meta.db_table, strength=STRENGTHS[need])
    with connection.cursor() as cursor:
        cursor.execute(statement, [list(keys)])
        return [found for [found] in cursor.fetchall()]
