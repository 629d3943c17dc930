"""Keep to the providers' quotas: reserve before a batch is sent, settle when it is back."""

from __future__ import annotations

import random
from collections import Counter

from pgembed_django import quotas
from pgembed_django.embedding.pool import Pool
from pgembed_django.embedding.units import Wanted

SPREAD_SECONDS = 0.5
"""How far apart workers that wait for the same quota wake up."""


class Rationing:
    """Called by the loop's own thread only: the quotas are in the database."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        self._paid: dict[Pool, Counter[str]] = {}

    def tokens_at_once(self, pool: Pool) -> int | None:
        """Return how many tokens a batch should hold at most."""
        limits = quotas.limits(pool.provider.alias)
        return limits.tokens_at_once if limits else None

    def allows(self, pool: Pool, wanted: list[Wanted]) -> bool:
        """Reserve what a batch will use. If the quota is used up, let the pool wait for it."""
        alias = pool.provider.alias
        limits = quotas.limits(alias)
        if limits is None:
            return True
        tokens = sum(pool.provider.weigh_document(one.chunk.text) for one in wanted)
        wait = quotas.take(alias, limits, tokens=tokens, using=self._using)
        if wait:
            self._await(pool, wait)
            return False
        pool.provider.is_metered = True
        paid = self._paid.setdefault(pool, Counter(pool.provider.sent))
        paid.update(requests=1, tokens=tokens)
        return True

    def look(self, pools: list[Pool]) -> None:
        """Let pools with a used-up quota wait, so that nothing is claimed for them."""
        for pool in pools:
            if not pool.paused_seconds and quotas.limits(pool.provider.alias):
                self._await(pool, quotas.wait_seconds(pool.provider.alias, using=self._using))

    def pay_up(self, pool: Pool) -> None:
        """Charge what was sent beyond the reservation: halves, retries and probes of a batch."""
        alias = pool.provider.alias
        limits = quotas.limits(alias)
        paid = self._paid.get(pool)
        if limits is None or paid is None:
            return
        owed = Counter(pool.provider.sent) - paid
        if owed:
            paid.update(owed)
            quotas.owe(
                alias, limits, requests=owed["requests"], tokens=owed["tokens"], using=self._using
            )

    def _await(self, pool: Pool, seconds: float) -> None:
        if seconds:
            pool.await_quota(seconds + random.uniform(0, SPREAD_SECONDS * (seconds > 1)))
