"""The demo: the standard library's documentation, embedded by a real worker, searched, served."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright
from psycopg import sql

from tests import postgres
from tests.conftest import wait_until
from tests.live.test_triage_room import ARGUMENTS, CHROMIUM, SHOTS

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
PATIENCE_SECONDS = 240

# In the example's own process and settings: its tables are not those of these tests.
SEARCH = """
import json, sys
import django
django.setup()
from library.models import Entry
from pgembed_django import search
public = Entry.objects.filter(is_public=True)
answers = {}
for mode, question in json.load(sys.stdin):
    found = search(public, question, mode=mode, limit=5)
    answers[question] = [found.ranking, found.degraded, [entry.name for entry in found]]
json.dump(answers, sys.stdout)
"""

PAGES = """
import json, sys
import django
django.setup()
from django.test import Client, override_settings
seconds, addresses = json.load(sys.stdin)
with override_settings(ALLOWED_HOSTS=["testserver"], PGEMBED_QUERY_SECONDS=seconds):
    answers = [Client().get(address) for address in addresses]
json.dump([[answer.status_code, answer.content.decode()] for answer in answers], sys.stdout)
"""
QUERY_SECONDS = 20.0

# Not VACUUM's own.
OTHER_CLIENTS = """
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
        AND pid <> pg_backend_pid()
"""

# The right answer is beyond doubt: each names what the entry is there for.
QUESTIONS = {
    "measure elapsed time precisely": {
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.monotonic",
        "timeit",
        "timeit.timeit",
        "timeit.Timer",
        "timeit.Timer.timeit",
    },
    "wait for a thread to finish": {"threading.Thread.join"},
    "greatest common divisor": {"math.gcd"},
    "delete a whole directory tree": {"shutil.rmtree"},
    "split a shell command line into arguments": {"shlex.split"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a new, empty database."""
    name = f"pgembed_stdlib_{os.getpid()}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        found = connection.info
        yield (
            f"postgres://{found.user}:{quote(found.password)}@/{name}"
            f"?host={found.host}&port={found.port}"
        )
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
        connection.execute(drop)


@pytest.fixture(scope="module")
def shown(url: str) -> str:
    """What the demo prints when it is run for the first time."""
    return run("manage.py", "demo", "--no-serve", url=url)


@pytest.fixture(scope="module")
def answers(shown: str, url: str) -> Any:
    """What the questions find, asked by a process of the example."""
    asked = [["hybrid", question] for question in QUESTIONS]
    return json.loads(run("-c", SEARCH, url=url, given=json.dumps(asked)))


@pytest.fixture
def pages(shown: str, url: str) -> Callable[..., list[str]]:
    """Ask for pages of the example, and return what they show."""

    def ask(*addresses: str, query_seconds: float = QUERY_SECONDS) -> list[str]:
        given = json.dumps([query_seconds, addresses])
        answered = json.loads(run("-c", PAGES, url=url, given=given))
        assert {status for status, _ in answered} == {200}
        return [page for _, page in answered]

    return ask


def start(*arguments: str, url: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=EXAMPLE,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": url,
            "PGEMBED_PROVIDER": "wordllama",
            "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(EXAMPLE.parent)]),
            **environment,
        },
        text=True,
    )


