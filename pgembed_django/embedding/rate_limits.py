"""REQUESTS_PER_MINUTE and TOKENS_PER_MINUTE, shared by all workers. Uses the database's clock.

This is a token bucket: one row per provider has the time at which it may be asked again. Each
batch moves that time forward by its cost, and the next batch of any worker waits for it. Rows are
locked for one statement only.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgembed_django import conf
from pgembed_django.core import database

if TYPE_CHECKING:
    from pgembed_django.embedding.pool import Pool
    from pgembed_django.embedding.units import Wanted

SAVED_SECONDS = 1.0
"""How many seconds of unused quota may be saved up and then used at once."""

MINUTE_SECONDS = 60 + SAVED_SECONDS
"""How long a minute's quota must last, so that no minute exceeds it even with saved quota."""

SHORTEST_WAIT_SECONDS = 0.001

SPREAD_SECONDS = 0.5
"""How far apart workers that wait for the same quota wake up."""

LONGEST_SECONDS = 600.0
"""The longest wait that one batch may cause, in case a quota was set far too low."""

LARGEST_SHARE = 10
"""One batch has at most a tenth of a minute's tokens, or a single text."""

CHARGE = """
    INSERT INTO pgembed_quota AS quota (provider, requests_free_at, tokens_free_at)
    VALUES (
        %(provider)s,
        statement_timestamp() + (%(requests)s - %(saved)s) * interval '1 second',
        statement_timestamp() + (%(tokens)s - %(saved)s) * interval '1 second'
    )
    ON CONFLICT (provider) DO UPDATE SET
        requests_free_at = %(requests)s * interval '1 second' + GREATEST(
            CASE
                WHEN quota.requests_free_at
                    < statement_timestamp() + %(longest)s * interval '1 second'
                THEN quota.requests_free_at
            END,
            statement_timestamp() - %(saved)s * interval '1 second'
        ),
        tokens_free_at = %(tokens)s * interval '1 second' + GREATEST(
            CASE
                WHEN quota.tokens_free_at
                    < statement_timestamp() + %(longest)s * interval '1 second'
                THEN quota.tokens_free_at
            END,
            statement_timestamp() - %(saved)s * interval '1 second'
        )
    WHERE %(is_owed)s
       OR GREATEST(quota.requests_free_at, quota.tokens_free_at) <= statement_timestamp()
       -- No batch can have caused that: the clock was set back.
       OR GREATEST(quota.requests_free_at, quota.tokens_free_at)
           >= statement_timestamp() + %(longest)s * interval '1 second'
    RETURNING provider
"""

WAIT = """
    SELECT extract(
        epoch FROM GREATEST(requests_free_at, tokens_free_at) - statement_timestamp()
    )::float8
    FROM pgembed_quota
    WHERE provider = %(provider)s
"""


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """How much may be sent to one provider in a minute. None: no limit."""

    requests: int | None
    tokens: int | None

    @property
    def tokens_at_once(self) -> int | None:
        """How many tokens one batch should have at most."""
        if self.tokens is None:
            return None
        # If few requests are allowed, they must be large.
        return max(1, self.tokens // min(LARGEST_SHARE, (self.requests or LARGEST_SHARE) + 1))

    def request_seconds(self, requests: int) -> float:
        """Return how many seconds of quota this many requests use."""
        return requests * MINUTE_SECONDS / self.requests if self.requests else 0.0

    def token_seconds(self, tokens: int) -> float:
        """Return how many seconds of quota this many tokens use."""
        if self.tokens is None or self.tokens_at_once is None:
            return 0.0
        # Leave room for one batch: the last one in a minute is only charged in the next minute.
        return tokens * MINUTE_SECONDS / (self.tokens - self.tokens_at_once or 1)


def limits_of(provider: str) -> QuotaLimits | None:
    """Return the limits of the provider with this alias, or None if it has none."""
    config = conf.current().declared.get(provider, {})
    requests, tokens = config.get("REQUESTS_PER_MINUTE"), config.get("TOKENS_PER_MINUTE")
    return QuotaLimits(requests, tokens) if requests or tokens else None


def take(provider: str, limits: QuotaLimits, *, tokens: int, using: str) -> float:
    """Reserve one request of this many tokens. Return zero, or the seconds until the next try."""
    if charge(provider, limits, tokens=tokens, using=using):
        return 0.0
    # The quota may have become free between the two statements.
    return max(SHORTEST_WAIT_SECONDS, wait_seconds(provider, using=using))


def wait_seconds(provider: str, *, using: str) -> float:
    """Return the seconds until a request can be reserved. Zero: at once."""
    found = database.rows(using, WAIT, provider=provider)
    seconds = found[0][0] if found else 0.0
    # No batches can have caused more: the clock was set back, or the quota was raised.
    return max(0.0, seconds) if seconds < 2 * LONGEST_SECONDS else 0.0


def charge(
    provider: str,
    limits: QuotaLimits,
    *,
    requests: int = 1,
    tokens: int,
    is_owed: bool = False,
    using: str,
) -> bool:
    """Charge a provider's quota if it is free, and return whether it was.

    ``is_owed``: in any case, as it was used already. The next batch waits that much longer.
    """
    charged = database.rows(
        using,
        CHARGE,
        provider=provider,
        requests=min(limits.request_seconds(requests), LONGEST_SECONDS),
        tokens=min(limits.token_seconds(tokens), LONGEST_SECONDS),
        saved=SAVED_SECONDS,
        longest=2 * LONGEST_SECONDS,
        is_owed=is_owed,
    )
    return bool(charged)


class RateLimiter:
    """Called by the loop's own thread only: the quotas are in the database."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        self._paid: dict[Pool, Counter[str]] = {}

    def allows(self, pool: Pool, limits: QuotaLimits, wanted: list[Wanted]) -> bool:
        """Reserve what a batch will use. If the quota is used up, let the pool wait for it."""
        tokens = sum(pool.provider.weigh_document(one.chunk.text) for one in wanted)
        wait = take(pool.provider.alias, limits, tokens=tokens, using=self._using)
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
            if not pool.paused_seconds:
                self._await(pool, wait_seconds(pool.provider.alias, using=self._using))

    def pay_up(self, pool: Pool, limits: QuotaLimits) -> None:
        """Charge what was sent beyond the reservation: halves, retries and probes of a batch."""
        paid, alias = self._paid.get(pool), pool.provider.alias
        if paid is None:
            return
        owed = Counter(pool.provider.sent) - paid
        if owed:
            paid.update(owed)
            requests, tokens = owed["requests"], owed["tokens"]
            charge(alias, limits, requests=requests, tokens=tokens, is_owed=True, using=self._using)

    def _await(self, pool: Pool, seconds: float) -> None:
        if seconds:
            pool.await_quota(seconds + random.uniform(0, SPREAD_SECONDS * (seconds > 1)))
