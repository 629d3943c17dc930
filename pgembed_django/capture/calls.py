"""Do what triggers do in the writer's transaction, some time after its commit.

By then a row may be there again. Vectors that are still right are kept: it would cost a provider to
make them again. So of rows that are gone, only those are forgotten that still are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db.models import TextField
from django.db.models.functions import Cast

from pgembed_django import sources
from pgembed_django.capture.batches import Target, Verb
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import ScanCursor
from pgembed_django.spaces import reconcile
from pgembed_django.triggers import sql

CALLS: Mapping[Verb, tuple[str, str]] = {
    "enqueue": (
        "pgembed_enqueue_all_v1",
        "SELECT {function}(%(spec)s, %(keys)s::text[], %(priority)s)",
    ),
    "forget": (
        "pgembed_forget_units_v1",
        "SELECT {function}(%(spec)s, %(keys)s::text[], %(priority)s, %(table)s)",
    ),
    "forget_all": ("pgembed_forget_all_v1", "SELECT {function}(%(spec)s, %(table)s)"),
}


def make(verb: Verb, target: Target, keys: Sequence[str], *, using: str) -> None:
    """Enqueue or forget units. Of a spec that is not declared here, rows are taken for gone."""
    spec = specs.get(target.spec)
    if verb == "forget_all" and spec and _has_rows(spec, using=using):
        # Found row by row. No search finds them meanwhile.
        reconcile.compare_anew(spec, [ScanCursor.Scan.ORPHANED], using=using)
        return
    if verb == "forget" and spec:
        there = _those_there(spec, keys, using=using)
        keys = [key for key in keys if key not in there]
        _call("enqueue", target, list(there), using=using)
    if keys or verb == "forget_all":
        _call(verb, target, keys, using=using)


def _call(verb: Verb, target: Target, keys: Sequence[str], *, using: str) -> None:
    function, statement = CALLS[verb]
    given: dict[str, object] = {"spec": target.spec}
    if verb != "enqueue":
        given["table"] = target.table
    if verb != "forget_all":
        given |= {"priority": target.priority, "keys": list(keys)}
    database.rows(using, statement.replace("{function}", sql.qualified(function)), **given)


def _those_there(spec: Spec, keys: Sequence[str], *, using: str) -> set[str]:
    rows = spec.all_rows(using=using).filter(sources.is_among(spec, list(keys), using=using))
    if spec.when:
        rows = rows.filter(spec.when)
    return set(rows.values_list(Cast("pk", TextField()), flat=True))


def _has_rows(spec: Spec, *, using: str) -> bool:
    return bool(spec.all_rows(using=using).exists())