def run(*arguments: str, url: str, given: str = "") -> str:
    with start(*arguments, url=url) as process:
        said, complained = process.communicate(given, timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said + complained
    return said


def test_the_demo_embeds_all_edits_two_rows_and_deletes_one(shown):
    [[rows, rate]] = re.findall(r"([\d,]+) rows embedded in .* s: ([\d,]+) rows per second", shown)
    assert int(rows.replace(",", "")) > 8_000
    assert int(rate.replace(",", "")) > 0
    assert f"Coverage 100 %: {rows} of {rows} rows embedded, 0 waiting" in shown
    for name, question in {
        "textwrap.dedent": "when to water tomatoes",
        "shutil.copytree": "how long does bread dough rise",
    }.items():
        assert re.search(rf"{name} edited .* searchable by its new text \d+ ms after", shown)
        assert f"{question!r} finds {name}" in shown
    assert re.search(r"found math\.gcd, now it finds (?!math\.gcd)\w+", shown)


def test_without_its_embedding_server_the_demo_ends_before_it_loads_anything(url):
    nobody = {"PGEMBED_PROVIDER": "ollama", "OLLAMA_HOST": "http://127.0.0.1:9"}
    with start("manage.py", "demo", "--no-serve", url=url, **nobody) as process:
        said, complained = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 1
    assert "library:" not in said
    assert complained.startswith(
        "CommandError: The provider of nomic-embed-text is not well: http://127.0.0.1:9: "
    )
    assert "unset PGEMBED_PROVIDER" in complained


def test_a_second_run_embeds_nothing_and_serves_until_ctrl_c(shown, url):
    with start("manage.py", "demo", url=url) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        try:
            [address] = re.findall(r"Search +(\S+)", said)
            with urlopen(f"{address}?q=greatest+common+divisor", timeout=60) as answer:
                page = answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        last, complained = process.communicate(timeout=60)

    assert "Nothing to embed" in said
    assert "math.<wbr>gcd" in page
    assert (process.returncode, last) == (0, "Stopped. Nothing is left running.\n"), complained
    with psycopg.connect(url, autocommit=True) as connection:
        # Once its client is gone, a backend ends in its own time.
        wait_until(lambda: not connection.execute(OTHER_CLIENTS).fetchall())


def test_the_search_page_shows_what_was_found_and_how_fresh_it_is(pages):
    everywhere, in_time, articles = pages(
        "/?q=measure+elapsed+time", "/?q=measure+elapsed+time&module=time", "/?q=slugs&in=articles"
    )

    assert re.search(
        r'<p class="freshness">([\d,]+) of \1 rows embedded, 0 waiting</p>', everywhere
    )
    assert len(re.findall(r'<li class="hit">', everywhere)) == 20
    assert len(re.findall(r'title="Cosine similarity 0\.\d\d"', everywhere)) > 0
    assert "<mark>elapsed</mark>" in everywhere
    assert set(re.findall(r'<a href="[^"]*">(\w+)[^<]*(?:<wbr>[^<]*)*</a></h2>', in_time)) == {
        "time"
    }
    assert '<a href="/articles/' in articles
    assert not re.search(r'(?:src|<link[^>]* href)="(?!data:)', everywhere)


def test_the_search_page_says_that_it_went_by_words_alone(pages):
    [page] = pages("/?q=greatest+common+divisor", query_seconds=0)

    assert 'title="Found by its words"' in page
    assert "Cosine similarity" not in page
    assert re.search(r'<p class="note">[^<]*by its words alone', page)


@contextmanager
def served(url: str) -> Iterator[str]:
    """Run the demo until its pages are served. Yields their address."""
    with start("manage.py", "demo", url=url) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        try:
            [address] = re.findall(r"Search +(\S+)", said)
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def looked_at(page: Page, name: str) -> None:
    """Find no fault for those who do not see, light and dark, wide and narrow; take pictures."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1100, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert Axe().run(page).response["violations"] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if SHOTS:
                path = Path(SHOTS) / f"{name}-{scheme}-{width}.png"
                page.screenshot(path=path, full_page=True)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("scripts", [True, False])
def test_a_visitor_chooses_options_and_reads_why_a_row_was_found(shown, url, scripts):
    with served(url) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_context(java_script_enabled=scripts).new_page()
        page.goto(address)
        page.get_by_role("searchbox").fill("wait for a thread to finish")
        page.keyboard.press("Enter")
        hits = page.locator(".hit")
        expect(hits).to_have_count(20)
        expect(page.get_by_label("Least similarity")).to_be_hidden()

        page.get_by_text("Options", exact=True).click()
        page.get_by_label("Language of words").select_option("English")
        page.get_by_label("Least similarity").fill("0.6")
        page.keyboard.press("Enter")
        expect(hits.first).to_contain_text("threading.Event.set")
        assert 0 < hits.count() < 20
        why = hits.first.locator("summary")
        expect(why).to_have_text(
            re.compile(r"Found by words \(\d+\w\w, \d+\.\d\) and meaning \(\d+\w\w, 0\.[6-9]\d\)")
        )
        why.click()
        expect(hits.first.get_by_text("BM25 score")).to_be_visible()
        if scripts:
            looked_at(page, "search")

        page.get_by_label("Least similarity").fill("7")
        page.keyboard.press("Enter")
        expect(page.locator(".note")).to_contain_text("Give a number from -1 to 1.")
        expect(hits).to_have_count(20)
        expect(page.get_by_label("Language of words")).to_have_value("english")
        browser.close()


@pytest.mark.parametrize("question", list(QUESTIONS))
def test_a_question_with_one_answer_finds_it_among_the_first_five(answers, question):
    ranking, degraded, names = answers[question]

    assert QUESTIONS[question] & set(names), names
    assert (ranking, degraded) == ("hybrid", False)
