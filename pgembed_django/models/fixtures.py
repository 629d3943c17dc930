"""What fixtures leave out: rows that are true in their own database only."""

from __future__ import annotations

from typing import Any

from django.db import models


class NotFromFixtures(models.Model):
    """A row that ``loaddata`` and ``serialized_rollback`` do not write.

    Each database numbers its own spaces: vectors of another one would be taken for those of
    whatever model has that number here. The source rows of a fixture are enqueued as they come.
    """

    class Meta:
        abstract = True

    def _save_table(self, raw: bool = False, *args: Any, **kwargs: Any) -> bool:
        # Deserialized objects are saved past ``save`` and ``save_base``.
        return not raw and super()._save_table(raw, *args, **kwargs)  # type: ignore[misc]
