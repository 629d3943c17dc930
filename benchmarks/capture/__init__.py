"""What reads the write-ahead log: how many row changes a second become jobs, and what it costs.

Rows are written while nobody reads: in one transaction, in many of a thousand, and in many of one;
and rows that have vectors are deleted. Then a process of its own reads on to the end, on the cores
that the server has, too. It is timed from its connection to the last job's commit. Its peak memory
is compared for large transactions and for small ones, and that of the server's process is shown.

Then ``pgbench`` inserts rows one by one into a table that is not published, of the same database
and of another one. That is compared with and without a reader, whose CPU time is added to that of
the server's process that sends to it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from benchmarks import captures, compare, pgbench, postgres, usage
from benchmarks.capture.reader import Reader, Sender, await_sender
from benchmarks.compare import Bar, Comparison, Figures

LEAST_ROWS, LEAST_UNRELATED, MOST_MEMORY = 20_000, 0.9, 1.2
CLIENTS = 8

INSERT = """
    DO $$
    BEGIN
        FOR number IN 1..{transactions} LOOP
            INSERT INTO app_article (title, contents, is_public, views)
            SELECT 'Article ' || n, 'Reading the whole table is cheaper.', true, 0
            FROM generate_series(1, {size}) AS n;
            COMMIT;
        END LOOP;
    END
    $$;
"""
EMBED = """
    INSERT INTO app_articleembedding (
        source_id, space_id, position, start_offset, end_offset, chunk_digest, text_digest,
        embedding
    )
    SELECT id, 1, 0, 0, 0, '', '', '[1, 0]'
    FROM app_article;
    TRUNCATE pgembed_job;
    ANALYZE app_articleembedding;
