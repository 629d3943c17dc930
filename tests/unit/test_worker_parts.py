"""The parts of a worker that need no database: liveness, limits, the port."""

from __future__ import annotations

import argparse
import resource
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from queue import SimpleQueue

import pytest

from pgembed_django.ops.formatting import Address, address, rows_text
from pgembed_django.queue import limits, port, sessions
from pgembed_django.queue.limits import MIB, Limits, stopped_by_signals
from pgembed_django.queue.liveness import Liveness, Watchdog, WorkerRecord
from pgembed_django.queue.port import Answer, Server
from pgembed_django.queue.work import Work
from tests import played


class Loop:
    """A thread that ticks once, and then stands where a test wants it to."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._stands = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()
        self._stands.wait()

    def __exit__(self, *_: object) -> None:
        self._gate.put(None)
        self._thread.join()

    def _run(self) -> None:
        begin_round(self._liveness)
        self._stands.set()
        self._gate.get()


def begin_round(liveness: Liveness) -> None:
    liveness.loop, liveness.round_began_at = threading.get_ident(), liveness._clock()


class Idle:
    """What a watchdog sees of a worker that has not begun."""

    using = "default"
    record: WorkerRecord | None = None
    is_cut_off = False

    def __init__(self, liveness: Liveness) -> None:
        self.liveness = liveness
        self.works: list[Work] = []


@pytest.fixture
def clock() -> played.Clock:
    return played.Clock()


@pytest.fixture
def liveness(clock: played.Clock) -> Liveness:
    return Liveness(stuck_seconds=60, clock=clock)


def test_a_loop_is_stuck_from_its_time_on_and_not_before(liveness, clock):
    with Loop(liveness):
        clock.now += 60
        assert liveness.stuck() is None
        clock.now += 1
        seconds, where, is_in_database = liveness.stuck()

    assert (seconds, is_in_database) == (61, False)
    assert where.startswith("tests.unit.test_worker_parts:")
    assert where.endswith(" in Loop._run")


def test_what_has_not_begun_or_has_ended_is_not_stuck(liveness, clock):
    assert liveness.stuck() is None
    with Loop(liveness):
        clock.now += 100
        assert liveness.stuck()
        liveness.round_began_at = None
        assert liveness.stuck() is None


def test_zero_never_is_stuck(clock):
    liveness = Liveness(stuck_seconds=0, clock=clock)
    with Loop(liveness):
        clock.now += 1e9
        assert liveness.stuck() is None


def test_the_watchdog_tells_once_that_a_loop_is_stuck_and_once_that_it_moves(
    liveness, clock, tmp_path, caplog
):
    file = tmp_path / "heartbeat"
    watchdog = Watchdog(Idle(liveness), file=file)
    with caplog.at_level("WARNING", logger="pgembed_django"):
        with Loop(liveness):
            clock.now += 61
            watchdog.look()
            watchdog.look()
        assert not file.exists()
        begin_round(liveness)
        watchdog.look()
        watchdog.look()

    assert [record.event for record in caplog.records] == [
        "pgembed.worker_stuck",
        "pgembed.worker_moved",
    ]
    assert file.exists()


def test_a_heartbeat_file_that_cannot_be_written_is_told_once(liveness, tmp_path, caplog):
    watchdog = Watchdog(Idle(liveness), file=tmp_path / "gone" / "heartbeat")
    with caplog.at_level("WARNING", logger="pgembed_django"):
        watchdog.look()
        watchdog.look()

    [record] = caplog.records
    assert record.event == "pgembed.heartbeat_file_lost"
    assert "gone" in record.path


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Let the system tell that this process uses so many MiB."""
    path = tmp_path / "statm"
    monkeypatch.setattr(limits, "STATM", path)
    return lambda mib: path.write_text(f"0 {mib * MIB // resource.getpagesize()} 0")


def test_memory_is_looked_at_once_a_second(use, clock):
    some = Limits(max_memory_mib=100, clock=clock)

    use(90)
    assert some.reached(0) == ""
    use(101)
    assert some.reached(0) == ""
    clock.now += 1
    assert some.reached(0) == "it uses 101 MiB, --max-memory is 100"
    use(102)
    assert some.reached(0) == ""


