"""The texts of one call, as sent: well-formed, and cut if they do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgembed_django.exceptions import InputTooLong
from pgembed_django.providers import answers, cutting

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider


class Cuts:
    """Texts by index, cut on demand if the provider has ``too_long="cut"``."""

    def __init__(self, provider: Provider, texts: Sequence[str]) -> None:
        self._provider = provider
        self._whole = [cutting.well_formed(text) for text in texts]
        self._sent = list(self._whole)
        self._times: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._sent)

    def __getitem__(self, index: int) -> str:
        return self._sent[index]

    def was_cut(self, index: int) -> bool:
        """Return whether less than the whole text is sent."""
        return index in self._times

    def cut_to(self, limit: int, index: int) -> InputTooLong | None:
        """Cut a text with more than ``limit`` tokens, or return the error to refuse it with.

        Without a tokenizer, a text is only cut if it would be too long in any language. Others
        are sent, and the server refuses them.
        """
        provider, text = self._provider, self._sent[index]
        prefix = provider.document_prefix
        counted = answers.counted(provider, prefix + text)
        if (limit * 12 >= len(text)) if counted is None else (counted <= limit):
            return None
        if provider.too_long != "cut":
            return InputTooLong(
                f"The text has {counted or 'too many'} tokens, {provider} takes {limit}."
            )
        self._sent[index] = cutting.to_tokens(
            text, limit=limit, count=lambda start: answers.counted(provider, prefix + start)
        )
        self._times[index] = 1
        return None

    def cut_again(self, index: int, refusal: InputTooLong) -> bool:
        """Cut a refused text shorter. Return whether to send it again."""
        provider, whole, times = self._provider, self._whole[index], self._times[index]
        if provider.too_long != "cut" or times >= cutting.MAX_CUTS:
            return False
        characters = cutting.room(
            whole,
            cuts=times,
            message=str(refusal),
            learnt=provider.learnt_characters,
            sent=self._sent[index],
            prefix=provider.document_prefix,
        )
        self._sent[index] = cutting.shorten(whole, characters=characters)
        self._times[index] += 1
        return True
