"""Fill the tables of the example. Unchanged rows are not written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from blog.articles import written
from blog.models import Article
from library.collect import Documented
from library.models import Entry

from demo.progress import bar

BATCH = 500
COLLECTED = ("kind", "module", "signature", "docstring", "is_public")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """How many rows were written, removed and left unchanged."""

    written: int
    removed: int
    unchanged: int

    def __str__(self) -> str:
        return f"{self.written:,} written, {self.removed:,} removed, {self.unchanged:,} unchanged"


def entries(documented: Iterable[Documented], *, show: bool = True) -> Loaded:
    """Make the rows of ``library.Entry`` exactly what was collected."""
    wanted = {row.name: Entry(**asdict(row), is_public=row.is_public) for row in documented}
    stored = {entry.name: entry for entry in Entry.objects.all()}
    gone = [stored[name].pk for name in stored.keys() - wanted.keys()]
    Entry.objects.filter(pk__in=gone).delete()
    changed = [entry for name, entry in wanted.items() if not _is_same(entry, stored.get(name))]
    with bar("loading", total=len(changed), show=show and bool(changed)) as progress:
        for start in range(0, len(changed), BATCH):
            batch = changed[start : start + BATCH]
            Entry.objects.bulk_create(
                batch, update_conflicts=True, unique_fields=["name"], update_fields=COLLECTED
            )
            progress.update(len(batch))
    return Loaded(written=len(changed), removed=len(gone), unchanged=len(wanted) - len(changed))


def articles() -> Loaded:
    """Make ``blog.Article`` hold the articles of the example, and leave any others alone."""
    count = 0
    total = 0
    for article in written():
        total += 1
        values = asdict(article)
        stored = Article.objects.filter(title=article.title)
        if stored.filter(**values).exists():
            continue
        if not stored.update(**values):
            Article.objects.create(**values)
        count += 1
    return Loaded(written=count, removed=0, unchanged=total - count)


def _is_same(wanted: Entry, stored: Entry | None) -> bool:
    return stored is not None and all(
        getattr(wanted, field) == getattr(stored, field) for field in COLLECTED
    )
