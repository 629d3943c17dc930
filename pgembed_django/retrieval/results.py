"""What a search returns: rows, how each was found, and the passage to show for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

from django.db import DatabaseError
from django.db.models import Model
from django.utils.safestring import SafeString, mark_safe
from psycopg import sql

from pgembed_django.core import database, faults, languages, postgres, user_code
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Space
from pgembed_django.retrieval.retrievers import Name
from pgembed_django.retrieval.statistics import Words
from pgembed_django.retrieval.targets import Target

Row = TypeVar("Row", bound=Model, covariant=True)

Mode = Literal["hybrid", "semantic", "lexical"]

Ranking = Literal["hybrid", "semantic", "lexical", "mixed", "none"]
"""Which retrievers were used. ``mixed``: different ones for different models. ``none``: none."""

LONGEST_BEGINNING = 500
"""How many characters to show of a row whose best chunk has just been replaced."""

SPACES = re.compile(r"\s+")


class Marks(NamedTuple):
    """The characters before and after each marked word, and the one in the place of ``<``."""

    opens: str
    closes: str
    less_than: str


# Private-use characters around each marked word, and one that takes the place of "<": the parser
# would drop what looks like a tag. Only Unicode has such characters. Elsewhere control characters
# are marks, and tags are dropped.
UNICODE_MARKS = Marks("\ue000", "\ue001", "\ue002")
OTHER_MARKS = Marks("\x02", "\x03", "")

# All of a short passage. Of a longer one the part with most of the query's words, or else its
# beginning. No passage has the characters of the marks when it is parsed, so none can forge a mark.
HEADLINE = """
    ts_headline(
        %(language)s::regconfig,
        translate(passage, %(replaced)s, %(replacement)s),
        %(words)s::tsquery,
        %(marks)s || CASE
            WHEN length(passage) <= 320 THEN ', HighlightAll=true'
            ELSE ', MaxFragments=1, MinWords=35, MaxWords=50, ShortWord=0'
        END
    )
"""

NO_HEADLINE = "NULL"
"""Parsing passages again takes most of the time of reading them."""

PASSAGES = """
    SELECT
        id,
        passage,
        start_offset,
        end_offset,
        text_digest,
        embedding IS NULL,
        {headline}
    FROM {table}
    WHERE id = ANY(%(ids)s)
"""

HEADLINES = """
    SELECT {headline}
    FROM unnest(%(passages)s::text[]) WITH ORDINALITY AS shown(passage, place)
    ORDER BY place
"""


class Match(NamedTuple):
    """One way by which a row was found: by its meaning (``semantic``) or its words (``lexical``).

    ``rank`` counts from 1. ``score`` is the cosine similarity, or that of BM25. ``start`` and
    ``end`` are the offsets in the row's text of the passage that matched best.
    """

    mode: Name
    rank: int
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Generic[Row]):
    """One row and its best passage.

    ``score`` orders the hits of one search: do not compare it between searches. ``similarity`` is
    the cosine similarity if the row was found by meaning or compared with ``min_similarity``,
    else None. ``start`` and ``end`` are the passage's offsets in the row's text. ``marks`` has the
    start and end in the passage of each word that ``highlight`` marks. ``matched_by`` tells how
    the row was found: by one way, or by both.
    """

    instance: Row
    score: float
    similarity: float | None
    passage: str
    start: int
    end: int
    marks: tuple[tuple[int, int], ...]
    highlight: SafeString
    """The part of the passage with most marks, as HTML that is safe to show, with ``<mark>``."""
    matched_by: tuple[Match, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Sequence[Row]):
    """The rows found, best first, each with ``score``, ``similarity``, ``passage``, ``highlight``.

    ``hits`` has these and more, typed, and also if the model has a field with one of these names.
    ``degraded``: the query could not be embedded, so it was searched by words only. ``reranked``:
    the reranker ordered the first rows. ``note`` says for people what the search could not do as
    asked. ``next_offset`` is where the next page starts, or None on the last page.
    """

    hits: tuple[Hit[Row], ...]
    ranking: Ranking
    spaces: tuple[Space, ...]
    degraded: bool = False
    reranked: bool = False
    note: str = ""
    next_offset: int | None = None

    @property
    def space(self) -> Space | None:
        """The space that was searched. None if there was none, or several."""
        return self.spaces[0] if len(self.spaces) == 1 else None

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return tuple(hit.instance for hit in self.hits[index])
        try:
            return self.hits[index].instance
        except IndexError:
            found = f"has {len(self)} on this page" if self.hits else "found none"
            said = f"No result has the index {index}: the search {found}. {self.note}"
            raise IndexError(said.strip()) from None

    def __len__(self) -> int:
        return len(self.hits)


class Matched(NamedTuple):
    """How a retriever ranked a row, and by which chunk. See ``Match``."""

    mode: Name
    rank: int
    score: float
    chunk: int


class Ranked(NamedTuple):
    """A row's key, the id of its best chunk, and its scores."""

    key: Any
    chunk: int
    score: float
    similarity: float | None
    merit: float
    """A score by rank alone, which is comparable between models."""
    matches: tuple[Matched, ...] = ()


