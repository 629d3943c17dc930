"""A person on call in a real browser: what fails, why, and mended. And one who may only look."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import Permission, User
from django.test import Client
from playwright.sync_api import Locator, Page, Route, expect, sync_playwright
from playwright.sync_api._generated import Browser

from pgembed_django.admin import actions
from pgembed_django.models import Job
from pgembed_django.queue.rollups import Tally
from tests.app.models import Article
from tests.conftest import wait_until
from tests.db.test_status import make_failures

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOTS = os.environ.get("PGEMBED_SCREENSHOTS")
"""A folder: each page is photographed, light and dark, wide and narrow."""

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request works through all that it is asked to, also on a slow machine."""
    monkeypatch.setattr(actions, "MAX_SECONDS", 600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # The browser's driver runs an event loop in this thread.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def open_admin(browser: Browser, live_server: Any) -> Iterator[Callable[..., Page]]:
    """Open the overview as staff with these permissions."""
    contexts = []

    def open_one(*codenames: str, **options: Any) -> Page:
        user = User.objects.create_user(f"user {User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        context = browser.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        context.add_cookies(
            [
                {
                    "name": "sessionid",
                    "value": client.cookies["sessionid"].value,
                    "url": live_server.url,
                }
            ]
        )
        page = context.new_page()
        page.goto("/admin/pgembed/")
        return page

    yield open_one
    for context in contexts:
        context.close()


def row(page: Page, heading: str) -> Locator:
    """Return the row of a table by its heading."""
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=heading))


OPERATOR = ("view_job", "retry_job", "dismiss_job", "operate_job", "view_article")
OTHERS = ("view_space", "view_worker")


def provider(*, max_characters: int) -> dict[str, Any]:
    return {
        "default": {
            "BACKEND": "tests.providers.PickyProvider",
            "MODEL": "bag-of-words",
            "DIMENSIONS": 64,
            "OPTIONS": {"max_characters": max_characters},
        }
    }


@pytest.fixture
def failures(transactional_db: None, start_worker: Callable[..., Any]) -> None:
    """300 failures of two kinds: 200 texts are too long for the setting, 100 are refused."""
    Article.objects.bulk_create(
        [
            Article(title=f"Article {n}", contents=contents, published_time="2026-01-01T00:00Z")
            for n in range(320)
            for contents in ["long " * 50 if n < 200 else "secret" if n < 300 else "short"]
        ]
    )
    worker = start_worker(PGEMBED_PROVIDERS=provider(max_characters=100))
    wait_until(lambda: Job.objects.filter(status="failed").count() == 300, seconds=60)
    worker.terminate()
    worker.wait()


