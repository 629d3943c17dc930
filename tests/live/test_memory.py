"""The example's chat page, served, with workers that are killed or stalled while they extract."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright
from psycopg import sql

from tests import postgres
from tests.live.test_triage_room import ARGUMENTS, CHROMIUM, SHOTS
from tests.played.chat import Chat
from tests.played.server import serving

pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "example_project"
PATIENCE_SECONDS = 60
EXTRACTS = "JSON array"
"""The instructions for an extraction have these words; those for an answer do not."""

MEMORIES = "SELECT text FROM memory_memory ORDER BY id"
OPEN_TASKS = "SELECT id FROM pgembed_task WHERE status IN ('pending', 'running', 'failed')"


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a new, empty database."""
    name = f"pgembed_memory_{os.getpid()}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        found = connection.info
        yield (
            f"postgres://{found.user}:{quote(found.password)}@/{name}"
            f"?host={found.host}&port={found.port}"
        )
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
        connection.execute(drop)


@pytest.fixture
def database(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``manage.py`` of the example, with settings of its own, in a session of its own."""
    started: list[tuple[subprocess.Popen[str], Path]] = []

    def start_one(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
        path = tmp_path / f"process-{len(started)}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=EXAMPLE,
                env={
                    **os.environ,
                    "DATABASE_URL": url,
                    "DJANGO_SETTINGS_MODULE": "tests.example.settings",
                    "PGEMBED_PROVIDER": "wordllama",
                    "PYTHONPATH": str(REPOSITORY),
                    "TEST_SETTINGS": json.dumps(settings),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        started.append((process, path))
        return process

    yield start_one
    for process, path in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sys.stdout.write(path.read_text())  # shown if the test fails


@pytest.fixture
def chat() -> Iterator[Chat]:
    """A language model that finds one memory in whatever is said."""
    with serving(Chat(lambda messages: '["The user lives in Berlin."]')) as played:
        yield played


@pytest.fixture
def model(chat: Chat) -> dict[str, str]:
    """The settings that name it."""
    return {"CHAT_URL": f"{chat.url}/v1", "CHAT_MODEL": "played"}


@pytest.fixture
def migrated(start: Callable[..., subprocess.Popen[str]]) -> None:
    assert start("migrate", "--verbosity", "0").wait(PATIENCE_SECONDS) == 0


@pytest.fixture
def serve(migrated: None, start: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Serve the pages with these settings. Returns their address."""

    def serve_one(**settings: Any) -> str:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
        process = start("runserver", "--noreload", "--insecure", address, **settings)

        def is_ready() -> bool:
            assert process.poll() is None
            with suppress(requests.ConnectionError):
                return requests.get(f"http://{address}/chat/ada/", timeout=30).ok
            return False

        until(is_ready)
        return f"http://{address}"

    return serve_one


@pytest.fixture
def start_worker(
    migrated: None, start: Callable[..., subprocess.Popen[str]]
) -> Callable[..., subprocess.Popen[str]]:
    """Start workers whose leases soon run out."""
    return partial(start, "embed_worker", PGEMBED_LEASE_SECONDS=3, PGEMBED_REAP_SECONDS=0.5)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    contexts = []

    def open_one(address: str, **options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(15_000)
        page: Page = contexts[-1].new_page()
        page.goto(f"{address}/chat/ada/")
        return page

    yield open_one
    for context in contexts:
        context.close()


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"Not within {PATIENCE_SECONDS} s")
        threading.Event().wait(0.02)


def form_of(session: requests.Session, address: str) -> dict[str, str]:
    page = session.get(f"{address}/chat/ada/", timeout=PATIENCE_SECONDS).text
    names = ("csrfmiddlewaretoken", "request_id")
    return {name: re.search(rf'name="{name}" value="([^"]+)"', page)[1] for name in names}  # type: ignore[index]


def say(address: str, message: str) -> str:
    with requests.Session() as session:
        form = {**form_of(session, address), "message": message}
        answer = session.post(f"{address}/chat/ada/", form, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        return answer.text


def texts(database: psycopg.Connection) -> list[str]:
    return [text for [text] in database.execute(MEMORIES)]


def is_idle(database: psycopg.Connection) -> bool:
    return not database.execute(OPEN_TASKS).fetchall()


class Held:
    """Extractions that wait until the test lets them go."""

    def __init__(self, chat: Chat) -> None:
        self.begun = 0
        self.go = threading.Event()
        self._says = chat.says
        chat.says = self._hold

    def _hold(self, messages: list[dict[str, str]]) -> Any:
        if EXTRACTS in messages[0]["content"]:
            self.begun += 1
            self.go.wait(PATIENCE_SECONDS)
        return self._says(messages)


def test_a_worker_that_is_killed_while_it_extracts_loses_and_doubles_nothing(
    chat, model, serve, start_worker, database
):
    held = Held(chat)
    say(serve(**model), "Berlin is where I live.")
    killed = start_worker(**model)
    until(lambda: held.begun == 1)

    killed.kill()
    killed.wait()
    assert texts(database) == []
    start_worker(**model)
    until(lambda: held.begun == 2)
    held.go.set()

    until(lambda: is_idle(database))
    assert texts(database) == ["The user lives in Berlin."]


def test_a_worker_that_stalls_while_it_extracts_stores_nothing_too_late(
    chat, model, serve, start_worker, database
):
    held = Held(chat)
    say(serve(**model), "Berlin is where I live.")
    stalled = start_worker(**model)
    until(lambda: held.begun == 1)

    stalled.send_signal(signal.SIGSTOP)
    start_worker(**model)
    until(lambda: held.begun == 2)
    held.go.set()
    until(lambda: is_idle(database))
    stalled.send_signal(signal.SIGCONT)
    stalled.terminate()  # it ends what it has begun
    stalled.wait(PATIENCE_SECONDS)

    assert texts(database) == ["The user lives in Berlin."]


def test_two_posts_at_once_of_one_request_are_stored_and_extracted_once(
    chat, model, serve, start_worker, database
):
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)
    extracted = []

    def says(messages: list[dict[str, str]]) -> str:
        if EXTRACTS in messages[0]["content"]:
            extracted.append(messages)
            return '["The user lives in Berlin."]'
        both.wait()
        return "Lovely city!"

    chat.says = says
    address = serve(**model)
    with requests.Session() as session, ThreadPoolExecutor(2) as pool:
        form = {**form_of(session, address), "message": "Berlin is where I live."}
        cookies = session.cookies.get_dict()
        post = partial(requests.post, cookies=cookies, timeout=PATIENCE_SECONDS)
        posted = [pool.submit(post, f"{address}/chat/ada/", form) for _ in range(2)]
        pages = [one.result() for one in posted]
    assert {page.status_code for page in pages} == {200}

    start_worker(**model)
    until(lambda: texts(database) and is_idle(database))

    assert database.execute("SELECT count(*) FROM memory_exchange").fetchone() == (1,)
    assert texts(database) == ["The user lives in Berlin."]
    assert len(extracted) == 1


@needs_chromium
@pytest.mark.parametrize("scripts", [True, False])
def test_a_visitor_is_remembered(scripts, serve, start_worker, open_page):
    page = open_page(serve(), java_script_enabled=scripts)
    expect(page.get_by_text("plain rules extract the memories")).to_be_visible()
    page.get_by_role("textbox", name="What does Ada say?").fill("My daughter is called Maya.")
    page.keyboard.press("Enter")
    waiting = page.get_by_text("Looking for something to remember")
    expect(waiting).to_be_visible()

    start_worker()
    if scripts:
        page.get_by_role("textbox").fill("What is my")
        expect(waiting).to_have_count(0, timeout=PATIENCE_SECONDS * 1000)
        expect(page.get_by_role("textbox")).to_have_value("What is my")
    else:

        def is_remembered() -> bool:
            with page.expect_navigation():
                page.get_by_role("link", name="Look again").click()
            return page.locator("#exchanges").get_by_text("Remembered:").count() == 1

        until(is_remembered)
    page.get_by_role("link", name="Ada").click()
    remembered = page.locator("#remembered")
    expect(remembered.get_by_text("My daughter is called Maya.")).to_be_visible()

    def recalls() -> bool:
        page.get_by_role("textbox").fill("What is my daughter called?")
        page.get_by_role("button", name="Say").click()
        expect(page.get_by_role("textbox")).to_have_value("")
        return "Recalled" in page.locator("#exchanges > li").last.inner_text()

    until(recalls)
    expect(page.locator("#exchanges > li").last).to_contain_text(
        "You told me: My daughter is called Maya."
    )
    if scripts:
        looked_at(page)


def looked_at(page: Page) -> None:
    """Find no fault for those who do not see, light and dark; take pictures."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert Axe().run(page).response["violations"] == []
        for width in (1100, 400):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if SHOTS:
                path = Path(SHOTS) / f"chat-{scheme}-{width}.png"
                page.screenshot(path=path, full_page=True)
