"""REQUESTS_PER_MINUTE and TOKENS_PER_MINUTE, shared by all workers. Times are the database's.

A row for each provider says from when on it may be asked again, like a bucket that fills
by itself. Who takes pays afterwards: a batch puts that time off by what it cost, and the
next one, of whichever worker, waits. Rows are locked for one statement only.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgembed_django import conf, database

SAVED_SECONDS = 1.0
"""How much of what was not used is saved up, and may be used at once."""

MINUTE_SECONDS = 60 + SAVED_SECONDS
"""What a minute's quota has to last for, so that no minute ever sees more than it."""

SHORTEST_WAIT_SECONDS = 0.001

LONGEST_SECONDS = 600.0
"""The most that one batch is paid for with: a quota that was set too small is mended by then."""

LARGEST_SHARE = 10
"""One batch holds at most a tenth of a minute's tokens, or one text."""

TAKE = """
    INSERT INTO pgembed_quota AS quota (provider, requests_free_at, tokens_free_at)
    VALUES (
        %(provider)s,
        statement_timestamp() + (%(requests)s - %(saved)s) * interval '1 second',
        statement_timestamp() + (%(tokens)s - %(saved)s) * interval '1 second'
    )
    ON CONFLICT (provider) DO UPDATE SET
        requests_free_at = %(requests)s * interval '1 second' + GREATEST(
            quota.requests_free_at,
            statement_timestamp() - %(saved)s * interval '1 second'
        ),
        tokens_free_at = %(tokens)s * interval '1 second' + GREATEST(
            quota.tokens_free_at,
            statement_timestamp() - %(saved)s * interval '1 second'
        )
    WHERE %(is_owed)s
       OR GREATEST(quota.requests_free_at, quota.tokens_free_at) <= statement_timestamp()
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
        """How many tokens one batch should hold at most."""
        if self.tokens is None:
            return None
        # Where few requests are allowed, they have to be large.
        return max(1, self.tokens // min(LARGEST_SHARE, (self.requests or LARGEST_SHARE) + 1))

    def request_seconds(self, requests: int) -> float:
        """Return how many seconds of quota so many requests use up."""
        return requests * MINUTE_SECONDS / self.requests if self.requests else 0.0

    def token_seconds(self, tokens: int) -> float:
        """Return how many seconds of quota so many tokens use up."""
        if self.tokens is None or self.tokens_at_once is None:
            return 0.0
        # The last batch in a minute is paid for in the next one: room is left for it.
        return tokens * MINUTE_SECONDS / (self.tokens - self.tokens_at_once or 1)


def limits(provider: str) -> QuotaLimits | None:
    """Return the limits of the provider of that name, or None where it has none."""
    config = conf.current().providers.get(provider, {})
    requests, tokens = config.get("REQUESTS_PER_MINUTE"), config.get("TOKENS_PER_MINUTE")
    return QuotaLimits(requests, tokens) if requests or tokens else None


def take(provider: str, limits: QuotaLimits, *, tokens: int, using: str) -> float:
    """Reserve one request of so many tokens. Returns zero, or the seconds until the next try."""
    if _pay(provider, limits, requests=1, tokens=tokens, is_owed=False, using=using):
        return 0.0
    # It may have become free between the two looks.
    return max(SHORTEST_WAIT_SECONDS, wait_seconds(provider, using=using))


def owe(provider: str, limits: QuotaLimits, *, requests: int, tokens: int, using: str) -> None:
    """Charge what was used beyond what was reserved: the next batch waits longer for it."""
    _pay(provider, limits, requests=requests, tokens=tokens, is_owed=True, using=using)


def wait_seconds(provider: str, *, using: str) -> float:
    """Return the seconds until a request may be reserved. Zero: at once."""
    found = database.rows(using, WAIT, provider=provider)
    return max(0.0, found[0][0]) if found else 0.0


def _pay(
    provider: str, limits: QuotaLimits, *, requests: int, tokens: int, is_owed: bool, using: str
) -> bool:
    paid = database.rows(
        using,
        TAKE,
        provider=provider,
        requests=min(limits.request_seconds(requests), LONGEST_SECONDS),
        tokens=min(limits.token_seconds(tokens), LONGEST_SECONDS),
        saved=SAVED_SECONDS,
        is_owed=is_owed,
    )
    return bool(paid)
