"""A base class for rows that are only valid in their own database, and so not in fixtures."""

from __future__ import annotations

from typing import Any

from django.db import models


class NotFromFixtures(models.Model):
    """A row that ``loaddata`` and ``serialized_rollback`` do not write.

    Each database numbers its own spaces, so vectors from another database could be taken for those
    of another model. When a fixture's source rows are loaded, triggers enqueue them.
    """

    class Meta:
        abstract = True

    def _save_table(self, raw: bool = False, *args: Any, **kwargs: Any) -> bool:
        # Deserialized objects bypass overridden ``save`` methods, but not this one.
        return not raw and super()._save_table(raw, *args, **kwargs)  # type: ignore[misc]
