from __future__ import annotations

from pgembed_django.events import LogOnce


def test_the_same_reason_is_told_once_and_another_one_anew():
    told = LogOnce()

    assert [told.is_new("a", reason) for reason in ("no", "no", "never", "no")] == [
        True,
        False,
        True,
        True,
    ]
    assert told.is_new("b", "no")


def test_what_was_well_meanwhile_is_told_anew():
    told = LogOnce()
    told.is_new("a", "no")

    told.clear("a")
    told.clear("b")

    assert told.is_new("a", "no")
