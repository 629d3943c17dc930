"""The demo, step by step."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from library.collect import Documented, collect

from demo import chat, coverage, database, edits, load, provider, searches, web
from demo.processes import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The demo. ``timeout_seconds``: the longest time without progress. ``port``: None for 8000."""

    say: Callable[[str], object]
    timeout_seconds: float
    port: int | None

    def run(self, *, serve: bool) -> None:
        """Show everything. Raises DemoFailed when it cannot go on."""
        port = web.free_port(self.port) if serve else None
        self.say(database.require())
        provider.require()
        database.prepare()
        began_at = coverage.now()
        documented = collect()
        self.say(f"Python {platform.python_version()}'s library: {load.entries(documented)}")
        self.say(f"Articles: {load.articles()}")
        with Process("worker", "embed_worker") as worker:
            self._embed(worker, began_at)
            self._search()
            self._edit(worker)
            self._delete()
            self._restore(worker, documented)
            self._chat(worker)
            if port:
                self._serve(worker, port)

    def _embed(self, worker: Process, began_at: datetime) -> None:
        coverage.wait_for_worker(worker, timeout_seconds=self.timeout_seconds)
        began = time.monotonic()
        seen = coverage.wait_until_complete(worker, timeout_seconds=self.timeout_seconds)
        seconds = time.monotonic() - began
        count = coverage.embedded_since(began_at)
        if count:
            rate = f"{count / seconds:,.0f} rows per second"
            self.say(f"{count:,} rows embedded in {seconds:.1f} s: {rate}")
        else:
            self.say(f"Nothing to embed: all {seen.total:,} rows are unchanged")
        self.say(f"Coverage 100 %: {seen}")

    def _search(self) -> None:
        for line in searches.lines():
            self.say(line)
        self.say("")

    def _edit(self, worker: Process) -> None:
        for edit in edits.EDITS:
            milliseconds = edits.measure(edit, worker)
            self.say(
                f"{edit.name} edited through {edit.how}: searchable by its new text "
                f"{milliseconds:.0f} ms after the commit"
            )
            self.say(f"  {edit.question!r} finds {edits.found_first(edit.question)}")

    def _delete(self) -> None:
        question = edits.ITS_QUESTION
        before = edits.found_first(question)
        edits.delete(edits.DELETED)
        self.say(f"{edits.DELETED} deleted: gone from the search at once")
        self.say(f"  {question!r} found {before}, now it finds {edits.found_first(question)}")

    def _restore(self, worker: Process, documented: list[Documented]) -> None:
        load.entries(documented, show=False)
        coverage.wait_until_complete(worker, timeout_seconds=self.timeout_seconds, show=False)
        self.say("All three have their own text again")

    def _chat(self, worker: Process) -> None:
        self.say("On the chat page, tasks extract memories from what is said")
        for line in chat.lines(worker, timeout_seconds=self.timeout_seconds):
            self.say(line)

    def _serve(self, worker: Process, port: int) -> None:
        with web.server(port) as server, suppress(KeyboardInterrupt):
            address = web.wait_until_ready(server, port)
            self.say(f"\nSearch   {address}")
            self.say(f"Chat     {address}chat/")
            self.say(f"Admin    {address}admin/   (login {database.USERNAME}, {database.PASSWORD})")
            self.say("Ctrl-C stops everything")
            while True:
                worker.require_alive()
                server.require_alive()
                time.sleep(0.5)
