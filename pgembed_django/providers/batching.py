"""Send texts in batches so that a bad one fails alone (I7) and an outage charges none (I8).

A failure does not say whose fault it was: the server may have had a bad moment. So a text is
charged only after it failed alone, at least twice, and health checks succeeded in between. Only
"too long" is believed at once.

The texts are sent in groups, one request each. Those that fail are sent again in smaller groups,
down to a single text:

=====================  ==================  ====================================================
the request failed by  several texts       one text
=====================  ==================  ====================================================
InputTooLong           halves, by length   is cut and sent again, or else charged
InputRefused           halves              is sent again twice, then charged
BatchTooLarge          halves              as InputTooLong
ProviderTimeout        halves              is sent again twice, then charged
ProviderError          halves              is sent again twice, then charged
ProviderMisconfigured  as ProviderError if a health check succeeded lately, or else an outage
ProviderUnavailable    an outage, with the texts as suspects if such an outage is ``suspected``
no vector              halves              is sent again twice, then charged
=====================  ==================  ====================================================

In the last line, the request was answered, but some of its vectors are zeros or not finite.

If a health check fails too, it is an outage, which ends the run: texts without an outcome are given
back. So does reaching a limit on the most expensive failures, ProviderTimeout and ProviderError.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pgembed_django.chunking import Truncation
from pgembed_django.core.adapting import halves
from pgembed_django.exceptions import (
    BatchTooLarge,
    InputRefused,
    InputTooLong,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.providers import answers
from pgembed_django.providers.answers import Embedded, Fault, Vectors

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

HOLD_SECONDS: Final = 120.0
"""How long to keep a smaller size before it is doubled."""

MAX_TIMEOUTS: Final = 4
"""After this many time-outs the rest of the texts are given back, because each takes long."""

TRIES: Final = 3
"""After how many failures alone a text is charged. A health check follows the first and last of
them. The others follow each other directly: if every second answer is bad, because one of two
replicas is broken, one of them is good."""

Suspected = type[ProviderUnavailable] | None
"""The kind of outage that a text may have caused, because a health check succeeded lately."""

Outcome = Embedded | ProviderError

Group = Sequence[int]
"""The indexes of the texts for one request."""


def fitting_one_request(provider: Provider, texts: Sequence[str]) -> int:
    """Return how many of the first texts one request may contain: at least one."""
    fitting = min(len(texts), provider.texts_per_request)
    room = provider.max_tokens_per_batch
    if room is None:  # counting tokens takes time
        return fitting
    for count, text in enumerate(texts[:fitting]):
        room -= provider.weigh(text)
        if room < 0 and count:
            return count
    return fitting


def check_health(provider: Provider) -> None:
    """Raise ``ProviderUnavailable`` unless the provider now embeds a text that any model can."""
    try:
        _, faults = provider.answer([provider.health_check_text])
    except ProviderLost as error:
        raise as_kind(ProviderUnavailable, error) from error
    except ProviderUnavailable:
        raise
    except InputRefused as error:
        raise ProviderMisconfigured(f"Even the health check is refused: {error}") from error
    except ProviderError as error:
        raise ProviderUnavailable(str(error)) from error
    if faults[0]:
        raise ProviderMisconfigured(f"{provider} answered {faults[0]} to the health check.")


def as_kind(kind: type[ProviderUnavailable], outage: ProviderUnavailable) -> ProviderUnavailable:
    """Return the same outage as an exception of another kind."""
    return kind(str(outage), retry_after_seconds=outage.retry_after_seconds)


def isolate_failures(
    provider: Provider,
    texts: Sequence[str],
    *,
    ask_first: bool = False,
    suspected: Suspected = None,
) -> list[Outcome]:
    """Return one outcome per text. See ``Provider.embed_each``."""
    return _Run(provider, texts, suspected).outcomes(ask_first=ask_first)


class _Run:
    """One call of ``isolate_failures``."""

    def __init__(self, provider: Provider, texts: Sequence[str], suspected: Suspected) -> None:
        self._provider = provider
        self._suspected = suspected
        self._limit = provider.max_input_tokens
        self._texts = [Truncation(text) for text in texts]
        self._outcomes: dict[int, Outcome] = {}
        self._suspects: set[int] = set()
        """Sent but not embedded since the last success: one may have brought the provider down."""
        self._is_healthy = False
        """Whether a health check has succeeded in this run."""
        self._failed_alone: Counter[int] = Counter()
        self._failures_left: dict[type[ProviderError], int] = {
            ProviderTimeout: MAX_TIMEOUTS,
            # Finding one culprit among n takes log2(n) failures, and a few more to be sure.
            ProviderError: 4 * math.ceil(math.log2(len(texts) + 1)) + 4,
        }

    def outcomes(self, *, ask_first: bool) -> list[Outcome]:
        """Return one outcome per text, or raise the outage if it prevented all of them."""
        if ask_first:
            self._check_health(again=True)
        group = self._worth_sending()
        outcomes_before = len(self._outcomes)
        try:
            self._send_all(group)
        except ProviderUnavailable as outage:
            if len(self._outcomes) == outcomes_before and not self._suspects:
                raise
            if len(self._suspects) == len(self._texts):
                raise as_kind(ProviderLost, outage) from outage
            for index in range(len(self._texts)):
                kind = ProviderLost if index in self._suspects else ProviderUnavailable
                self._outcomes.setdefault(index, as_kind(kind, outage))
        return [self._outcomes[index] for index in range(len(self._texts))]

    def _worth_sending(self) -> Group:
        """Refuse empty texts, cut those known not to fit, and return the others."""
        for index in range(len(self._texts)):
            if not self._texts[index].sent.strip():
                self._outcomes[index] = InputRefused("The text is empty: nothing to embed.")
            elif self._provider.tells_too_long:
                continue
            elif self._limit is not None and (refusal := self._cut_to(self._limit, index)):
                self._outcomes[index] = refusal
        return [index for index in range(len(self._texts)) if index not in self._outcomes]

    def _cut_to(self, limit: int, index: int) -> InputTooLong | None:
        """Cut a text with more than ``limit`` tokens, or return the error to refuse it with.

        Without a tokenizer, a text is only cut if it would be too long in any language. Others
        are sent, and the server refuses them.
        """
        provider, text = self._provider, self._texts[index]
        while True:
            counted = answers.counted(provider, provider.document_prefix + text.sent)
            most = limit * 12 if counted is None else len(text.sent) * limit // max(counted, 1)
            if most >= len(text.sent):
                return None
            if provider.too_long == "refuse":
                return InputTooLong(
                    f"The text has {counted or 'too many'} tokens, {provider} takes {limit}."
                )
            if not text.again(most):
                return None

    def _send_all(self, group: Group) -> None:
        """Send until every text has its outcome. An outage that ends the run is raised."""
        todo = deque([group] if group else [])
        while todo:
            group = todo.popleft()
            fitting = fitting_one_request(self._provider, [self._texts[i].sent for i in group])
            if fitting < len(group):
                todo.appendleft(group[fitting:])
            todo.extendleft(reversed(self._send(group[:fitting])))

    def _send(self, group: Group) -> list[Group]:
        """Embed a group. If it fails, return the groups to send instead."""
        try:
            vectors, faults = self._provider.answer([self._texts[index].sent for index in group])
        except InputTooLong as error:
            self._provider.context.refused(error)
            return self._too_long(group, error)
        except InputRefused as error:
            return self._failed(group, error)
        except BatchTooLarge as error:
            if len(group) == 1:
                return self._too_long(group, InputTooLong(str(error)))
            self._provider.size.failed(len(group))
            return halves(group)
        except ProviderTimeout as error:
            if len(group) > 1:
                # Before the health check, which may fail while the server still computes the
                # abandoned request: the next request must be smaller in any case.
                self._provider.size.failed(len(group))
            self._suspects.update(group)
            said = f"{error} Other texts are answered, so this one is too much for the server."
            return self._divided(group, error, charged=ProviderError(said))
        except ProviderMisconfigured as error:
            # For instance, a firewall answers 403 to a text that contains a script.
            if self._suspected is None or error.retry_after_seconds:
                raise
            said = f"{error} The health check is answered, so it is about this text."
            return self._divided(group, error, charged=ProviderError(said))
        except ProviderUnavailable as error:
            if isinstance(error, ProviderLost) or self._suspected is ProviderUnavailable:
                self._suspects.update(group)
            raise
        except ProviderError as error:
            # A broken answer or a 5xx: it may be temporary, or the fault of a text.
            self._suspects.update(group)
            return self._divided(group, error, charged=error)
        return self._answered(group, vectors, faults)

    def _answered(self, group: Group, vectors: Vectors, faults: Sequence[Fault]) -> list[Group]:
        """Note the vectors. Return the groups to send again, of texts without a vector."""
        silently: Group = []
        if self._provider.may_cut_silently:
            texts = [self._texts[index].sent for index in group]
            silently = [group[at] for at in self._provider.context.cut(texts, vectors)]
        self._suspects.clear()
        self._provider.size.succeeded()
        faulty = {}
        shorter: list[int] = []
        for index, vector, fault in zip(group, vectors, faults, strict=True):
            if index in silently:
                continue
            if isinstance(fault, InputTooLong):
                shorter += self._shortened(index, fault)
                continue
            if fault:
                faulty[index] = InputRefused(f"{self._provider} answered {fault}.")
                continue
            was_cut = self._texts[index].cuts > 0
            self._outcomes[index] = Embedded(vector, was_cut=was_cut)
            if was_cut:
                self._provider.learnt_characters = len(self._texts[index].sent)
        if silently:
            refusal = self._provider.context.refusal()
            shorter += [index for index in silently if self._too_long([index], refusal)]
        groups: list[Group] = [shorter] if shorter else []
        if not faulty:
            return groups
        self._suspects.update(faulty)
        if len(faulty) == 1 < len(group):
            return [*groups, list(faulty)]  # it shared a batch
        return groups + self._failed(list(faulty), next(iter(faulty.values())))

    def _shortened(self, index: int, error: InputTooLong) -> Group:
        """Cut a text that was too long, with the provider's own tokenizer. Empty: it is refused."""
        sent = self._texts[index].sent
        if self._limit is not None and (refusal := self._cut_to(self._limit, index)):
            self._outcomes[index] = refusal
        elif self._texts[index].sent != sent or self._too_long([index], error):
            return [index]
        return []

    def _too_long(self, group: Group, error: InputTooLong) -> list[Group]:
        if len(group) > 1:
            # Sort by length, so that texts that are too long end up in as few halves as possible.
            return halves(sorted(group, key=lambda index: len(self._texts[index].sent)))
        provider, text = self._provider, self._texts[group[0]]
        if provider.too_long == "cut" and text.again(0, provider.learnt_characters):
            return [group]
        self._check_health()
        self._outcomes[group[0]] = error
        return []

    def _divided(
        self, group: Group, error: ProviderError, *, charged: ProviderError
    ) -> list[Group]:
        """Return the groups to send instead. Each such failure is expensive, so few are allowed."""
        groups = self._failed(group, charged)
        kind = ProviderTimeout if isinstance(error, ProviderTimeout) else ProviderError
        self._failures_left[kind] -= 1
        if groups and self._failures_left[kind] <= 0:
            # End the run like an outage. The provider does answer, so no text is a suspect.
            self._suspects.clear()
            raise ProviderUnavailable(str(error), retry_after_seconds=0) from error
        return groups

    def _failed(self, group: Group, error: ProviderError) -> list[Group]:
        """Return the groups to send instead. Empty: it was one text, which is charged now."""
        if len(group) > 1:
            self._check_health()
            return halves(group)
        [index] = group
        self._failed_alone[index] += 1
        times = self._failed_alone[index]
        if times == 1 or times >= TRIES:
            self._check_health(again=True)
        if times < TRIES:
            return [group]
        self._outcomes[index] = error
        return []

    def _check_health(self, *, again: bool = False) -> None:
        """Raise ``ProviderUnavailable`` unless the provider passes a health check.

        ``again``: now. Otherwise it is enough that it did so earlier in this run.
        """
        if self._is_healthy and not again:
            return
        check_health(self._provider)
        self._is_healthy = True
        self._suspected = self._suspected or ProviderMisconfigured
        self._suspects.clear()
