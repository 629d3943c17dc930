"""What transactions do to source rows. No text is written twice in a soak.

An action returns how many rows it wrote, and the texts that it carried over: texts that stayed
although their vectors were deleted (back into the condition, another key). These are rightly
embedded once more.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from django.db import connection, models

from benchmarks.app.models import Article, Note, Page
from benchmarks.soak.server import POISON
from pgembed_django import sources
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec

WORDS = ("river", "stone", "copper", "window", "lantern", "garden", "silver", "meadow", "harbour")
POISONED = 0.02
BESIDE = "beside"
"""A word in the good chunks of poisoned rows. Their vectors are discarded when the row fails."""


class Done(NamedTuple):
    """The result of an action."""

    rows: int
    carried: Sequence[str] = ()


class Texts:
    """Makes texts that nobody else writes, some of them poisoned."""

    def __init__(self, writer: str, draw: random.Random) -> None:
        self._writer = writer
        self.draw = draw
        self._count = 0
        self.large_share = 0.0
        """How many texts have a chunk that is not stored with the row: see ``body``."""

    def tag(self) -> str:
        """Return a word that was not written before."""
        self._count += 1
        return f"{self._writer}x{self._count}"

    def paragraph(self, mark: str = "") -> str:
        """Return a paragraph: one chunk of a note."""
        return f"{self.tag()} {mark} {' '.join(self.draw.choices(WORDS, k=14))}."

    def body(self) -> str:
        """Return a text of one to five chunks. One of them may be poisoned."""
        count = self.draw.choice((1, 1, 1, 2, 5))
        if self.draw.random() < self.large_share:
            # Random digits are not compressed. Large values stay where they are in an UPDATE.
            return f"{self.paragraph()}\n\n{self.draw.randbytes(5000).hex()}"
        if self.draw.random() >= POISONED:
            return "\n\n".join(self.paragraph() for _ in range(count))
        chunks = [self.paragraph(BESIDE) for _ in range(count)]
        chunks[self.draw.randrange(count)] = self.paragraph(f"{BESIDE} {POISON}")
        return "\n\n".join(chunks)

    def edited(self, body: str) -> str:
        """Return the text with one chunk changed. The vectors of the others are to be reused."""
        chunks = body.split("\n\n")
        if POISON in body or len(chunks) == 1:
            return self.body()
        chunks[self.draw.randrange(len(chunks))] = self.paragraph()
        return "\n\n".join(chunks)


def fresh(model: type[models.Model], texts: Texts) -> models.Model:
    """Return a new, unsaved row."""
    if model is Article:
        return Article(
            title=texts.tag(), contents=texts.body(), is_public=texts.draw.random() < 0.8
        )
    return model(body=texts.body())


def pieces(row: Any) -> list[str]:
    """Return the texts of a row as the embedding server sees them."""
    [spec] = specs.of(type(row))
    return [chunk.text for chunk in spec.chunker.split(spec.text_of(row))]


def texts_of(spec: Spec) -> dict[str, str]:
    """Return the texts of all rows of a spec, by their keys as text."""
    found = sources.read(spec, spec.rows(using="default"))
    assert not found.errors, found.errors
    return found.texts


def insert(model: type[models.Model], count: int, texts: Texts) -> Done:
    model._base_manager.bulk_create([fresh(model, texts) for _ in range(count)])
    return Done(count)


def save(rows: Sequence[Any], texts: Texts) -> Done:
    for row in rows:
        _rewrite(row, texts)
        row.save(update_fields=[_field(row)])
    return Done(len(rows))


def bulk_update(rows: Sequence[Any], texts: Texts) -> Done:
    for row in rows:
        _rewrite(row, texts)
    type(rows[0])._base_manager.bulk_update(rows, [_field(rows[0])], batch_size=500)
    return Done(len(rows))


def raw_update(rows: Sequence[Any], texts: Texts) -> Done:
    statements = {
        Article: "UPDATE app_article SET title = %s || id, views = views + 1 WHERE id = ANY(%s)",
        Note: "UPDATE app_note SET body = %s || ' of ' || id WHERE id = ANY(%s)",
        Page: "UPDATE app_page SET body = %s || ' of ' || slug WHERE slug = ANY(%s)",
    }
    return Done(_execute(statements[type(rows[0])], texts.tag(), _keys(rows)))


def look_at(rows: Sequence[Any], texts: Texts) -> Done:
    """Write a column that is not watched."""
    if type(rows[0]) is Article:
        _execute("UPDATE app_article SET views = views + 1 WHERE id = ANY(%s)", _keys(rows))
    return Done(len(rows))


def delete(rows: Sequence[Any], texts: Texts) -> Done:
    count, _ = type(rows[0])._base_manager.filter(pk__in=_keys(rows)).delete()
    return Done(count)


def raw_delete(rows: Sequence[Any], texts: Texts) -> Done:
    queryset = type(rows[0])._base_manager.filter(pk__in=_keys(rows))
    return Done(queryset._raw_delete(queryset.db))  # noqa: SLF001


def flip(rows: Sequence[Any], texts: Texts) -> Done:
    """Move rows into or out of the condition."""
    if type(rows[0]) is not Article:
        return save(rows, texts)
    _execute("UPDATE app_article SET is_public = NOT is_public WHERE id = ANY(%s)", _keys(rows))
    return Done(len(rows), list(_pieces_of(row for row in rows if not row.is_public)))


def rekey(rows: Sequence[Any], texts: Texts) -> Done:
    """Give rows other primary keys."""
    if type(rows[0]) is Article:
        count = _execute(
            "UPDATE app_article SET id = nextval(pg_get_serial_sequence('app_article', 'id'))"
            " WHERE id = ANY(%s)",
            _keys(rows),
        )
    else:
        count = _execute(
            "UPDATE app_note SET id = new FROM unnest(%s::uuid[], %s::uuid[]) AS moved(old, new)"
            " WHERE id = old",
            _keys(rows),
            [uuid.uuid4() for _ in rows],
        )
    return Done(count, list(_pieces_of(rows)))


def truncate(model: type[models.Model]) -> None:
    _execute(f"TRUNCATE {model._meta.db_table}")


ON_ROWS: tuple[Callable[[Sequence[Any], Texts], Done], ...] = (
    *(save, bulk_update, raw_update, raw_update),
    *(delete, raw_delete, flip, flip, rekey, look_at),
)


def _rewrite(row: Any, texts: Texts) -> None:
    field = _field(row)
    setattr(row, field, texts.tag() if field == "title" else texts.edited(row.body))


def _field(row: Any) -> str:
    return "title" if isinstance(row, Article) else "body"


def _pieces_of(rows: Any) -> Iterator[str]:
    for row in rows:
        yield from pieces(row)


def _keys(rows: Sequence[Any]) -> list[Any]:
    return [row.pk for row in rows]


def _execute(statement: str, *parameters: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)
