"""Find texts that were embedded more often than the faults explain.

A text may be embedded once, and once more for each time that it was carried over (its vectors were
deleted, and it stayed: see ``actions``). Each further time needs an earlier delivery that was in
vain: to a worker that suffered a blow, which is being killed, stopped or frozen, losing the
database server, losing a lease, or not learning which model has made the vectors. The delivery
must fall between ``IN_HAND_SECONDS`` before the blow, when its vectors may not have been stored
yet, and the end of the blow. Blows to other workers explain nothing. Nor do a terminated backend, a
lost notification or other trouble with the embedding server: a worker keeps what was delivered
before. Deliveries that broke off, or came after the worker's time-out, are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.soak.processes import Blow
from benchmarks.soak.server import Delivery, Unanswered
from pgembed_django.providers import recognition
from pgembed_django.providers.base import Provider

IN_HAND_SECONDS = 3.0
"""How long a delivered vector may wait to be stored: as long as a writer that has locked its job
pauses at most. Or all processors are busy."""

UNCOUNTED = {Provider.health_check_text, *recognition.TEXTS}
"""By these a provider finds out whether the server is at fault, or has another model."""


BATCH_SECONDS = 10.0
"""How long a batch may take before the model is asked for: four time-outs, halves and retries."""


class Repeats(NamedTuple):
    """How many repeats blows explain, and the texts with a repeat that none explains."""

    explained: int
    unexplained: Mapping[str, list[Delivery]]


def count(
    deliveries: Sequence[Delivery],
    *,
    carried: Mapping[str, int],
    blows: Iterable[Blow],
    ignored: str,
) -> Repeats:
    """Compare deliveries with what had to be embedded. Leave out texts that contain ``ignored``."""
    struck = defaultdict(list)
    for blow in blows:
        struck[blow.worker].append(blow)
    by_text = defaultdict(list)
    for delivery in deliveries:
        if delivery.text not in UNCOUNTED and ignored not in delivery.text:
            by_text[delivery.text].append(delivery)
    explained, unexplained = 0, {}
    for text, times in by_text.items():
        further = len(times) - 1 - carried.get(text, 0)
        if further <= 0:
            continue
        in_vain = sum(_is_in_vain(delivery, struck[delivery.worker]) for delivery in times)
        explained += min(further, in_vain)
        if further > in_vain:
            unexplained[text] = times
    return Repeats(explained, unexplained)


def _is_in_vain(delivery: Delivery, blows: Iterable[Blow]) -> bool:
    return any(blow.since - IN_HAND_SECONDS <= delivery.at <= blow.until for blow in blows)


def unseen(unanswered: Iterable[Unanswered], workers: Iterable[str]) -> list[Blow]:
    """Return the canaries that were not answered as blows, from the beginning of their batches."""
    return [
        Blow(worker, "canary", one.at - BATCH_SECONDS, one.at)
        for one in unanswered
        for worker in ([one.worker] if one.worker else workers)
    ]


def totals(carried: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up the texts that the writers have carried over."""
    total: Counter[str] = Counter()
    for one in carried:
        total.update(one)
    return total
