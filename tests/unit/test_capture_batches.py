"""Whatever was written, jobs are left for it, and no vectors of rows that are gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgembed_django.capture import batches
from pgembed_django.capture.batches import Batch, Gatherer, Snapshot, Step, Target
from pgembed_django.capture.pgoutput import Begin, Change, Commit, Emitted, Relation, Truncate

NOTES = Target("app.NoteEmbedding", 0, "app_noteembedding")
TITLES = Target("app.NoteTitle", 10, "app_notetitle")
OID, OTHER = 16400, 16500
AT = datetime(2026, 11, 29, tzinfo=UTC)


def gatherer(*targets: Target, columns: tuple[str, ...] = ("id",)) -> Gatherer:
    made = Gatherer()
    made.describe(Relation(OID, columns, ["id"]), dict.fromkeys(targets or (NOTES,), "id"))
    return made


def steps(batch: Batch) -> list[Step]:
    return list(batch.steps())


def written(key: str) -> Change:
    return Change(OID, None, [key])


def moved(former: str, key: str) -> Change:
    return Change(OID, [former], [key])


def deleted(key: str) -> Change:
    return Change(OID, [key], None)


# One change


def test_a_written_row_is_enqueued_for_each_spec_that_watches_its_table():
    made = gatherer(NOTES, TITLES)

    made.take(written("1"))

    assert steps(made.batch) == [("enqueue", NOTES, "1"), ("enqueue", TITLES, "1")]


def test_a_deleted_row_is_forgotten():
    made = gatherer()

    made.take(deleted("1"))

    assert steps(made.batch) == [("forget", NOTES, "1")]


def test_of_a_changed_key_the_former_one_is_forgotten_and_the_new_one_enqueued():
    made = gatherer()

    made.take(moved("1", "2"))

    assert steps(made.batch) == [("forget", NOTES, "1"), ("enqueue", NOTES, "2")]


def test_a_row_that_keeps_its_key_is_not_forgotten():
    made = gatherer(columns=("id", "body"))

    made.take(Change(OID, ["1", "old"], ["1", "new"]))

    assert steps(made.batch) == [("enqueue", NOTES, "1")]


def test_a_truncated_table_is_forgotten_as_a_whole_before_what_follows():
    made = gatherer()

    for message in (written("1"), deleted("2"), Truncate([OID]), written("3"), deleted("4")):
        made.take(message)

    assert steps(made.batch) == [
        ("forget_all", NOTES, ""),
        ("forget", NOTES, "4"),
        ("enqueue", NOTES, "3"),
    ]


def test_of_several_truncated_tables_each_is_forgotten():
    made = gatherer()
    made.describe(Relation(OTHER, ["id"], ["id"]), {TITLES: "id"})

    made.take(Truncate([OTHER, OID]))

    assert steps(made.batch) == [("forget_all", TITLES, ""), ("forget_all", NOTES, "")]


@pytest.mark.parametrize("columns", [["id"], []])
def test_a_table_that_nobody_watches_leads_to_nothing(columns):
    made = Gatherer()
    made.describe(Relation(OID, columns, columns), {})

    for message in (written("1"), deleted("1"), Truncate([OID])):
        made.take(message)

    assert steps(made.batch) == []


# Which column is the key


@pytest.mark.parametrize("columns", [("id", "body"), ("body", "id")])
def test_the_key_is_found_among_all_columns_by_its_name(columns):
    made = gatherer(columns=columns)

    made.take(Change(OID, None, [{"id": "7", "body": "text"}[name] for name in columns]))

    assert steps(made.batch) == [("enqueue", NOTES, "7")]


def test_the_key_is_found_among_the_columns_of_a_composite_identity():
    made = Gatherer()
    made.describe(Relation(OID, ["tenant", "id"], ["tenant", "id"]), {NOTES: "id"})

    made.take(Change(OID, ["1", "7"], ["2", "7"]))
    made.take(Change(OID, ["2", "8"], None))

    assert steps(made.batch) == [("forget", NOTES, "8"), ("enqueue", NOTES, "7")]


def test_in_a_log_that_is_older_than_a_renaming_the_key_is_the_column_of_the_identity():
    made = Gatherer()
    made.describe(Relation(OID, ["body", "former_id"], ["former_id"]), {NOTES: "id"})

    made.take(Change(OID, None, ["text", "7"]))

    assert steps(made.batch) == [("enqueue", NOTES, "7")]


def test_models_of_one_table_may_have_other_keys():
    made = Gatherer()
    made.describe(Relation(OID, ["id", "slug"], ["id"]), {NOTES: "id", TITLES: "slug"})

    made.take(Change(OID, None, ["7", "seven"]))

    assert steps(made.batch) == [("enqueue", NOTES, "7"), ("enqueue", TITLES, "seven")]


# Messages of triggers


@pytest.mark.parametrize("verb", ["enqueue", "forget"])
def test_a_message_is_about_each_of_its_keys(verb):
    made = Gatherer()

    made.take(Emitted(verb, *NOTES, ["1", "2"]))

    assert steps(made.batch) == [(verb, NOTES, "1"), (verb, NOTES, "2")]


def test_a_message_about_all_rows_needs_no_keys():
    made = Gatherer()

    made.take(Emitted("enqueue", *NOTES, ["1"]))
    made.take(Emitted("forget_all", *NOTES, []))

    assert steps(made.batch) == [("forget_all", NOTES, "")]


# Any order


@dataclass
class Table:
    """What is in a table and what we have of it, as the statements of the steps would leave it."""

    rows: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    vectors: set[str] = field(default_factory=set)

    def do(self, verb: str, key: str, other: str) -> Change | Truncate:
        """Write a row as far as it is possible, and return what the log has of it."""
        match verb:
            case "delete" if key in self.rows:
                self.rows.remove(key)
                self.changed.add(key)
                return deleted(key)
            case "move" if key in self.rows and other not in self.rows:
                self.rows = self.rows - {key} | {other}
                self.changed |= {key, other}
                return moved(key, other)
            case "truncate":
                self.rows.clear()
                return Truncate([OID])
        self.rows.add(key)
        self.changed.add(key)
        return written(key)

    def apply(self, batch: Batch) -> None:
        for verb, _, key in batch.steps():
            if verb == "forget_all":
                self.pending.clear()
                self.vectors.clear()
                continue
            self.pending.add(key)
            if verb == "forget":
                self.vectors.discard(key)


verbs = st.sampled_from(["write", "write", "delete", "move", "truncate"])
keys = st.sampled_from(["1", "2", "3", "4"])


@given(st.lists(st.tuples(verbs, keys, keys, st.booleans()), max_size=30), st.sets(keys))
def test_after_changes_in_any_order_each_row_has_a_job_and_none_that_is_gone_has_vectors(
    changes, rows
):
    table = Table(rows=set(rows), vectors=set(rows))
    made = gatherer()
    made.take(Begin(700))
    for *change, is_flushed in changes:
        made.take(table.do(*change))
        if is_flushed:
            table.apply(made.batch)
            made.flushed()
    made.take(Commit(1000, AT))
    table.apply(made.batch)

    assert table.vectors <= table.rows
    assert table.pending >= table.rows & table.changed
    if not any(verb == "truncate" for verb, *_ in changes):
        assert table.pending == table.changed


# Positions and transactions


def test_a_batch_ends_with_its_last_whole_transaction():
    made = gatherer()
    for message in (Begin(700), written("1"), Commit(1000, AT), Begin(701), written("2")):
        made.take(message)

    assert (made.batch.position, made.batch.read_at) == (1000, AT)
    assert made.batch.xids == {700, 701}
    assert made.is_inside


def test_the_rest_of_a_transaction_belongs_to_the_same_one():
    made = gatherer()
    for message in (Begin(700), written("1"), Commit(1000, AT), Begin(701), written("2")):
        made.take(message)

    made.flushed()

    assert (made.batch.position, made.batch.xids) == (None, {701})
    assert steps(made.batch) == []


def test_between_transactions_a_batch_begins_with_none():
    made = gatherer()
    for message in (Begin(700), written("1"), Commit(1000, AT)):
        made.take(message)

    made.flushed()

    assert (made.batch.position, made.batch.xids, made.is_inside) == (None, set(), False)


def test_a_batch_is_full_in_the_middle_of_a_large_transaction():
    made = gatherer()
    made.take(Begin(700))
    for number in range(batches.MOST_KEYS):
        assert not made.batch.is_full
        made.take(written(str(number)))

    assert made.batch.is_full
    assert made.batch.position is None


# Which transactions are visible


def test_a_snapshot_is_read_as_postgres_writes_it():
    assert Snapshot.parse("10:20:12,15") == Snapshot(10, 20, frozenset({12, 15}))
    assert Snapshot.parse("10:10:") == Snapshot(10, 10, frozenset())


@pytest.mark.parametrize(
    ("xid", "is_shown"), [(9, True), (10, False), (11, True), (15, False), (19, True)]
)
def test_what_is_in_progress_is_not_visible(xid, is_shown):
    assert Snapshot.parse("10:20:10,15").shows(xid) == is_shown


@pytest.mark.parametrize("xid", [20, 21, 1000])
def test_what_no_transaction_has_ended_after_is_not_visible(xid):
    # A snapshot ends behind the last transaction that has ended, and others are waiting.
    assert not Snapshot.parse("20:20:").shows(xid)


epochs = st.integers(0, 2**30).map(lambda epoch: epoch << 32)
distances = st.integers(-(2**31) + 1, 2**31 - 1)


@given(epochs, st.integers(3, 2**32 - 1), st.sets(st.integers(1, 1000)), distances)
def test_a_transaction_is_told_by_its_last_32_bits(epoch, low, in_progress, distance):
    following = (1 << 33) + epoch + low
    numbers = {following - behind for behind in in_progress}
    oldest = min(numbers, default=following)
    text = f"{oldest}:{following}:{','.join(map(str, sorted(numbers)))}"
    whole = following + distance

    shown = Snapshot.parse(text).shows(whole % 2**32)

    assert shown == (whole < following and whole not in numbers)
