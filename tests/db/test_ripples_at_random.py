"""Whatever open transactions do to the tables that texts span, in whatever order: none is stale."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgembed_django.models import Job, Ripple
from tests.app.models import Author, City, Essay, Remark, Story, Tag
from tests.db.conftest import reconcile_deeply

SPECS = ("app.StoryEmbedding", "app.EssayEmbedding", "app.EssayPlain")

STATEMENTS = (
    "UPDATE app_author SET name = md5(random()::text) WHERE id = {author}",
    "UPDATE app_author SET city_id = {city} WHERE id = {author}",
    "UPDATE app_city SET name = md5(random()::text) WHERE id = {city}",
    "UPDATE app_story SET author_id = {author} WHERE id = {story}",
    "UPDATE app_story SET title = md5(random()::text) WHERE id = {story}",
    "UPDATE app_tag SET word = md5(random()::text) WHERE id = {tag}",
    "INSERT INTO app_story_tags (story_id, tag_id) VALUES ({story}, {tag}) ON CONFLICT DO NOTHING",
    "DELETE FROM app_story_tags WHERE story_id = {story} AND tag_id = {tag}",
    "UPDATE app_story_tags SET story_id = {story} WHERE tag_id = {tag} AND NOT EXISTS ("
    "SELECT FROM app_story_tags AS other WHERE other.tag_id = {tag} AND other.story_id = {story})"
    " AND id = (SELECT min(id) FROM app_story_tags WHERE tag_id = {tag})",
    "INSERT INTO app_remark (story_id, body) VALUES ({story}, md5(random()::text))",
    "UPDATE app_remark SET body = md5(random()::text) WHERE id = {remark}",
    "UPDATE app_remark SET story_id = {story} WHERE id = {remark}",
    "DELETE FROM app_remark WHERE id = {remark}",
    "UPDATE app_leaf SET title = md5(random()::text) WHERE id = {essay}",
    "UPDATE app_leaf SET live = NOT live WHERE id = {essay}",
    "UPDATE app_leaf SET owner_id = {author} WHERE id = {essay}",
    "UPDATE app_essay SET intro = md5(random()::text) WHERE sheet_ptr_id = {essay}",
    "UPDATE app_essay SET is_secret = NOT is_secret WHERE sheet_ptr_id = {essay}",
)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", range(4))
def test_no_text_is_stale_in_the_end(
    connect: Callable[..., psycopg.Connection], run_jobs: Callable[[], int], seed: int
) -> None:
    chance = random.Random(seed)
    cities = [City.objects.create(name=f"City {number}") for number in range(3)]
    authors = [Author.objects.create(name=str(n), city=chance.choice(cities)) for n in range(4)]
    stories = [Story.objects.create(title=str(n), author=chance.choice(authors)) for n in range(6)]
    rows: dict[str, list[Any]] = {
        "city": cities,
        "author": authors,
        "story": stories,
        "tag": [Tag.objects.create(word=str(number)) for number in range(4)],
        "remark": [Remark.objects.create(story=one, body="x") for one in stories],
        "essay": [Essay.objects.create(title=str(number)) for number in range(4)],
    }
    run_jobs()
    writers = [connect() for _ in range(3)]
    for writer in writers:
        # Long enough for our locks, and short enough where writers wait for each other.
        writer.execute("SET lock_timeout = '200ms'")
        writer.commit()

    for _ in range(250):
        writer = chance.choice(writers)
        match chance.randrange(10):
            case 0:
                writer.rollback()
            case 1 | 2 | 3:
                writer.commit()
            case 4:
                run_jobs()
            case _:
                chosen = {name: chance.choice(of).pk for name, of in rows.items()}
                refused = ""
                try:
                    writer.execute(chance.choice(STATEMENTS).format(**chosen))
                except psycopg.errors.LockNotAvailable as error:
                    refused = str(error)  # another writer has the same row
                    writer.rollback()
                assert "pgembed" not in refused
    for writer in writers:
        writer.commit()
    run_jobs()

    assert not Ripple.objects.exists()
    assert not Job.objects.filter(status__in=["pending", "running"]).exists()
    assert {key: reconcile_deeply(key) for key in SPECS} == dict.fromkeys(SPECS, 0)
