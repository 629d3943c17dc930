"""Texts embedded more often than the faults explain.

A text may be embedded once, and once more for each time that it was carried over (its
vectors went, and it stayed: see ``actions``). Every further time needs an earlier one that
was in vain: a delivery to a worker that was killed, stopped, frozen or lost its database's
server, in the time from ``IN_HAND_SECONDS`` before the blow, when the vectors may not have
been stored yet, to its end. Blows to other workers explain nothing, nor does a terminated
backend, a lost notification or trouble with the embedding server: what was delivered before
is kept. Deliveries that broke off, or came after the worker's time-out, are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.soak.processes import Blow
from benchmarks.soak.server import Delivery

IN_HAND_SECONDS = 3.0
"""How long a delivered vector may wait to be stored: an open writer has locked its job, as
long as one pauses at the most, or all processors are busy."""

PLAIN = "hello"
"""What a provider asks to tell the server's fault from a text's."""


class Repeats(NamedTuple):
    """How many further times were explained by blows, and the texts with one that was not."""

    explained: int
    unexplained: Mapping[str, list[Delivery]]


def count(
    deliveries: Sequence[Delivery],
    *,
    carried: Mapping[str, int],
    blows: Iterable[Blow],
    ignored: str,
) -> Repeats:
    """Compare what was embedded with what had to be. ``ignored`` marks texts that do not count."""
    struck = defaultdict(list)
    for blow in blows:
        struck[blow.worker].append(blow)
    by_text = defaultdict(list)
    for delivery in deliveries:
        if delivery.text != PLAIN and ignored not in delivery.text:
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


def totals(carried: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up what each writer has carried over."""
    total: Counter[str] = Counter()
    for one in carried:
        total.update(one)
    return total