class _Passage(NamedTuple):
    """A passage, its offsets in its row's text, and what ``ts_headline`` makes of it, if asked."""

    text: str
    start: int
    end: int
    headline: str | None = None


class _Stored(NamedTuple):
    """A chunk as ``PASSAGES`` reads it."""

    id: int
    text: str | None
    """None: the spec does not store texts."""
    start: int
    end: int
    text_digest: bytes
    waits: bool
    """The chunk has no vector yet."""
    headline: str | None


def hits_of(
    target: Target[Any], ranked: Sequence[Ranked], *, words: Words | None
) -> list[Hit[Any]]:
    """Return the hits in the order of ``ranked``, without rows that are not in the queryset."""
    if not ranked:
        return []
    rows = {row.pk: row for row in target.rows.filter(pk__in=[one.key for one in ranked])}
    chunks = {one.key: one.chunk for one in ranked}
    stored = _stored(target, list(chunks.values()), headline=HEADLINE, words=words)
    passages = _passages(target, rows, chunks, stored)
    _add_headlines(target, passages, words=words)
    places_of = _places(target, ranked)
    marks = _marks(target.using)
    hits = []
    for one in ranked:
        if passage := passages.get(one.key):
            places, highlight = highlighted(
                passage.headline or "", passage=passage.text, marks=marks
            )
            hit = Hit(
                instance=rows[one.key],
                score=one.score,
                similarity=one.similarity,
                passage=passage.text,
                start=passage.start,
                end=passage.end,
                marks=places,
                highlight=highlight,
                matched_by=tuple(
                    Match(mode, rank, score, *places_of.get(chunk, (passage.start, passage.end)))
                    for mode, rank, score, chunk in one.matches
                ),
            )
            _annotate(hit)
            hits.append(hit)
    return hits


def passages_of(target: Target[Any], ranked: Sequence[Ranked]) -> dict[Any, str]:
    """Return the passages that ``hits_of`` would show, by key, without reading more than needed."""
    chunks = {one.key: one.chunk for one in ranked}
    stored = _stored(target, list(chunks.values()), headline=NO_HEADLINE, words=None)
    keys = target.keys.filter(pk__in=chunks).values_list("pk", flat=True)
    rows: dict[Any, Any] = dict.fromkeys(keys)
    needed = [key for key in rows if not _is_enough(stored.get(chunks[key]))]
    if needed:
        rows |= {row.pk: row for row in target.rows.filter(pk__in=needed)}
    return {key: one.text for key, one in _passages(target, rows, chunks, stored).items()}


def _places(target: Target[Any], ranked: Sequence[Ranked]) -> dict[int, tuple[int, int]]:
    """Return where chunks are that matched, but that are not those to show."""
    others = {match.chunk for one in ranked for match in one.matches if match.chunk != one.chunk}
    if not others:
        return {}
    chunks: Any = target.spec.embedding_model._base_manager.using(target.using)
    found = chunks.filter(pk__in=others).values_list("pk", "start_offset", "end_offset")
    return {key: (start, end) for key, start, end in found}


def _annotate(hit: Hit[Any]) -> None:
    """Set the hit's values as attributes of the instance, unless the name is taken."""
    own = vars(hit.instance)
    for name in ("score", "similarity", "passage", "highlight"):
        # Look in the instance's own class, which may differ from the queryset's.
        if name not in own and not hasattr(type(hit.instance), name):
            own[name] = getattr(hit, name)


def _passages(
    target: Target[Any],
    rows: Mapping[Any, Any],
    chunks: Mapping[Any, int],
    stored: Mapping[int, _Stored],
) -> dict[Any, _Passage]:
    """Return the passage to show for each row, by its key.

    ``rows`` has the instances and ``chunks`` the ids of their best chunks, both by key. No
    instance is needed where ``_is_enough``. Leaves out a row whose chunk is of an older text if the
    spec hides stale rows.
    """
    spec = target.spec
    if spec.prefetch:
        # Its text method needs rows that are read as a worker does. Those of the caller may have
        # prefetched the same relations otherwise.
        needed = [key for key in rows if not _is_enough(stored.get(chunks[key]))]
        rows = {**rows, **spec.rows(using=target.using).in_bulk(needed)}
    found: dict[Any, _Passage] = {}
    for key, row in rows.items():
        chunk = stored.get(chunks[key])
        if chunk is None:
            # A worker has replaced the chunk since. Still show the row: the start of its text.
            text = (_text_now(spec, row) or "")[:LONGEST_BEGINNING]
            found[key] = _Passage(text, 0, len(text))
        elif chunk.waits and spec.stale == "hide" and not _is_of_text(chunk, spec, row):
            continue
        elif chunk.text is None:
            text = (_text_now(spec, row) or "")[chunk.start : chunk.end]
            found[key] = _Passage(text, chunk.start, chunk.end)
        else:
            found[key] = _Passage(chunk.text, chunk.start, chunk.end, chunk.headline or "")
    return found


