"""Embed texts so that a bad one fails alone (I7) and an outage charges none (I8).

A failure does not say whose fault it was: the server may have had a bad moment. So a text is
charged only after it failed alone, at least twice, and plain words were embedded in between. Only
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
ProviderMisconfigured  as ProviderError if a plain word was embedded lately, or else an outage
ProviderUnavailable    an outage, with the texts in doubt if such an outage is ``suspected``
no vector              halves              is sent again twice, then charged
=====================  ==================  ====================================================

In the last line, the request was answered, but some of its vectors are zeros or not finite.

If a plain word fails too, it is an outage, which ends the run: texts without an outcome are given
back. So does reaching a limit on the most expensive failures, ProviderTimeout and ProviderError.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

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
from pgembed_django.providers import plainly
from pgembed_django.providers.answers import Embedded, Vectors
from pgembed_django.providers.cuts import Cuts
from pgembed_django.providers.pace import fitting_one_request

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

MAX_TIMEOUTS: Final = 4
"""After this many time-outs the rest of the texts are given back, because each takes long."""

TRIES: Final = 3
"""After how many failures alone a text is charged. A plain word is sent after the first and last of
them. The others follow each other directly: if every second answer is bad, because one of two
replicas is broken, one of them is good."""

Suspected = type[ProviderUnavailable] | None
"""The kind of outage that a text may have caused, because a plain word was embedded lately."""

Group = list[int]
"""The indexes of the texts for one request."""


class Sift:
    """One call of ``embed_each``."""

    def __init__(
        self, provider: Provider, texts: Sequence[str], *, suspected: Suspected = None
    ) -> None:
        self._provider = provider
        self._suspected = suspected
        self._texts = Cuts(provider, texts)
        self._outcomes: dict[int, Embedded | ProviderError] = {}
        self._cut_silently_before: set[int] = set()
        """Whether less of them is also too much is asked, unlike for what the server refuses."""
        self._in_doubt: set[int] = set()
        """Sent but not embedded since the last success: one may have brought the provider down."""
        self._asked_plainly = False
        self._failed_alone: Counter[int] = Counter()
        # Finding one culprit among n takes log2(n) failures, and a few more to be sure.
        self._unclear_left = 4 * math.ceil(math.log2(len(texts) + 1)) + 4
        self._timeouts_left = MAX_TIMEOUTS

    def run(self, *, ask_first: bool = False) -> list[Embedded | ProviderError]:
        """Return one outcome per text. See ``Provider.embed_each``."""
        if ask_first:
            self._ask_plainly(again=True)
        group = self._worth_sending()
        outcomes_before = len(self._outcomes)
        outage = self._send_all(group)
        if outage is not None:
            if len(self._outcomes) == outcomes_before and not self._in_doubt:
                raise outage
            if len(self._in_doubt) == len(self._texts):
                raise plainly.as_kind(ProviderLost, outage)
            self._give_back(outage)
        return [self._outcomes[index] for index in range(len(self._texts))]

    def _worth_sending(self) -> Group:
        """Refuse empty texts, cut those known not to fit, and return the others."""
        limit = self._provider.max_input_tokens
        for index in range(len(self._texts)):
            if not self._texts[index].strip():
                self._outcomes[index] = InputRefused("The text is empty: nothing to embed.")
            elif limit is not None and (refusal := self._texts.cut_to(limit, index)):
                self._outcomes[index] = refusal
        return [index for index in range(len(self._texts)) if index not in self._outcomes]

    def _send_all(self, group: Group) -> ProviderUnavailable | None:
        """Send until every text has its outcome, or return the outage that ended the run."""
        todo = deque([group] if group else [])
        try:
            while todo:
                group = todo.popleft()
                most = group[: self._provider.texts_per_request]
                fitting = fitting_one_request(self._provider, [self._texts[i] for i in most])
                if fitting < len(group):
                    todo.appendleft(group[fitting:])
                todo.extendleft(reversed(self._send(group[:fitting])))
        except ProviderUnavailable as outage:
            return outage
        return None

    def _give_back(self, outage: ProviderUnavailable) -> None:
        """Give back the texts without an outcome. Those in doubt get ``ProviderLost``."""
        for index in range(len(self._texts)):
            kind = ProviderLost if index in self._in_doubt else ProviderUnavailable
            self._outcomes.setdefault(index, plainly.as_kind(kind, outage))

    def _send(self, group: Group) -> list[Group]:
        """Embed a group. If it fails, return the groups to send instead."""
        try:
            vectors, faults = self._provider.answer([self._texts[index] for index in group])
        except InputTooLong as error:
            self._provider.context.refused(error)
            return self._too_long(group, error)
        except InputRefused as error:
            return self._failed(group, error)
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
        return self._answered(group, vectors, faults)

    def _answered(
        self, group: Group, vectors: Vectors, faults: Sequence[str | None]
    ) -> list[Group]:
        """Note the vectors. Return the groups to send again, of texts without a vector."""
        silently = self._cut_silently(group, vectors)
        self._in_doubt.clear()
        self._provider.token_pace.succeeded()
        self._provider.text_pace.succeeded()
        faulty = {}
        for index, vector, fault in zip(group, vectors, faults, strict=True):
            if index in silently:
                continue
            if fault:
                faulty[index] = InputRefused(f"{self._provider} answered {fault}.")
                continue
            was_cut = self._texts.was_cut(index)
            self._outcomes[index] = Embedded(vector, was_cut=was_cut)
            if was_cut:
                self._provider.learnt_characters = len(self._texts[index])
        shorter: Group = []
        for index in silently:
            for again in self._too_long([index], self._provider.context.refusal()):
                shorter += again
        groups = [shorter] if shorter else []
        if not faulty:
            return groups
        self._in_doubt.update(faulty)
        if len(faulty) == 1 < len(group):
            return [*groups, list(faulty)]  # it had company
        return groups + self._failed(list(faulty), next(iter(faulty.values())))

    def _cut_silently(self, group: Group, vectors: Vectors) -> Group:
        """Return the texts that the server has cut without a word."""
        if not self._provider.may_cut_silently:
            return []
        # Those that were cut because the server had refused them are marked in any case.
        asked = [
            at
            for at, index in enumerate(group)
            if index in self._cut_silently_before or not self._texts.was_cut(index)
        ]
        texts = [self._texts[group[at]] for at in asked]
        cut = [group[asked[at]] for at in self._provider.context.cut(texts, vectors[asked])]
        self._cut_silently_before.update(cut)
        return cut

    def _too_long(self, group: Group, error: InputTooLong) -> list[Group]:
        if len(group) > 1:
            # Sort by length, so that texts that are too long end up in as few halves as possible.
            return _halves(sorted(group, key=lambda index: len(self._texts[index])))
        if self._texts.cut_again(group[0], error):
            return [group]
        self._ask_plainly(again=False)
        self._outcomes[group[0]] = error
        return []

    def _too_large(self, group: Group, error: BatchTooLarge) -> list[Group]:
        if len(group) > 1:
            self._provider.text_pace.failed(len(group))
            return _halves(group)
        return self._too_long(group, InputTooLong(str(error)))

    def _too_slow(self, group: Group, error: ProviderTimeout) -> list[Group]:
        weight = sum(self._provider.weigh(self._texts[index]) for index in group)
        # Lower the limit before sending a plain word, which may fail while the server still
        # computes the abandoned request: the next request must be smaller in any case. Add an
        # eighth, because the halves of a group are not equal.
        self._provider.token_pace.failed(weight + weight // 8)
        self._in_doubt.update(group)
        said = f"{error} Other texts are answered, so this one is too much for the server."
        groups = self._failed(group, ProviderError(said))
        self._timeouts_left -= 1
        if groups and self._timeouts_left <= 0:
            self._give_up(error)
        return groups

    def _unclear(self, group: Group, error: ProviderError) -> list[Group]:
        """Bisect after a broken answer or a 5xx: it may be temporary, or the fault of a text."""
        self._in_doubt.update(group)
        return self._divided(group, error)

    def _denied(self, group: Group, error: ProviderMisconfigured) -> list[Group]:
        """Bisect after an apparently wrong key or model, if a plain word is embedded.

        For instance, a firewall answers 403 to a text that contains a script.
        """
        if self._suspected is None or error.retry_after_seconds:
            raise error
        said = f"{error} A plain word is answered, so it is about this text."
        return self._divided(group, ProviderError(said))

    def _divided(self, group: Group, error: ProviderError) -> list[Group]:
        groups = self._failed(group, error)
        self._unclear_left -= 1
        if groups and self._unclear_left <= 0:
            self._give_up(error)
        return groups

    def _failed(self, group: Group, error: ProviderError) -> list[Group]:
        """Return the groups to send instead. Empty: it was one text, which is charged now."""
        if len(group) > 1:
            self._ask_plainly(again=False)
            return _halves(group)
        [index] = group
        self._failed_alone[index] += 1
        times = self._failed_alone[index]
        if times == 1 or times >= TRIES:
            self._ask_plainly(again=True)
        if times < TRIES:
            return [group]
        self._outcomes[index] = error
        return []

    def _give_up(self, error: ProviderError) -> NoReturn:
        """End the run like an outage. The provider does answer, so no text is in doubt."""
        self._in_doubt.clear()
        raise ProviderUnavailable(str(error), retry_after_seconds=0) from error

    def _ask_plainly(self, *, again: bool) -> None:
        """Raise ``ProviderUnavailable`` unless the provider embeds a plain word.

        ``again``: ask now. Otherwise it is enough that it did so earlier in this run.
        """
        if self._asked_plainly and not again:
            return
        plainly.ask(self._provider)
        self._asked_plainly = True
        self._suspected = self._suspected or ProviderMisconfigured
        self._in_doubt.clear()


def _halves(group: Group) -> list[Group]:
    return [group[: len(group) // 2], group[len(group) // 2 :]]