"""
DELETE = "DELETE FROM app_article"
PENDING = "SELECT count(*) FROM pgembed_job WHERE status = 'pending'"
EMBEDDED = "SELECT count(*) FROM app_articleembedding"
UNRELATED = "CREATE TABLE unrelated (id bigserial PRIMARY KEY, title text)"
SAVE = "INSERT INTO unrelated (title) VALUES ('Nobody reads this');"
WRITTEN = "SELECT count(*) FROM unrelated"
END = "SELECT pg_current_wal_flush_lsn()::text"
IS_SENT = "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication WHERE pid = %s"
DELETED = "deleted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the sizes."""
    compare.add_arguments(parser, runs=3)
    parser.add_argument("--rows", type=int, default=500_000, help="to be read")
    parser.add_argument("--seconds", type=float, default=10, help="of unrelated writes")
    parser.add_argument("--only", choices=["rows", "unrelated"])


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if every bar was reached."""
    comparisons: list[Comparison] = []
    with postgres.database() as server, TemporaryDirectory() as folder:
        if not postgres.reads_log(server.url):
            raise SystemExit("wal_level is not logical on this server: there is nothing to read.")
        if options.only in (None, "rows"):
            comparisons += [_rows(capture, options) for capture in captures.READ]
        if options.only in (None, "unrelated"):
            comparisons += _unrelated(server, Path(folder), options)
    return compare.report(comparisons, options)


# Rows that become jobs


def _rows(capture: str, options: argparse.Namespace) -> Comparison:
    rows = options.rows
    many = "by 1,000 rows a transaction"
    sizes = {f"{rows:,} rows in one transaction": rows, many: 1000, "by one row a transaction": 1}
    contenders = {name: _written(capture, rows, size) for name, size in sizes.items()}
    contenders[DELETED] = _deleted(capture, rows)
    comparison = Comparison(f"{rows:,} rows become jobs, capture: {capture}")
    comparison.alternate(contenders, runs=options.runs)
    large = next(iter(sizes))
    comparison.bars += [Bar("rows/s", name, [], least=LEAST_ROWS) for name in contenders]
    comparison.bars.append(Bar("MB", large, [many], most=MOST_MEMORY))
    return comparison


def _written(capture: str, rows: int, size: int) -> compare.Contender:
    def measure() -> Figures:
        with _begun(capture) as (reader, connection):
            _write(connection, rows, size)
            return _read(reader, connection, rows)

    return measure


def _deleted(capture: str, rows: int) -> compare.Contender:
    def measure() -> Figures:
        with _begun(capture) as (reader, connection):
            _write(connection, rows, rows)
            reader.told("catch up")
            connection.execute(EMBED)
            connection.execute(DELETE)
            figures = _read(reader, connection, rows)
            assert connection.execute(EMBEDDED).fetchone() == (0,)
            return figures

    return measure


@contextmanager
def _begun(capture: str) -> Iterator[tuple[Reader, psycopg.Connection]]:
    with (
        postgres.fresh_database() as url,
        Reader(url, capture) as reader,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        yield reader, connection


def _write(connection: psycopg.Connection, rows: int, size: int) -> None:
    size = min(size, rows)
    # The writer is not measured: its transactions of one row are not to wait for the disk.
    connection.execute("SET synchronous_commit = off")
    connection.execute(INSERT.format(transactions=rows // size, size=size))


def _read(reader: Reader, connection: psycopg.Connection, rows: int) -> Figures:
    """Have all read that was written, and see that there is a job for each of the rows."""
    connection.execute("CHECKPOINT")
    before = usage.cpu_seconds(reader.process.pid)
    with Sender(connection) as sender:
        seconds = float(reader.told("catch up"))
    [jobs] = connection.execute(PENDING).fetchone() or [0]
    assert jobs == rows, f"{jobs} jobs for {rows} rows"
    return {
        "rows/s": rows / seconds,
        "reader CPU, s": usage.cpu_seconds(reader.process.pid) - before,
        "MB": usage.peak_bytes(reader.process.pid) / 2**20,
        **sender.figures,
    }


# Writes that are nobody's business


def _unrelated(
    server: postgres.Postgres, folder: Path, options: argparse.Namespace
) -> list[Comparison]:
    script = folder / "unrelated.sql"
    script.write_text(SAVE)
    comparisons = []
    for where in ("the same database", "another database"):
        comparison = Comparison(f"Unrelated writes in {where}, {CLIENTS} clients")
        other = server.url if where == "another database" else ""
        alone, beside = "nobody reads", "beside a reader"
        comparison.alternate(
            {
                name: _saved(other, script, options.seconds, is_read=name == beside)
                for name in (alone, beside)
            },
            runs=options.runs,
        )
        comparison.bars.append(Bar("saves/s", beside, [alone], least=LEAST_UNRELATED))
        comparisons.append(comparison)
    return comparisons


def _saved(other: str, script: Path, seconds: float, *, is_read: bool) -> compare.Contender:
    def measure() -> Figures:
        with (
            postgres.fresh_database() as url,
            psycopg.connect(other or url, autocommit=True) as written,
        ):
            written.execute(f"DROP TABLE IF EXISTS unrelated; {UNRELATED}")
            saving = partial(pgbench.save, other or url, script, clients=CLIENTS, seconds=seconds)
            return _beside_reader(url, saving, written) if is_read else saving()

    return measure


def _beside_reader(url: str, saving: compare.Contender, written: psycopg.Connection) -> Figures:
    with Reader(url, "wal") as reader, psycopg.connect(url, autocommit=True) as connection:
        reader.told("stream")
        pids = {"sender": await_sender(connection), "reader": reader.process.pid}
        before = {name: usage.cpu_seconds(pid) for name, pid in pids.items()}
        saved = saving()
        _await_sent(connection, pids["sender"])
        used = {name: usage.cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    [rows] = written.execute(WRITTEN).fetchone() or [0]
    a_million = {f"{name} CPU, s a million rows": used[name] * 1e6 / rows for name in pids}
    return {**saved, **a_million}


def _await_sent(connection: psycopg.Connection, pid: int) -> None:
    """Wait until the server's process has read as far as was written by now."""
    [end] = connection.execute(END).fetchone() or [""]
    while connection.execute(IS_SENT, [end, pid]).fetchone() == (False,):
        time.sleep(0.02)
