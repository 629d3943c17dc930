"""When a search does not ask again, and what of that is logged."""

from __future__ import annotations

from pgembed_django.exceptions import ProviderError, ProviderTimeout, ProviderUnavailable
from pgembed_django.retrieval.outages import Outages


def test_who_is_down_rests_and_is_news_once():
    outages = Outages()

    assert outages.is_news("a", ProviderUnavailable("down"))

    assert outages.is_resting("a")
    assert not outages.is_resting("b")
    assert not outages.is_news("a", ProviderTimeout("late"))  # of a search that was waiting, too


def test_who_gives_a_wrong_answer_does_not_rest_and_is_news_each_time():
    outages = Outages()

    for _ in range(2):
        assert outages.is_news("a", ProviderError("wrong"))
    assert not outages.is_resting("a")


def test_who_has_answered_is_news_again():
    outages = Outages()
    outages.is_news("a", ProviderUnavailable("down"))

    outages.ended("a")

    assert not outages.is_resting("a")
    assert outages.is_news("a", ProviderUnavailable("down"))
