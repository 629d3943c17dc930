from __future__ import annotations

import dataclasses
import io
import re

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Rollup, Space, Worker
from pgembed_django.queue import rollups
from pgembed_django.spaces import reconcile
from tests.app.models import ArticleEmbedding
from tests.db.test_status import make_failures

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "app.ArticleEmbedding"
BACKEND = "pgembed_django.providers.deterministic.DeterministicProvider"
ANOTHER = {"default": {"BACKEND": BACKEND, "MODEL": "another", "DIMENSIONS": 32}}


def embed_spaces(*arguments: str) -> str:
    out = io.StringIO()
    call_command("embed_spaces", *arguments, "--specs", KEY, stdout=out)
    return out.getvalue()


@pytest.fixture
def two_spaces(make_article, run_jobs):
    make_article()
    run_jobs()
    with override_settings(PGEMBED_PROVIDERS=ANOTHER):
        spaces.ensure(specs.get(KEY), using="default")
        yield list(Space.objects.filter(spec=KEY).order_by("pk"))


def test_the_list_shows_state_and_coverage(two_spaces):
    told = embed_spaces()

    assert "active    bag-of-words, 64 dimensions, 1 of 1 rows (100.0%)" in told
    assert "building  another, 32 dimensions, 0 of 1 rows (0.0%)" in told


def test_spaces_that_differ_in_their_prefix_alone_are_told_apart(two_spaces):
    Space.objects.filter(model="another").update(document_prefix="passage: ")

    assert "another, 32 dimensions, prefixed 'passage: ', 0 of 1 rows" in embed_spaces()


def test_spaces_that_differ_in_truncation_alone_are_told_apart(two_spaces):
    Space.objects.filter(model="another").update(
        options={"truncate_dimensions": True, "batch_size": 7}
    )

    assert "another, 32 dimensions, truncate_dimensions True, 0 of 1 rows" in embed_spaces()


def test_a_space_that_only_lacks_rows_which_have_failed_is_at_a_standstill(two_spaces):
    tally = rollups.Tally()
    tally.completed(KEY, waited=None)
    tally.flush(using="default")
    Worker.objects.create(host="here", pid=7, version="1", specs=[KEY])
    make_failures(1)

    assert "0 of 1 rows (0.0%), stalled: embed_status says why" in embed_spaces()


def test_a_space_that_was_begun_anew_is_not_gone_back_to_twice(two_spaces):
    old, new = two_spaces
    spaces.activate(new, using="default")
    embed_spaces("prune")
    embed_spaces("rollback", str(old.pk))
    begun = Space.objects.get(spec=KEY, state="building")

    with pytest.raises(CommandError, match=f"started again as {begun.pk}, which is building"):
        embed_spaces("rollback", str(old.pk))

    begun.refresh_from_db()
    assert begun.state == "building"


def test_what_is_filled_is_listed_with_its_rate_and_the_time_to_go(two_spaces):
    Rollup.objects.all().delete()
    tally = rollups.Tally()
    for _ in range(600):
        tally.completed(KEY, waited=None)
    tally.flush(using="default")
    # Nobody goes on at that rate.
    assert "0 of 1 rows (0.0%), stalled: embed_status says why" in embed_spaces()
    Worker.objects.create(host="here", pid=7, version="1", specs=[KEY])
    told = embed_spaces()

    pace = re.search(r"0 of 1 rows \(0\.0%\), ([\d.]+) rows a second, about (.+) to go", told)
    assert pace
    assert float(pace[1]) > 0
    assert "1 of 1 rows (100.0%)\n" in told  # what is full has nothing to go


def test_rows_that_have_failed_have_no_time_to_go(make_article, run_jobs):
    for number in range(2000):
        make_article(title=f"title {number}")
    run_jobs()
    Worker.objects.create(host="here", pid=7, version="1", specs=[KEY])
    last = ArticleEmbedding.objects.order_by("-source_id")[:1]
    ArticleEmbedding.objects.filter(source_id__in=last.values("source_id")).delete()

    told = embed_spaces()

    # Nothing is on its way, and it is not whole.
    assert "1,999 of 2,000 rows (99.9%)\n" in told


def test_a_changed_recipe_is_listed_until_all_rows_are_compared(
    make_article, run_jobs, monkeypatch
):
    for _ in range(3):
        make_article()
    run_jobs()
    spec = specs.get(KEY)
    reconcile.reconcile_once(spec, using="default", scans=["stale"])  # notes the recipe
    assert "changed recipe" not in embed_spaces()

    changed = dataclasses.replace(spec, fields=("contents", "title"))
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 2)
    monkeypatch.setitem(specs._registry, KEY, changed)
    told = "changed recipe: {} of 3 rows compared, {} waiting"
    assert told.format(0, 0) in embed_spaces()

    reconcile.reconcile_page(changed, "stale", using="default")
    assert told.format(2, 2) in embed_spaces()

    reconcile.reconcile_page(changed, "stale", using="default")
    assert "changed recipe" not in embed_spaces()


def test_a_person_can_switch_go_back_and_prune(two_spaces, run_jobs):
    old, new = two_spaces
    assert "Searches now use" in embed_spaces("activate", str(new.pk))
    assert "top up" in embed_spaces("rollback", str(old.pk))
    assert "no longer being built" in embed_spaces("cancel", str(old.pk))

    assert "Pruned" in embed_spaces("prune")

    assert not ArticleEmbedding.objects.filter(space=old).exists()
    assert "pruned" in embed_spaces()
    assert "The workers build" in embed_spaces("rollback", str(old.pk))
    assert re.search(r"\d+  building  bag-of-words", embed_spaces())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["activate"], "Which space?"),
        (["activate", "0"], "'0' is not a whole number of one or more"),
        (["rollback", "active"], "'active' is not a whole number of one or more"),
    ],
)
def test_what_cannot_be_done_is_said(two_spaces, arguments, message):
    with pytest.raises(CommandError, match=message):
        embed_spaces(*arguments)


def test_only_a_space_in_the_right_state_is_acted_on(two_spaces):
    old, _ = two_spaces
    for action in ("activate", "cancel", "rollback"):
        with pytest.raises(CommandError, match="It must be"):
            embed_spaces(action, str(old.pk))


def test_prune_says_when_nothing_is_retired(two_spaces):
    assert embed_spaces("prune") == "No retired space has vectors to delete.\n"


def test_one_retired_space_is_pruned_and_no_other(two_spaces):
    old, new = two_spaces
    embed_spaces("activate", str(new.pk))
    for space in (old, new):
        Space.objects.filter(pk=space.pk).update(state="retired", retired_at="2026-01-01T00:00Z")

    assert embed_spaces("prune", str(old.pk)).count("Pruned") == 1

    assert set(Space.objects.filter(spec=KEY, pruned_at=None)) == {new}
    with pytest.raises(CommandError, match="is pruned already"):
        embed_spaces("prune", str(old.pk))


def test_a_number_is_never_left_out_of_account(two_spaces):
    old, _ = two_spaces
    with pytest.raises(CommandError, match=r"is active\. It must be retired"):
        embed_spaces("prune", str(old.pk))
    with pytest.raises(CommandError, match="list takes no number"):
        embed_spaces("list", str(old.pk))
    with pytest.raises(CommandError, match=r"belongs to app.ArticleEmbedding, which is not one of"):
        call_command("embed_spaces", "cancel", str(old.pk), "--specs", "app.NoteEmbedding")
