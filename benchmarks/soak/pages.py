"""Write rows with text keys, which come back after they have gone.

Key after key, each once and upward: with reused keys there is no row that could be locked
beforehand, and a writer that waits must hold nothing above.
"""

from __future__ import annotations

import random

from benchmarks.app.models import Page
from benchmarks.soak.actions import Done, Texts, pieces

KEYS = [f"/page/{number:03}/" for number in range(120)]
AT_ONCE = 30


def walk(count: int, texts: Texts, draw: random.Random) -> Done:
    """Write so many pages: insert or update, delete, or move to the next key."""
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
    # ON CONFLICT waits for whoever is at this key, and never fails.
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