def looked_at(page: Page, name: str) -> None:
    """Find no fault but minor ones for those who do not see, or use no mouse; take pictures."""
    # Django's own: the search box is named by its help text alone, and the links of the
    # breadcrumbs are not underlined before 6.0.
    found = Axe().run(
        page,
        context={"exclude": [[".breadcrumbs"]]},
        options={"rules": {"label-title-only": {"enabled": False}}},
    )
    faults = [
        (fault["id"], [node["html"][:200] for node in fault["nodes"]])
        for fault in found.response["violations"]
        if fault["impact"] != "minor"
    ]
    assert not faults, (name, faults)
    if SHOTS:
        size = page.viewport_size
        for scheme in ("light", "dark"):
            for width in (1280, 420):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 900})
                path = Path(SHOTS) / f"{name}-{scheme}-{width}.png"
                page.screenshot(path=path, full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(size)


def test_an_operator_mends_one_kind_of_failure_and_dismisses_the_other(
    failures: None,
    open_admin: Callable[..., Page],
    start_worker: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = open_admin(*OPERATOR, *OTHERS)
    articles = row(page, "app.ArticleEmbedding")
    expect(articles).to_contain_text("Stalled.")
    expect(articles).to_contain_text("No worker is running")
    looked_at(page, "overview-stalled")

    # Reads why.
    page.get_by_role("link", name="Failures (300)").click()
    long = row(page, "This text has # characters")
    secret = row(page, "This text is not allowed")
    expect(long).to_contain_text("200")
    expect(secret).to_contain_text("100")
    looked_at(page, "failures")
    long.get_by_role("link", name="Show 200").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(50)
    looked_at(page, "kind")
    page.locator("#result_list tbody tr th a").first.click()
    expect(page.locator("#content")).to_contain_text("at most 100 are allowed")
    looked_at(page, "job")

    # Mends the setting, and retries that kind alone.
    start_worker(PGEMBED_PROVIDERS=provider(max_characters=1000))
    page.goto("/admin/pgembed/job/failures/")
    long.get_by_role("button", name="Retry all").click()
    expect(page.locator("h1")).to_have_text("Retry 200 jobs?")
    looked_at(page, "confirm")
    monkeypatch.setattr(actions, "MAX_SECONDS", 0)
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("h1")).to_have_text("199 jobs left")
    looked_at(page, "the-rest")
    monkeypatch.setattr(actions, "MAX_SECONDS", 600)
    page.get_by_role("button", name="Retry the rest").click()
    expect(page.locator(".messagelist")).to_have_text("199 jobs retried.")

    # Watches them go, without touching anything.
    page.goto("/admin/pgembed/")
    expect(page.get_by_role("link", name="Failures (100)")).to_be_visible()
    expect(articles).to_contain_text("68.7 % of 320 rows", timeout=60_000)
    looked_at(page, "overview")

    # Dismisses the others.
    page.get_by_role("link", name="Failures (100)").click()
    secret.get_by_role("button", name="Dismiss all").click()
    page.get_by_role("button", name="Dismiss", exact=True).click()
    expect(page.locator(".messagelist")).to_have_text("100 jobs dismissed.")
    expect(page.locator("#content")).to_contain_text("There are no open failures.")
    assert Job.objects.filter(status="dismissed").count() == 100

    for name in ("job", "space", "worker"):
        page.goto(f"/admin/pgembed/{name}/")
        looked_at(page, f"{name}-list")
        page.locator("#result_list tbody tr th a").first.click()
        page.wait_for_url("**/change/**")
        looked_at(page, f"{name}-page")


def test_a_viewer_can_do_none_of_it(failures: None, open_admin: Callable[..., Page]) -> None:
    page = open_admin("view_job")
    content = page.locator("#content")
    for where in ("/admin/pgembed/", "/admin/pgembed/job/failures/"):
        page.goto(where)
        for name in ("Retry", "Dismiss", "Pause", "Probe", "Re-embed", "Release"):
            for role in ("button", "link"):
                expect(content.get_by_role(role, name=name)).to_have_count(0)
    page.goto("/admin/pgembed/job/?status=failed")
    expect(page.locator("select[name=action]")).to_have_count(0)

    token = page.context.cookies()
    for where in ("rows", "operate/pause"):
        answer = page.request.post(f"/admin/pgembed/job/{where}/", form={"name": "x"})
        assert answer.status == 403, token
    assert Job.objects.filter(status="failed", settled_at=None).count() == 300


def test_the_keyboard_alone_suffices(failures: None, open_admin: Callable[..., Page]) -> None:
    page = open_admin(*OPERATOR)

    def press_on(name: str, *, role: str = "link", exact: bool = False) -> None:
        target = page.get_by_role(role, name=name, exact=exact).first
        for _ in range(80):
            page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                break
        expect(target).to_be_focused()
        page.keyboard.press("Enter")

    press_on("Failures (300)")
    expect(page.locator("h1")).to_have_text("Failures")
    press_on("Retry all This text is not allowed: …", role="button")
    press_on("Retry", role="button", exact=True)
    expect(page.locator(".messagelist")).to_have_text("100 jobs retried.")
    page.goto("/admin/pgembed/")
    press_on("Pause app.ArticleEmbedding", role="button")
    expect(page.locator(".messagelist")).to_contain_text("Paused app.ArticleEmbedding.")
    press_on("Resume app.ArticleEmbedding", role="button")
    expect(page.locator(".messagelist")).to_contain_text("Resumed app.ArticleEmbedding.")
    press_on("Probe default", role="button")
    expect(page.locator(".messagelist")).to_contain_text("dimensions")


def test_it_refreshes_itself_and_leaves_the_reader_where_they_are(
    failures: None, open_admin: Callable[..., Page]
) -> None:
    page = open_admin("view_job")
    page.set_viewport_size({"width": 800, "height": 300})
    page.mouse.wheel(0, 700)
    page.wait_for_function("scrollY > 300")
    before = page.evaluate("scrollY")
    Job.objects.filter(status="failed").delete()

    articles = row(page, "app.ArticleEmbedding")
    expect(articles).not_to_contain_text("300", timeout=30_000)

    assert abs(page.evaluate("scrollY") - before) < 100


@pytest.mark.parametrize("answer", ["error", "login"])
def test_an_overview_that_cannot_be_refreshed_says_that_it_is_old(
    open_admin: Callable[..., Page], answer: str
) -> None:
    page = open_admin("view_job")
    old = page.get_by_text("This page is out of date")
    expect(old).to_be_hidden()

    def fail(route: Route) -> None:
        if answer == "error":
            route.fulfill(status=502)
        else:
            page.context.clear_cookies()
            route.continue_()

    page.route("**/admin/pgembed/", fail)
    expect(old).to_be_visible(timeout=30_000)


def test_an_overview_that_is_refreshed_again_is_no_longer_old(
    open_admin: Callable[..., Page],
) -> None:
    page = open_admin("view_job")
    page.route("**/admin/pgembed/", lambda route: route.abort(), times=1)
    old = page.get_by_text("This page is out of date")

    expect(old).to_be_visible(timeout=30_000)
    expect(old).to_be_hidden(timeout=30_000)


def test_it_works_without_javascript_also_where_two_seconds_are_not_enough(
    failures: None, open_admin: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_SECONDS", 0)
    page = open_admin(*OPERATOR, java_script_enabled=False)

    page.get_by_role("link", name="Failures (300)").click()
    page.get_by_role("button", name="Dismiss all This text is not allowed").click()
    page.get_by_role("button", name="Dismiss", exact=True).click()
    expect(page.locator("h1")).to_have_text("99 jobs left")
    expect(page.get_by_role("status")).to_have_text("1 job dismissed.")
    monkeypatch.setattr(actions, "MAX_SECONDS", 600)
    page.get_by_role("button", name="Dismiss the rest").click()
    expect(page.locator(".messagelist")).to_have_text("99 jobs dismissed.")


@pytest.mark.parametrize(("language", "direction"), [("en", "ltr"), ("ar", "rtl")])
def test_charts_are_whole_from_wherever_the_page_is_read(
    settings: Any, open_admin: Callable[..., Page], language: str, direction: str
) -> None:
    settings.LANGUAGE_CODE = language
    tally = Tally()
    tally.completed("app.ArticleEmbedding", waited=0.3)
    tally.flush(using="default")
    page = open_admin(*OPERATOR)

    expect(page.locator("html")).to_have_attribute("dir", direction)
    cut_off = page.locator(".pgembed-charts text").evaluate_all(
        """
        (texts) => texts.filter((text) => {
          const own = text.getBoundingClientRect();
          const chart = text.ownerSVGElement.getBoundingClientRect();
          return own.left < chart.left || own.right > chart.right;
        }).map((text) => text.textContent)
        """
    )
    assert page.locator(".pgembed-charts text").count() == 9
    assert cut_off == []


def test_english_sentences_end_on_the_right_on_a_page_that_is_read_from_the_right(
    failures: None, settings: Any, open_admin: Callable[..., Page]
) -> None:
    settings.LANGUAGE_CODE = "ar"
    page = open_admin(*OPERATOR)

    for path in ("", "job/failures/", f"job/{Job.objects.first().pk}/change/"):
        page.goto(f"/admin/pgembed/{path}")
        ends = page.locator("#content").evaluate(
            """
            (content) => {
              const walker = document.createTreeWalker(content, NodeFilter.SHOW_TEXT);
              const ends = [];
              const left = (node, at) => {
                const range = document.createRange();
                range.setStart(node, at);
                range.setEnd(node, at + 1);
                return range.getBoundingClientRect().left;
              };
              for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                const text = node.data.trimEnd();
                const parent = node.parentElement;
                const isShown = parent.checkVisibility() && !parent.closest(".visually-hidden");
                if (isShown && /^\\s*[A-Za-z].*[.:]$/s.test(text)) {
                  const last = text.length - 1;
                  ends.push([text.trim(), left(node, last) > left(node, last - 1)]);
                }
              }
              return ends;
            }
            """
        )
        assert ends
        assert [text for text, is_on_the_right in ends if not is_on_the_right] == []


def test_what_is_asked_for_first_is_seen_without_scrolling(
    failures: None, open_admin: Callable[..., Page]
) -> None:
    page = open_admin(*OPERATOR)
    page.set_viewport_size({"width": 1280, "height": 800})

    for asked, last in {
        "status=failed": "state",
        "status=failed&signature=This text is not allowed: …": "state",
        "status=succeeded": "finished_at",
        "": "state",
    }.items():
        page.goto(f"/admin/pgembed/job/?{asked}")
        column = page.locator(f"#result_list thead .column-{last}").bounding_box()
        seen = page.locator("#changelist .results").bounding_box()
        assert column is not None
        assert seen is not None
        assert column["x"] + column["width"] <= seen["x"] + seen["width"], asked


def test_a_long_name_does_not_widen_a_narrow_page(open_admin: Callable[..., Page]) -> None:
    make_failures(1, spec=f"app.{'Long' * 25}Embedding")
    page = open_admin(*OPERATOR)
    page.set_viewport_size({"width": 375, "height": 800})

    for path in ("", "job/failures/"):
        page.goto(f"/admin/pgembed/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_errors_of_a_jobs_history_are_lines_on_a_narrow_page(
    failures: None, open_admin: Callable[..., Page]
) -> None:
    page = open_admin(*OPERATOR)
    page.set_viewport_size({"width": 375, "height": 800})

    page.goto(f"/admin/pgembed/job/{Job.objects.filter(status='failed').first().pk}/change/")

    error = page.locator("td .pgembed-error").bounding_box()
    assert error is not None
    assert error["width"] > error["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_a_strict_content_security_policy_takes_nothing_away(
    failures: None, open_admin: Callable[..., Page]
) -> None:
    page = open_admin(*OPERATOR, *OTHERS)
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))

    def strict(route: Route) -> None:
        answer = route.fetch()
        headers = {**answer.headers, "content-security-policy": "default-src 'self'"}
        route.fulfill(response=answer, headers=headers)

    page.route("**/admin/**", strict)
    for path in ("", "job/", "job/failures/", f"job/{Job.objects.first().pk}/change/"):
        page.goto(f"/admin/pgembed/{path}")
    assert [said for said in refused if "Content Security Policy" in said] == []
