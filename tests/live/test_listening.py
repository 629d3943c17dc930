"""I9: the table is the truth. Whatever becomes of the notifications, all is embedded."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from django.db import connection, connections

from pgembed_django.models import Job
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import is_asleep, providers, wait_for_log

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_without_notifications_rows_are_found_by_polling(start_drowsy_worker):
    worker = start_drowsy_worker(PGEMBED_NOTIFY=False, PGEMBED_POLL_SECONDS=0.3)
    wait_for_log(worker, "works on")

    for number in range(3):
        wait_until(is_polling)
        assert not is_asleep()  # on watch, that is: writers are spared the notification
        note = Note.objects.create(body=f"note {number}")
        wait_until(lambda note=note: is_embedded(note))


def test_a_listener_whose_backend_is_terminated_listens_again_at_once(start_drowsy_worker):
    start_drowsy_worker()
    wait_until(is_asleep)
    [[listener]] = on_watch()

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listener])
    wait_until(lambda: [[listener]] != on_watch() and is_asleep())
    note = Note.objects.create(body="after")

    wait_until(lambda: is_embedded(note))


def test_a_listener_on_a_dead_wire_holds_nothing_up(start_worker, wire):
    start_worker(DATABASES=databases(HOST="127.0.0.1", PORT=wire.port), PGEMBED_POLL_SECONDS=0.5)
    wait_until(is_asleep)

    wire.cut_the_listener()
    note = Note.objects.create(body="nobody hears of it")

    wait_until(lambda: is_embedded(note))


def test_a_worker_whose_connections_a_proxy_keeps_and_forgets_ends_and_charges_nobody(
    start_worker, wire, server
):
    """TCP finds nothing wrong: the proxy takes what is sent, and passes nothing on."""
    settings = {
        "DATABASES": databases(HOST="127.0.0.1", PORT=wire.port),
        "PGEMBED_PROVIDERS": providers(server),
        "PGEMBED_POLL_SECONDS": 0.5,
        "PGEMBED_STUCK_SECONDS": 2,
    }
    server.gate.clear()
    worker = start_worker(**settings)
    note = Note.objects.create(body="held")
    wait_until(lambda: server.times)

    wire.cut_all()

    assert worker.wait(timeout=60) == 1
    assert "Gave up after" in worker.log.read_text()
    assert list(Job.objects.values_list("status", "attempts", "crashes")) == [("pending", 0, 0)]
    server.gate.set()
    start_worker(**settings)  # as its supervisor does
    wait_until(lambda: is_embedded(note))


def test_a_direct_alias_beside_a_pooler_is_notified(start_drowsy_worker, pooler):
    start_drowsy_worker(
        DATABASES={**databases(HOST="127.0.0.1", PORT=pooler), "direct": databases()["default"]},
        PGEMBED_WORKER_DATABASE="direct",
    )
    wait_until(is_asleep)

    with psycopg.connect(**through(pooler)) as application:
        insert = "INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'pooled', 0)"
        application.execute(insert)

    wait_until(lambda: is_embedded(Note.objects.first()))


def test_a_worker_behind_a_pooler_notices_it_and_polls(start_worker, pooler):
    worker = start_worker(
        DATABASES=databases(HOST="127.0.0.1", PORT=pooler), PGEMBED_POLL_SECONDS=0.5
    )

    wait_for_log(worker, "Notifications do not arrive, polling instead")
    note = Note.objects.create(body="polled")

    wait_until(lambda: is_embedded(note))
    assert not is_asleep()


@pytest.fixture
def pooler(wire) -> Iterator[int]:
    """The port of a pgbouncer in transaction mode. It may not enter the socket's folder."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        pytest.skip("pgbouncer is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not tmp_path, which another user cannot enter: it refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="pgembed-pooler-"))
    ini = folder / "pgbouncer.ini"
    ini.write_text(f"""
[databases]
* = host=127.0.0.1 port={wire.port} user={connections["default"].settings_dict["USER"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
# So that LISTEN and NOTIFY meet in one connection to the server.
default_pool_size = 1
server_check_delay = 0
""")
    folder.chmod(0o755)
    ini.chmod(0o644)
    as_user = ["-u", "nobody"] if os.getuid() == 0 else []
    process = subprocess.Popen(
        [binary, "-q", *as_user, str(ini)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: can_connect(port))
        yield port
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


class Wire:
    """Passes on what is sent to the database, until connections are cut."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._is_cut = threading.Event()
        self._cuts = 0
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_the_listener(self) -> None:
        """Nothing arrives from now on, and nobody hangs up."""
        self._is_cut.set()

    def cut_all(self) -> None:
        """Nothing arrives over the connections there are. Those to come are passed on."""
        self._cuts += 1

    def close(self) -> None:
        self._over.set()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=[client], daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        server, is_listener, cuts = connect_to_server(), False, self._cuts
        # Whoever is killed in the middle of a statement resets its connection.
        with client, server, suppress(ConnectionError):
            while not self._over.is_set():
                if cuts < self._cuts or (is_listener and self._is_cut.is_set()):
                    self._over.wait()
                    return
                readable, _, _ = select.select([client, server], [], [], 0.02)
                if cuts < self._cuts or (is_listener and self._is_cut.is_set()):
                    continue
                for one, other in ((client, server), (server, client)):
                    if one in readable:
                        data = one.recv(65536)
                        is_listener |= b"LISTEN pgembed" in data
                        if not data:
                            return
                        other.sendall(data)


@pytest.fixture
def wire() -> Iterator[Wire]:
    one = Wire()
    yield one
    one.close()


def connect_to_server() -> socket.socket:
    parameters = connection.get_connection_params()
    host, port = parameters.get("host") or "127.0.0.1", parameters.get("port") or 5432
    if not host.startswith("/"):
        return socket.create_connection((host, int(port)))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


def databases(**changes: object) -> dict[str, object]:
    settings = connections["default"].settings_dict
    kept = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    database = {name: settings[name] for name in kept}
    if changes:
        database["OPTIONS"] = {
            name: value for name, value in settings["OPTIONS"].items() if name != "host"
        } | {"sslmode": "disable"}
    return {"default": {**database, **changes}}


def through(port: int) -> dict[str, object]:
    settings = connections["default"].settings_dict
    return {
        "host": "127.0.0.1",
        "port": port,
        "dbname": settings["NAME"],
        "user": settings["USER"],
        "password": settings["PASSWORD"] or None,
        "prepare_threshold": None,
    }


def can_connect(port: int) -> bool:
    try:
        psycopg.connect(**through(port)).close()
    except psycopg.OperationalError:
        return False
    return True


def is_polling() -> bool:
    """Whether a worker has looked for what is due, and waits since."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND query LIKE '%extract(epoch FROM min(%' "
            "AND clock_timestamp() - state_change > interval '100 ms'"
        )
        return cursor.fetchone()[0] > 0


def on_watch() -> list[tuple[int]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND mode = 'ExclusiveLock' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return [list(row) for row in cursor.fetchall()]


def is_embedded(note: Note) -> bool:
    return NoteEmbedding.objects.filter(source=note, embedding__isnull=False).exists()
