"""Write rows with text keys, which are reused after they were deleted.

A transaction takes each key once, in ascending order. With reused keys there is no row to lock
beforehand, and a writer that waits for a key must not hold a higher one.
"""

from __future__ import annotations

import random

from benchmarks.app.models import Page
from benchmarks.soak.actions import Done, Texts, pieces

KEYS = [f"/page/{number:03}/" for number in range(120)]
AT_ONCE = 30


def walk(count: int, texts: Texts, draw: random.Random) -> Done:
    """Write ``count`` pages: insert or update each, delete it, or move it to the next key."""
    keys = iter(sorted(draw.sample(KEYS, min(count, len(KEYS)))))
    rows, carried = 0, []
    for key in keys:
        what = draw.random()
        if what < 0.6:
            _put(key, texts)
        elif what < 0.8:
            Page._base_manager.filter(pk=key).delete()
        else:
            carried += _move(key, next(keys, None))
        rows += 1
    return Done(rows, carried)


def _put(key: str, texts: Texts) -> None:
    # ON CONFLICT waits for a writer of the same key, and never fails.
    Page._base_manager.bulk_create(
        [Page(slug=key, body=texts.body())],
        update_conflicts=True,
        unique_fields=["slug"],
        update_fields=["body"],
    )


def _move(key: str, target: str | None) -> list[str]:
    page = Page._base_manager.select_for_update().filter(pk=key).first()
    if page is None or target is None:
        return []
    Page._base_manager.filter(pk=target).delete()
    Page._base_manager.filter(pk=key).update(slug=target)
    return pieces(page)
