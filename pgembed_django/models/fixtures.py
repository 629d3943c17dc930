"""A base class for rows that are valid in their own database only, so not in fixtures."""

from __future__ import annotations

from typing import Any

from django.db import models


class NotFromFixtures(models.Model):
    """A row that ``loaddata`` and ``serialized_rollback`` do not write.

    Each database numbers its own spaces, so vectors of another one would be taken for those of
    another model. The source rows of a fixture are enqueued when they are loaded.
    """

    class Meta:
        abstract = True

    def _save_table(self, raw: bool = False, *args: Any, **kwargs: Any) -> bool:
        # Deserialized objects are saved past ``save`` and ``save_base``.
        return not raw and super()._save_table(raw, *args, **kwargs)  # type: ignore[misc]