def _add_headlines(
    target: Target[Any], passages: dict[Any, _Passage], *, words: Words | None
) -> None:
    """Have headlines made of the passages that are not stored."""
    cut = {key: one for key, one in passages.items() if one.headline is None}
    if cut:
        texts = [passage.text for passage in cut.values()]
        parameters = _headline_parameters(target.using, words)
        statement = _filled(HEADLINES, target, HEADLINE)
        headlines = database.rows(target.using, statement, passages=texts, **parameters)
        for (key, passage), [headline] in zip(cut.items(), headlines, strict=True):
            passages[key] = passage._replace(headline=headline)


def _is_enough(chunk: _Stored | None) -> bool:
    """Return whether a chunk can be shown without its row's text."""
    return chunk is not None and chunk.text is not None and not chunk.waits


def _is_of_text(chunk: _Stored, spec: Spec, row: Any) -> bool:
    """Return whether a chunk is of the row's present text."""
    now = _text_now(spec, row)
    return now is not None and spec.text_digest(now) == bytes(chunk.text_digest)


@user_code.of_settings()
def _text_now(spec: Spec, row: Any) -> str | None:
    """Return the row's text, or None if its text method raises: the other rows are still shown."""
    try:
        return spec.text_of(row)
    except DatabaseError:
        raise  # it may have aborted the caller's transaction
    except BaseException as error:  # the user's method: its job reports it
        if faults.is_interruption(error):
            raise
        return None


def _stored(
    target: Target[Any], chunks: Sequence[int], *, headline: str, words: Words | None
) -> dict[int, _Stored]:
    """Return the chunks that are still there, by id."""
    statement = _filled(PASSAGES, target, headline)
    parameters = _headline_parameters(target.using, words)
    rows = database.rows(target.using, statement, ids=chunks, **parameters)
    return {row[0]: _Stored(*row) for row in rows}


def _filled(statement: str, target: Target[Any], headline: str) -> str:
    names = {"headline": sql.SQL(headline), "table": sql.SQL(target.table)}
    return sql.SQL(statement).format(**names).as_string(None)


def _marks(using: str) -> Marks:
    return UNICODE_MARKS if postgres.encoding(using) == "UTF8" else OTHER_MARKS


def _headline_parameters(using: str, words: Words | None) -> dict[str, Any]:
    marks = _marks(using)
    return {
        "language": words.language if words else languages.FALLBACK,
        "words": words.any if words else "",
        # What has no replacement is removed.
        "replaced": languages.JOINTS + ("<" if marks.less_than else "") + "".join(marks),
        "replacement": languages.GAPS + marks.less_than,
        "marks": f"StartSel={marks.opens}, StopSel={marks.closes}",
    }


def highlighted(
    headline: str, *, passage: str, marks: Marks
) -> tuple[tuple[tuple[int, int], ...], SafeString]:
    """Return where in the passage the headline's marked words are, and the headline as HTML."""
    pieces = re.split(f"[{marks.opens}{marks.closes}]", headline)
    parsed = languages.apart(passage)
    if marks.less_than:
        parsed = parsed.replace("<", marks.less_than)
    # Not found if characters or tags of the passage were removed.
    start = parsed.find("".join(pieces))
    if start >= 0:
        ends = accumulate(map(len, pieces), initial=start)
        pieces = [passage[begin:end] for begin, end in pairwise(ends)]
    elif marks.less_than:
        pieces = [piece.replace(marks.less_than, "<") for piece in pieces]
    places = []
    parts = ["… " if start > 0 else ""]
    place = start
    for number, piece in enumerate(pieces):
        shown = escape(SPACES.sub(" ", piece))
        if number % 2:
            places.append((place, place + len(piece)))
        parts.append(f"<mark>{shown}</mark>" if number % 2 else shown)
        place += len(piece)
    parts.append(" …" if start >= 0 and place < len(passage) else "")
    # Every part is escaped.
    return tuple(places) if start >= 0 else (), mark_safe("".join(parts))  # noqa: S308
