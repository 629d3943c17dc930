"""Mend chunks whose words were made with another full-text configuration than is declared.

No provider is asked. Words are made again from the passage beside them. Where passages are not
stored, the rows' jobs make them, and reuse the vectors.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

from pgembed_django import sources
from pgembed_django.core.adapting import AdaptiveSize
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import ScanCursor, Space
from pgembed_django.spaces import stored

# A writer who deletes a row waits for the chunks that are mended at the moment.
_sizes: defaultdict[tuple[str, str], AdaptiveSize] = defaultdict(AdaptiveSize)
"""(spec key, database) -> how many chunks to mend in one transaction."""


class Look(NamedTuple):
    """The result of a look at a page: the last id that is done with, and units without passages.

    ``end`` is None after the last chunk.
    """

    end: int | None
    units: Collection[str] = ()


def mend_page(spec: Spec, live: Sequence[Space], *, after: int, rows: int, using: str) -> Look:
    """Mend some of the chunks that follow an id. Call it in a transaction that gives way.

    A page is looked at until nothing in it is to be mended. The last look may see a newer language
    of a row, written while the former one was mended: its job may have found nothing to do.
    """
    chunks = stored.words(spec, after=after, limit=max(rows, 1), using=using)
    source_pks = list({chunk.source_pk for chunk in chunks})
    wanted = sources.languages(spec, source_pks, using=using)
    # Without rows: the single next chunk cannot be mended.
    other = [
        chunk
        for chunk in chunks
        if rows and chunk.source_pk in wanted and wanted[chunk.source_pk] != chunk.language
    ]
    mendable = {chunk.id: wanted[chunk.source_pk] for chunk in other if chunk.has_passage}
    size = _sizes[spec.key, using]
    some = dict(islice(mendable.items(), size.size))
    started = time.perf_counter()
    if some and stored.mend(spec, some, using=using):
        size.took(time.perf_counter() - started, len(some))
        return Look(after)
    end = chunks[-1].id if len(chunks) == max(rows, 1) else None
    if len(some) < len(mendable):
        end = max(some)  # open transactions have locked all of these
    spaces = {space.pk for space in live}
    without = {
        chunk.source_pk
        for chunk in other
        if not chunk.has_passage and chunk.space_id in spaces and (end is None or chunk.id <= end)
    }
    return Look(end, without)


def share(spec: Spec, *, using: str) -> float:
    """Return roughly how much of a scan that is under way is done, from 0 to 1.

    Goes by the ids of the chunks, so it costs the same however large the table is.
    """
    cursors = ScanCursor.objects.using(using).filter(spec=spec.key, scan=ScanCursor.Scan.WORDS)
    cursor = cursors.filter(recipe=spec.words_recipe).values_list("cursor", flat=True).first()
    ends = stored.ends(spec, using=using)
    if not cursor or not ends:
        return 0.0
    first, last = ends
    return min(max((int(cursor) - first + 1) / (last - first + 1), 0.0), 1.0)
