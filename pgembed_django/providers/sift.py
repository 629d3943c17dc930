"""Embed texts so that a bad one fails alone (I7) and an outage charges none (I8).

A failed request does not tell whose fault it was. So the provider is asked to embed a plain
word. If that fails too, it is the server's fault, otherwise the batch is bisected.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

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
from pgembed_django.providers import cutting, plainly, raising
from pgembed_django.providers.vectors import Embedded

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

MAX_TIMEOUTS: Final = 4
"""After so many time-outs the rest of the texts are given back, as each one takes long."""

Suspected = type[ProviderUnavailable] | None
"""The kind of outage that may be about a text, because a plain word was answered lately."""


class Sift:
    """One call of ``embed_each``. Groups are lists of indexes of texts."""

    def __init__(
        self, provider: Provider, texts: Sequence[str], *, suspected: Suspected = None
    ) -> None:
        self._provider = provider
        self._suspected = suspected
        self._whole = [cutting.well_formed(text) for text in texts]
        self._texts = list(self._whole)
        self._cuts: Counter[int] = Counter()
        self._outcomes: dict[int, Embedded | ProviderError] = {}
        self._retried: set[int] = set()
        self._asked_plainly = False
        self._in_doubt: set[int] = set()
        # To find one culprit among n takes log2(n) failures, and two more to be sure.
        self._unclear_left = 4 * math.ceil(math.log2(len(texts) + 1)) + 4
        self._timeouts_left = MAX_TIMEOUTS

    def run(self, *, ask_first: bool = False) -> list[Embedded | ProviderError]:
        """Return one outcome per text. See ``Provider.embed_each``."""
        if ask_first:
            self._ask_plainly(again=True)
        todo: deque[list[int]] = deque([self._worth_sending()])
        outage: ProviderUnavailable | None = None
        outcomes_before = len(self._outcomes)
        while todo and outage is None:
            group = todo.popleft()
            if not group:
                continue
            try:
                fitting = self._fitting(group)
                if fitting < len(group):
                    todo.appendleft(group[fitting:])
                todo.extendleft(reversed(self._send(group[:fitting])))
            except ProviderUnavailable as error:
                outage = error
        if outage is not None:
            if len(self._outcomes) == outcomes_before and not self._in_doubt:
                raise outage
            self._leave(outage)
            if len(self._in_doubt) == len(self._texts):
                raise plainly.as_kind(ProviderLost, outage)
        return [self._outcomes[index] for index in range(len(self._texts))]

    def _leave(self, outage: ProviderUnavailable) -> None:
        """Give back texts without an outcome, as lost if the provider went down with them."""
        for index in range(len(self._texts)):
            kind = ProviderLost if index in self._in_doubt else ProviderUnavailable
            self._outcomes.setdefault(index, plainly.as_kind(kind, outage))

    def _worth_sending(self) -> list[int]:
        """Refuse empty texts, cut those known not to fit, and return the indexes to send."""
        limit = self._provider.max_input_tokens
        for index, text in enumerate(self._texts):
            if not text.strip():
                self._outcomes[index] = InputRefused("The text is empty: nothing to embed.")
            elif limit is not None:
                self._cut_to(limit, index)
        return [index for index in range(len(self._texts)) if index not in self._outcomes]

    def _cut_to(self, limit: int, index: int) -> None:
        """Cut a text that is known to be longer than the model's context.

        Without a tokenizer, this cuts only a text that is too long in any language. The
        server has to refuse others.
        """
        provider, text = self._provider, self._texts[index]
        prefix = provider.document_prefix
        counted = raising.counted(provider, prefix + text)
        if (limit * 12 >= len(text)) if counted is None else (counted <= limit):
            return
        if provider.too_long != "cut":
            self._outcomes[index] = InputTooLong(
                f"The text has {counted or 'too many'} tokens, {provider} takes {limit}."
            )
            return
        self._texts[index] = cutting.to_tokens(
            text, limit=limit, count=lambda start: raising.counted(provider, prefix + start)
        )
        self._cuts[index] = 1

    def _fitting(self, group: list[int]) -> int:
        """Return how many of the group one request may hold: at least one."""
        provider = self._provider
        room = min(provider.token_pace.limit or math.inf, provider.max_tokens_per_batch or math.inf)
        if room == math.inf:  # to count the tokens of each text takes time
            return min(len(group), provider.texts_per_request)
        for count, index in enumerate(group[: provider.texts_per_request]):
            room -= provider.weigh(self._texts[index])
            if room < 0 and count:
                return count
        return min(len(group), provider.texts_per_request)

    def _send(self, group: list[int]) -> list[list[int]]:
        """Embed a group. If it fails, return the groups to send instead."""
        try:
            vectors, faults = self._provider.answer([self._texts[index] for index in group])
        except InputTooLong as error:
            return self._too_long(group, error)
        except InputRefused as error:
            return self._refused(group, error)
        except BatchTooLarge as error:
            return self._too_large(group, error)
        except ProviderTimeout as error:
            return self._too_slow(group, error)
        except ProviderMisconfigured as error:
            return self._denied(group, error)
        except ProviderUnavailable as error:
            if isinstance(error, ProviderLost) or self._suspected is ProviderUnavailable:
                self._in_doubt.update(group)
            raise
        except ProviderError as error:
            return self._unclear(group, error)
        self._in_doubt.clear()
        self._provider.token_pace.succeeded()
        self._provider.text_pace.succeeded()
        if all(faults):
            self._ask_plainly(again=False)
        for index, vector, fault in zip(group, vectors, faults, strict=True):
            if fault:
                self._outcomes[index] = InputRefused(f"{self._provider} answered {fault}.")
                continue
            was_cut = index in self._cuts
            self._outcomes[index] = Embedded(vector, was_cut=was_cut)
            if was_cut:
                self._provider.learnt_characters = len(self._texts[index])
        return []

    def _too_long(self, group: list[int], error: InputTooLong) -> list[list[int]]:
        if len(group) > 1:
            # Sorted by length, so that too long texts end up in as few halves as possible.
            return _halves(sorted(group, key=lambda index: len(self._texts[index])))
        index = group[0]
        if self._provider.too_long == "cut" and self._cuts[index] < cutting.MAX_CUTS:
            characters = cutting.room(
                self._whole[index],
                cuts=self._cuts[index],
                message=str(error),
                learnt=self._provider.learnt_characters,
            )
            # Also where the text was cut before it was sent, it must get shorter.
            characters = min(characters, max(1, len(self._texts[index]) - 1))
            self._texts[index] = cutting.shorten(self._whole[index], characters=characters)
            self._cuts[index] += 1
            return [group]
        return self._refused(group, error)

    def _refused(self, group: list[int], error: InputRefused) -> list[list[int]]:
        self._ask_plainly(again=False)
        if len(group) > 1:
            return _halves(group)
        self._outcomes[group[0]] = error
        return []

    def _too_large(self, group: list[int], error: BatchTooLarge) -> list[list[int]]:
        if len(group) > 1:
            self._provider.text_pace.failed(len(group))
            return _halves(group)
        return self._too_long(group, InputTooLong(str(error)))

    def _too_slow(self, group: list[int], error: ProviderTimeout) -> list[list[int]]:
        weight = sum(self._provider.weigh(self._texts[index]) for index in group)
        # Before the plain word, which may fail while the server still computes the request that
        # was given up: the next one must be smaller in any case. An eighth more, because the
        # halves of a group are not equal.
        self._provider.token_pace.failed(weight + weight // 8)
        self._in_doubt.update(group)
        self._ask_plainly(again=len(group) == 1)
        self._timeouts_left -= 1
        if len(group) == 1:
            self._outcomes[group[0]] = ProviderError(
                f"{error} Other texts are answered, so this one is too much for the server."
            )
            return []
        if self._timeouts_left == 0:
            self._in_doubt.clear()
            raise ProviderUnavailable(str(error), retry_after_seconds=0) from error
        return _halves(group)

    def _unclear(self, group: list[int], error: ProviderError) -> list[list[int]]:
        """Bisect after a broken answer or a 5xx: it may be temporary, or the fault of a text."""
        self._in_doubt.update(group)
        self._ask_plainly(again=len(group) == 1)
        return self._divided(group, error)

    def _denied(self, group: list[int], error: ProviderMisconfigured) -> list[list[int]]:
        """Bisect after what looks like a wrong key or model, if a plain word is answered.

        For instance, a firewall answers 403 to a text that contains a script.
        """
        if self._suspected is None or error.retry_after_seconds:
            raise error
        self._ask_plainly(again=len(group) == 1)
        said = f"{error} A plain word is answered, so it is about this text."
        return self._divided(group, ProviderError(said))

    def _divided(self, group: list[int], error: ProviderError) -> list[list[int]]:
        self._unclear_left -= 1
        if self._unclear_left <= 0:
            self._in_doubt.clear()
            raise ProviderUnavailable(str(error), retry_after_seconds=0) from error
        if len(group) > 1:
            return _halves(group)
        if group[0] not in self._retried:
            # A text is only charged when it has failed twice while plain words were answered.
            self._retried.add(group[0])
            return [group]
        self._outcomes[group[0]] = error
        return []

    def _ask_plainly(self, *, again: bool) -> None:
        """Raise ``ProviderUnavailable`` unless the server embeds a plain word just now."""
        if self._asked_plainly and not again:
            return
        plainly.ask(self._provider)
        self._asked_plainly = True
        self._suspected = self._suspected or ProviderMisconfigured
        self._in_doubt.clear()


def _halves(group: list[int]) -> list[list[int]]:
    return [group[: len(group) // 2], group[len(group) // 2 :]]
