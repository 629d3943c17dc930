"""I11: unchanged text is never embedded twice. I12: the last good vectors stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space, StagedVector
from pgembed_django.queue import jobs
from pgembed_django.spaces import lifecycle, reconcile
from pgembed_django.spaces.reembedding import reembed
from pgembed_django.spaces.stored import prune
from tests.app.models import (
    Article,
    ArticleComment,
    ArticleCommentEmbedding,
    ArticleEmbedding,
    Note,
    NoteEmbedding,
    Page,
    PageExtra,
    PageExtraEmbedding,
)
from tests.conftest import embedded_text
from tests.db.conftest import Maintenance, claim, expire_leases, make_due, reap, reconcile_deeply
from tests.providers import Moody

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

WORDS = ["badger", "buffalo", "condor", "dingo", "ferret", "gazelle", "heron"]


@pytest.fixture
def comment(provider, settings) -> ArticleComment:
    """A text of seven chunks, of twenty characters at most, each asked for by itself."""
    settings.PGEMBED_BATCH_SIZE = 1
    article = Article.objects.create(title="not embedded")
    return ArticleComment.objects.create(
        article=article, text="\n\n".join(f"The {word} sleeps." for word in WORDS)
    )


def stored(comment: ArticleComment) -> dict[str, tuple[float, ...]]:
    rows = ArticleCommentEmbedding.objects.filter(source=comment).order_by("position")
    return {row.passage: tuple(row.embedding) for row in rows}


def test_a_change_in_one_chunk_embeds_one_chunk(comment, provider, run_jobs):
    run_jobs()
    assert len(provider.embedded) == len(WORDS)
    before = stored(comment)
    provider.reset()

    comment.text = comment.text.replace("dingo", "dragon")
    comment.save()
    run_jobs()

    assert provider.embedded == ["The dragon sleeps."]
    after = stored(comment)
    assert list(after) == [passage.replace("dingo", "dragon") for passage in before]
    assert [after[passage] for passage in after if passage in before] == [
        before[passage] for passage in before if passage in after
    ]


def test_chunks_that_move_take_their_vectors_along(comment, provider, run_jobs):
    run_jobs()
    before = stored(comment)
    provider.reset()

    comment.text = "\n\n".join(reversed(comment.text.split("\n\n")))
    comment.save()
    run_jobs()

    assert provider.embedded == []
    assert list(stored(comment).items()) == list(reversed(before.items()))


def test_a_chunk_that_is_there_twice_is_embedded_once(comment, provider, run_jobs):
    comment.text = "The zebra sleeps.\n\nThe heron is awake.\n\nThe zebra sleeps."
    comment.save()

    run_jobs()

    assert sorted(provider.embedded) == ["The heron is awake.", "The zebra sleeps."]
    vectors = ArticleCommentEmbedding.objects.order_by("position").values_list("embedding")
    [[first], _, [third]] = vectors
    assert np.array_equal(first, third)


@pytest.mark.parametrize("again", ["write", "same text", "reconciler"])
def test_a_text_that_is_as_it_was_embeds_nothing(comment, provider, run_jobs, again):
    run_jobs()
    rows = set(ArticleCommentEmbedding.objects.values_list("pk", "created_at"))
    provider.reset()

    if again == "write":
        ArticleComment.objects.update(text=comment.text + " ")  # cleaned away
        assert Job.objects.filter(status="pending").exists()
    elif again == "same text":
        ArticleComment.objects.update(text="other")
        ArticleComment.objects.update(text=comment.text)
        assert Job.objects.filter(status="pending").exists()
    else:
        assert reconcile_deeply("app.ArticleCommentEmbedding") == 0
    run_jobs()

    assert provider.embedded == []
    assert set(ArticleCommentEmbedding.objects.values_list("pk", "created_at")) == rows


def test_a_text_that_got_shorter_drops_the_rest_without_a_request(comment, provider, run_jobs):
    run_jobs()
    provider.reset()

    comment.text = "\n\n".join(comment.text.split("\n\n")[:2])
    comment.save()
    run_jobs()

    assert provider.embedded == []
    assert len(stored(comment)) == 2


def test_progress_is_kept_when_a_job_dies_at_its_fifth_batch(
    comment, provider, make_worker, run_jobs
):
    dying = make_worker(concurrency=1)
    for _ in range(5):
        dying.step()
    assert len(provider.embedded) == 5  # the fifth is on its way, four are staged
    assert StagedVector.objects.count() == 4
    expire_leases()
    reap()

    run_jobs()

    assert len(provider.embedded) == len(WORDS) + 1
    assert list(stored(comment)) == [f"The {word} sleeps." for word in WORDS]
    assert not StagedVector.objects.exists()
    assert not ArticleCommentEmbedding.objects.filter(embedding=None).exists()


def test_progress_is_kept_when_the_provider_goes_down_in_the_middle(
    comment, provider, make_worker, run_jobs
):
    worker = make_worker(concurrency=1)
    for _ in range(3):
        worker.step()
    provider.is_down = True
    while worker.step():
        pass
    assert worker.held.is_empty
    [job] = Job.objects.filter(status="pending")
    assert job.attempts == 0
    provider.is_down = False
    make_due()

    run_jobs()

    assert len(provider.embedded) == len(WORDS)
    assert not StagedVector.objects.exists()


def test_what_is_staged_of_a_text_that_has_changed_is_not_used(
    comment, provider, make_worker, run_jobs
):
    dying = make_worker(concurrency=1)
    for _ in range(4):
        dying.step()
    expire_leases()
    reap()
    comment.text = "Something else."
    comment.save()

    run_jobs()

    assert list(stored(comment)) == ["Something else."]
    assert not StagedVector.objects.exists()


def test_one_space_does_not_lend_its_vectors_to_another(provider, run_jobs, settings, make_article):
    article = make_article()
    run_jobs()
    provider.reset()
    config = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**config, "MODEL": "another"}}

    spec = specs.get("app.ArticleEmbedding")
    spaces.ensure(spec, using="default")
    reconcile.reconcile_once(spec, using="default")
    run_jobs()

    assert len(provider.embedded) == 1
    assert Space.objects.filter(spec=spec.key).count() == 2
    first, second = ArticleEmbedding.objects.filter(source=article).order_by("space_id")
    assert first.chunk_digest == second.chunk_digest
    assert not np.array_equal(first.embedding, second.embedding)


@pytest.mark.parametrize("fault", ["poison", "trouble", "down", "worker lost"])
def test_a_failing_re_embed_leaves_the_last_good_vectors(
    make_article, provider, make_worker, run_jobs, settings, fault
):
    settings.PGEMBED_MAX_ATTEMPTS = 2
    article = make_article(title="good", contents="")
    run_jobs()
    before = list(ArticleEmbedding.objects.values_list("pk", "passage", "text_digest"))

    provider.is_down = fault == "down"
    Article.objects.update(title=f"new {fault}")
    for _ in range(3):
        worker = make_worker()
        worker.step()
        if fault == "worker lost":
            expire_leases()
            reap()
        while worker.step(claim=False):
            pass
        worker.release()
        make_due()

    assert list(ArticleEmbedding.objects.values_list("pk", "passage", "text_digest")) == before
    status = "pending" if fault == "down" else "failed"
    assert Job.objects.filter(status=status, settled_at=None).exists()
    provider.is_down = False
    [found] = search(Article, "good", limit=1)
    assert (found, found.passage) == (article, "good")


def test_a_row_that_was_never_embedded_can_be_found_by_its_words_during_an_outage(
    make_article, provider, make_worker
):
    provider.is_down = True
    article = make_article(title="fresh")
    worker = make_worker()
    while worker.step():
        pass

    [row] = ArticleEmbedding.objects.filter(source=article)
    assert (row.embedding, row.passage.split()[0]) == (None, "fresh")


def test_text_that_waits_never_replaces_vectors_that_are_there(
    make_article, provider, make_worker, run_jobs
):
    article = make_article(title="good", contents="")
    run_jobs()
    provider.is_down = True
    Article.objects.update(title="new")

    worker = make_worker()
    while worker.step():
        pass

    assert embedded_text(article) == "good"
    assert ArticleEmbedding.objects.count() == 1


@pytest.fixture
def extra(run_jobs) -> PageExtra:
    """Of a spec with ``stale="hide"``, embedded."""
    extra = PageExtra.objects.create(page=Page.objects.create(slug="p", body="x"), summary="good")
    run_jobs()
    assert list(search(PageExtra, "good")) == [extra]
    return extra


def test_search_serves_what_is_stale_unless_told_to_hide_it(make_article, run_jobs):
    article = make_article(title="good")
    run_jobs()

    Article.objects.update(title="new")

    assert list(search(Article, "good")) == [article]


def test_search_hides_what_is_stale_where_told_so(extra, run_jobs):
    PageExtra.objects.update(summary="new")
    assert list(search(PageExtra, "good")) == []

    run_jobs()
    assert list(search(PageExtra, "good")) == [extra]


def test_search_hides_what_is_stale_also_once_its_job_has_failed(provider, extra, run_jobs):
    PageExtra.objects.update(summary="poison")
    run_jobs()
    assert Job.objects.filter(spec="app.PageExtraEmbedding", status="failed").exists()

    assert list(search(PageExtra, "good")) == []
    assert PageExtraEmbedding.objects.filter(source_id=extra.pk).exists()  # kept all the same


def test_chunks_that_move_keep_their_vectors_while_they_are_embedded_anew(
    comment, provider, run_jobs, make_worker
):
    """The job at work counts on vectors that are not to be reused any more."""
    run_jobs()
    ArticleComment.objects.update(text="\n\n".join(reversed(comment.text.split("\n\n"))))
    worker = make_worker()
    worker.step()
    spec = specs.get("app.ArticleCommentEmbedding")
    assert reembed(spec, [str(comment.pk)], using="default") == (1, [])
    worker.step(claim=False)

    assert all(stored(comment).values())
    assert list(stored(comment)) == [f"The {word} sleeps." for word in WORDS]
    provider.reset()
    while worker.step():
        pass
    assert len(provider.embedded) == len(WORDS)
    assert list(stored(comment)) == [f"The {word} sleeps." for word in reversed(WORDS)]


def test_what_is_written_is_hidden_also_while_it_is_embedded_anew(extra):
    spec = specs.get("app.PageExtraEmbedding")
    [_] = [*enqueued(spec, extra, kind="write")]

    reembed(spec, [str(extra.pk)], using="default")

    left = Job.objects.filter(spec=spec.key).exclude(status="succeeded")
    assert list(left.values_list("status", "kind")) == [("pending", "write")]
    assert list(search(PageExtra, "good")) == []


@pytest.mark.parametrize("kind", ["reconciler", "backfill"])
@pytest.mark.parametrize("way", ["re-embed", "retry"])
def test_search_hides_what_is_written_after_a_person_has_brought_its_gap_forward(extra, kind, way):
    spec = specs.get("app.PageExtraEmbedding")
    [claim] = [*enqueued(spec, extra, kind="write")]
    jobs.fail(claim, "no", using="default")
    jobs.enqueue(spec.key, [str(extra.pk)], kind=kind, priority=spec.priority, using="default")
    if way == "re-embed":
        reembed(spec, [str(extra.pk)], using="default")
    else:
        jobs.retry_failed([claim.id], using="default")
    Job.objects.exclude(status="pending").delete()

    PageExtra.objects.update(summary="new")

    assert list(search(PageExtra, "good")) == []


def enqueued(spec: specs.Spec, extra: PageExtra, *, kind: str) -> list[jobs.Claim]:
    jobs.enqueue(spec.key, [str(extra.pk)], kind=kind, priority=spec.priority, using="default")
    return jobs.claim([spec.key], limit=1, lease=jobs.Lease(1, 600), using="default")


@pytest.mark.parametrize("mode", ["semantic", "lexical", "hybrid"])
def test_search_hides_what_is_stale_also_once_it_has_failed_again(provider, extra, run_jobs, mode):
    """The reconciler tries a failed row again: its job is one of a gap."""
    PageExtra.objects.update(summary="poison")
    run_jobs()
    make_due()
    assert reconcile_deeply("app.PageExtraEmbedding") == 1
    run_jobs()

    [job] = Job.objects.filter(spec="app.PageExtraEmbedding", status="failed", settled_at=None)
    assert job.is_awaited
    assert list(search(PageExtra, "good", mode=mode)) == []


@pytest.mark.parametrize("end", ["retry", "release", "fail", "reap"])
def test_a_write_that_a_gaps_job_supersedes_stays_a_write(extra, end):
    PageExtra.objects.update(summary="new")
    [one] = claim()
    assert reconcile_deeply("app.PageExtraEmbedding") == 1
    match end:
        case "retry":
            jobs.retry(one, "no", max_attempts=5, delay_seconds=0, using="default")
        case "release":
            jobs.release(one, using="default")
        case "fail":
            jobs.fail(one, "no", using="default")
        case "reap":
            expire_leases()
            reap()

    [job] = Job.objects.filter(spec="app.PageExtraEmbedding", status="pending")
    assert (job.kind, job.priority) == ("write", 0)
    assert list(search(PageExtra, "good")) == []


def test_a_person_who_embeds_anew_what_nobody_wrote_hides_nothing(extra, admin_client):
    job = Job.objects.get(spec="app.PageExtraEmbedding")
    action = {"action": "reembed", "_selected_action": [str(job.pk)]}

    admin_client.post("/admin/pgembed/job/", action)

    assert Job.objects.filter(spec="app.PageExtraEmbedding", status="pending").exists()
    assert list(search(PageExtra, "good")) == [extra]


def test_a_retry_of_a_failed_gap_hides_nothing_until_the_row_is_written(extra, run_jobs):
    spec = specs.get("app.PageExtraEmbedding")
    [failed] = enqueued(spec, extra, kind="reconciler")
    jobs.fail(failed, "no", using="default")
    jobs.retry_failed([failed.id], using="default")
    assert list(search(PageExtra, "good")) == [extra]

    PageExtra.objects.update(summary="good but new")
    assert list(search(PageExtra, "good")) == []

    run_jobs()
    assert list(search(PageExtra, "good")) == [extra]


def test_search_hides_nothing_while_another_space_is_filled(provider, extra, settings):
    config = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**config, "MODEL": "another"}}
    spec = specs.get("app.PageExtraEmbedding")
    spaces.ensure(spec, using="default")
    assert reconcile.reconcile_once(spec, using="default") == 1

    assert list(search(PageExtra, "good")) == [extra]


@pytest.mark.parametrize("mode", ["semantic", "lexical", "hybrid"])
def test_search_hides_a_text_that_a_former_model_refuses_once_it_is_searched_again(
    declare, extra, run_jobs, mode
):
    declare("new")
    spec = specs.get("app.PageExtraEmbedding")
    former = spaces.active(spec, using="default")
    maintenance = Maintenance(
        {spec.key: spec},
    )
    fill(maintenance, spec, run_jobs)
    assert spaces.active(spec, using="default") != former
    PageExtra.objects.update(summary="salmon")
    run_jobs()
    assert list(search(PageExtra, "salmon")) == [extra]

    Moody.refusing = {former.model: "salmon"}
    spaces.reopen(former, using="default")
    fill(maintenance, spec, run_jobs)

    assert spaces.active(spec, using="default") == former
    assert PageExtraEmbedding.objects.filter(space=former, passage="good").exists()
    assert list(search(PageExtra, "good", mode=mode)) == []


def test_search_does_not_hide_what_the_next_space_has_first_for_a_changed_recipe(
    declare, extra, run_jobs
):
    """The text is not newer, and the active model, which is down or refuses it, may be gone."""
    former = spaces.active(specs.get("app.PageExtraEmbedding"), using="default")
    PageExtraEmbedding.objects.update(chunk_digest=b"another", text_digest=b"of another recipe")
    declare("new")
    spec = specs.get("app.PageExtraEmbedding")
    spaces.ensure(spec, using="default")
    Moody.refusing = {former.model: "good"}
    reconcile_deeply(spec.key)
    run_jobs()

    assert PageExtraEmbedding.objects.filter(space__model="new", passage="good").exists()
    assert Job.objects.get(status="failed").kind == "reconciler"
    assert list(search(PageExtra, "good", mode="lexical")) == [extra]


def test_chunks_that_are_only_embedded_anew_are_not_marked_as_of_a_former_text(
    declare, extra, run_jobs
):
    spec = specs.get("app.PageExtraEmbedding")
    former = spaces.active(spec, using="default")
    declare("new")
    spaces.ensure(spec, using="default")
    Moody.refusing = {former.model: "good"}
    assert reembed(spec, [str(extra.pk)], using="default").enqueued == 1
    run_jobs()

    assert Job.objects.filter(status="failed").count() == 1
    both = PageExtraEmbedding.objects.order_by("space_id")
    assert [bytes(one.text_digest) for one in both] == [spec.text_digest("good")] * 2


def test_a_space_that_is_reopened_in_the_middle_of_its_pruning_is_filled_again(
    comment, run_jobs, settings, monkeypatch
):
    """Also where the first chunk, by which a row is covered, is newer than the others."""
    run_jobs()
    ArticleComment.objects.update(text=comment.text.replace(WORDS[0], "aardvark"))
    run_jobs()
    spec = specs.get("app.ArticleCommentEmbedding")
    former = spaces.active(spec, using="default")
    before = set(stored(comment))
    declared = settings.PGEMBED_PROVIDERS
    settings.PGEMBED_PROVIDERS = {"default": {**declared["default"], "MODEL": "another"}}
    maintenance = Maintenance(
        {spec.key: spec},
    )
    fill(maintenance, spec, run_jobs)
    assert spaces.active(spec, using="default") != former
    former.refresh_from_db()
    monkeypatch.setattr(lifecycle, "CHUNKS", 1)
    looks = iter([False, False, False, True])
    assert not spaces.prune(spec, former, using="default", is_stopping=lambda: next(looks))

    settings.PGEMBED_PROVIDERS = declared
    assert spaces.reopen(former, using="default") == former
    fill(maintenance, spec, run_jobs)

    assert spaces.active(spec, using="default") == former
    found = ArticleCommentEmbedding.objects.filter(space=former)
    assert set(found.values_list("passage", flat=True)) == before


def test_a_unit_that_is_held_while_its_space_is_pruned_and_reopened_loses_no_chunk(
    declare, comment, run_jobs, make_worker
):
    run_jobs()
    spec = specs.get("app.ArticleCommentEmbedding")
    declare("new")
    _, space = spaces.ensure(spec, using="default")
    reconcile.reconcile_once(spec, using="default")
    run_jobs()
    ArticleComment.objects.update(text=comment.text.replace(WORDS[0], "aardvark"))
    worker = make_worker()
    worker.step()  # it counts on the chunks that have not changed

    prune_in_part_and_reopen(spec, space)
    for _ in range(6):
        worker.step()

    found = ArticleCommentEmbedding.objects.filter(space=space, embedding__isnull=False)
    assert found.count() == len(WORDS)


def test_a_row_that_fails_while_a_space_is_pruned_and_reopened_is_not_stored_there_in_part(
    declare, comment, run_jobs, make_worker
):
    declare("old")
    run_jobs()
    spec = specs.get("app.ArticleCommentEmbedding")
    former = spaces.active(spec, using="default")
    declare("new")
    _, space = spaces.ensure(spec, using="default")
    reconcile.reconcile_once(spec, using="default")
    run_jobs()
    Moody.refusing = {former.model: "aardvark"}
    ArticleComment.objects.update(text=comment.text.replace(WORDS[0], "aardvark"))
    worker = make_worker()
    worker.step()  # it counts on the chunks that have not changed

    prune_in_part_and_reopen(spec, space)
    for _ in range(6):
        worker.step()

    assert Job.objects.filter(status="failed").count() == 1
    assert not ArticleCommentEmbedding.objects.filter(space=space, position=0).exists()


def prune_in_part_and_reopen(spec: specs.Spec, space: Space) -> None:
    spaces.cancel(spec.key, using="default")
    for first_only in (True, False):
        prune(spec, space.pk, after=0, limit=2, first_only=first_only, using="default")
    assert spaces.reopen(space, using="default") == space


def fill(maintenance: Maintenance, spec: specs.Spec, run_jobs: Callable[[], object]) -> None:
    spaces.ensure(spec, using="default")
    for _ in range(3):
        maintenance.once()
        run_jobs()


def test_an_empty_text_is_a_row_without_a_vector_and_no_gap_for_ever(provider, run_jobs):
    note = Note.objects.create(body="words")
    run_jobs()
    Note.objects.update(body="  ")
    provider.reset()
    run_jobs()

    assert provider.embedded == []
    [row] = NoteEmbedding.objects.filter(source=note)
    assert (row.embedding, row.passage) == (None, "")
    assert reconcile_deeply("app.NoteEmbedding") == 0