def test_without_limits_it_may_use_what_it_likes(use):
    use(10**9)

    assert Limits().reached(10**9) == ""


@pytest.mark.parametrize(
    ("rows", "told"),
    [(0, "no rows"), (1, "1 row"), (9010, "9,010 rows")],
)
def test_rows_are_counted_in_words(rows: int, told: str) -> None:
    assert rows_text(rows) == told


def test_the_memory_is_that_of_this_process(monkeypatch):
    now = limits.memory_bytes()
    assert 10 * MIB < now < 10_000 * MIB
    monkeypatch.setattr(limits, "STATM", Path("/nowhere"))
    # Where only the peak is known.
    assert limits.memory_bytes() >= now // 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("9100", ("127.0.0.1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        ("worker.internal:80", ("worker.internal", 80)),
    ],
)
def test_an_address_is_read(value, expected):
    assert address(value) == Address(*expected)


@pytest.mark.parametrize(
    "value", ["", "host", "host:", "::1:9100", "99999", "1.5", "-1", "a:b", "a..b:0"]
)
def test_what_is_no_address_is_refused_with_the_value(value):
    with pytest.raises(argparse.ArgumentTypeError, match="is no address"):
        address(value)


@pytest.fixture
def server():
    def broken(_: str) -> Answer:
        raise RuntimeError("a page")

    with Server("127.0.0.1", 0, {"/ok": lambda accept: Answer(accept), "/broken": broken}) as one:
        yield one


def get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.server_port}{path}", headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_page_gets_the_accept_header(server):
    assert get(server, "/ok?a=b", Accept="text/x") == (200, "text/x")
    assert get(server, "/ok/", Accept="text/y") == (200, "text/y")


def test_another_path_names_those_there_are(server):
    assert get(server, "/nothing") == (404, "There are: /ok /broken\n")


def test_a_port_without_a_file_descriptor_waits_for_one(server, monkeypatch):
    waits: SimpleQueue[float] = SimpleQueue()
    monkeypatch.setattr(time, "sleep", waits.put)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            client.connect(("127.0.0.1", server.server_port))
            assert waits.get(timeout=10) == port.ACCEPT_SECONDS
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        client.sendall(b"GET /ok HTTP/1.0\r\n\r\n")

        assert b" 200 " in client.recv(1000)


def test_a_page_that_fails_is_told_and_the_next_one_answered(server, caplog):
    with caplog.at_level("WARNING", logger="pgembed_django"):
        with pytest.raises(OSError, match="closed connection"):
            get(server, "/broken")
        assert get(server, "/ok")[0] == 200

    assert [record.event for record in caplog.records] == ["pgembed.page_failed"]
    assert "RuntimeError: a page" in caplog.text


def test_a_client_that_says_nothing_holds_nobody_up(server):
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert get(server, "/ok")[0] == 200


def test_a_head_has_no_body(server):
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/ok", method="HEAD")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert (answer.status, answer.read()) == (200, b"")


def test_a_port_in_use_is_refused_when_the_server_is_made(server):
    with pytest.raises(OSError, match="Address already in use"):
        Server("127.0.0.1", server.server_port, {})


def test_a_server_that_vanishes_is_noticed_within_a_minute():
    with socket.socket() as wire:
        sessions.notice_silence(wire.fileno())

        def get(option: int) -> int:
            return wire.getsockopt(socket.IPPROTO_TCP, option)

        probes = get(socket.TCP_KEEPINTVL) * get(socket.TCP_KEEPCNT)
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert get(socket.TCP_KEEPIDLE) + probes <= 60
        assert 0 < get(socket.TCP_USER_TIMEOUT) <= 60_000


def test_a_socket_in_the_file_system_needs_no_such_thing():
    one, other = socket.socketpair()
    with one, other:
        sessions.notice_silence(one.fileno())
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_a_process_that_can_open_nothing_more_notices_silence_too():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as wire:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            sessions.notice_silence(wire.fileno())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_signal_stops_a_worker_though_a_projects_code_has_replaced_the_handler():
    asked = []
    with stopped_by_signals(lambda: asked.append("stop")) as handle_again:
        signal.signal(signal.SIGTERM, lambda *_: asked.append("the library's"))
        handle_again()
        signal.raise_signal(signal.SIGTERM)

    assert asked == ["stop"]
