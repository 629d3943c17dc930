"""The mutants: for each invariant of the design, breaks of the mechanisms that hold it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """One break. ``before`` occurs exactly once in ``file``, a file of the package."""

    invariant: str
    name: str
    file: str
    before: str
    after: str
    test: str
    """The narrowest test, or file of tests, that turns red."""

    @property
    def path(self) -> Path:
        return Path("pgembed_django", self.file)

    def broken(self, repository: Path) -> str:
        """Return the text of the file with the break."""
        text = (repository / self.path).read_text()
        if (times := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: {self.before!r} is {times} times in {self.path}.")
        return text.replace(self.before, self.after)


MUTANTS = [
    # I1: no committed write is lost.
    Mutant(
        "I1",
        "do-nothing",
        "triggers/sql/enqueue_end_v1.sql",
        "DO UPDATE SET",
        # The rest is parsed, but never reached.
        "DO NOTHING; RETURN; UPDATE {tables}.pgembed_job AS job SET",
        "db/test_i1_no_write_is_lost.py::test_a_write_that_commits_after_the_claim_is_embedded_too",
    ),
    Mutant(
        "I1",
        "one-active-job",
        "migrations/0001_initial.py",
        "UniqueConstraint(condition=models.Q(('status', 'pending'))",
        "UniqueConstraint(condition=models.Q(('status__in', ['pending', 'running']))",
        "db/test_i1_no_write_is_lost.py::"
        "test_a_write_while_the_worker_is_at_the_row_is_embedded_after_it",
    ),
    Mutant(
        "I1",
        "newer-job-unseen",
        "queue/jobs/settling.py",
        "if database.rows(using, table(SUPERSEDE_OURS), **fence):",
        "if False:",
        "db/test_i1_no_write_is_lost.py::test_what_ends_beside_a_newer_job_is_superseded_by_it",
    ),
    Mutant(
        "I1",
        "integrity-error",
        "queue/jobs/settling.py",
        "        except IntegrityError:\n",
        "        except ZeroDivisionError:\n",
        "db/test_i1_no_write_is_lost.py::"
        "test_a_newer_job_that_commits_while_the_older_one_ends_supersedes_it[reap]",
    ),
    Mutant(
        "I1",
        "busy-unit-is-dropped",
        "spaces/ripples.py",
        "for unit in busy]",
        "for unit in busy[:0]]",
        "db/test_ripples.py::test_a_unit_that_a_writer_has_locked_goes_back_to_a_ripple",
    ),
    Mutant(
        "I1",
        "rest-of-a-page-is-dropped",
        "spaces/ripples.py",
        "kept = ids.values() if len(found) > size else ()",
        "kept: Sequence[int] = ()",
        "db/test_ripples.py::test_many_units_are_expanded_in_pages",
    ),
    Mutant(
        "I1",
        "enqueue-after-the-commit",
        "spaces/reembedding.py",
        "database.rows(using, statement, spec=spec.key, path=UNIT, source_pks=source_pks)",
        "given = dict(spec=spec.key, path=UNIT, source_pks=source_pks); "
        "run = lambda given=given: database.rows(using, statement, **given); "
        "__import__('django.db').db.transaction.on_commit(run, using=using)",
        "db/test_enqueue.py::test_a_process_that_is_killed_at_its_commit_loses_nothing",
    ),
    Mutant(
        "I1",
        "steady-writes-starve-ripples",
        "embedding/handler.py",
        "RIPPLES_SECONDS if claims",
        'float("inf") if claims',
        "db/test_enqueue.py::test_a_worker_finds_them_beside_a_steady_load_of_writes",
    ),
    Mutant(
        "I1",
        "sleep-before-ripples",
        "embedding/handler.py",
        "if claims else 0.0",
        "if True else 0.0",
        "db/test_enqueue.py::test_a_worker_finds_them_at_once_if_it_claims_nothing",
    ),
    # I2: the application's transactions never fail or wait because of us.
    Mutant(
        "I2",
        "no-lock-timeout",
        "core/database.py",
        "set_config('lock_timeout', %(wait)s, true)",
        "set_config('lock_timeout', left(%(wait)s, 0) || '0', true)",
        "db/test_i2_writers_never_wait.py::"
        "test_a_writer_that_waits_for_us_first_is_not_chosen_in_a_deadlock_either",
    ),
    Mutant(
        "I2",
        "claim-stops-at-a-lock",
        "queue/jobs/claims.py",
        "            LIMIT %(limit)s\n            FOR UPDATE SKIP LOCKED",
        "            LIMIT %(limit)s\n            FOR UPDATE NOWAIT",
        "db/test_i1_no_write_is_lost.py::test_an_open_write_costs_the_other_rows_nothing",
    ),
    Mutant(
        "I2",
        "settling-stops-at-a-lock",
        "queue/jobs/leases.py",
        "FOR NO KEY UPDATE SKIP LOCKED",
        "FOR NO KEY UPDATE NOWAIT",
        "db/test_i2_writers_never_wait.py::test_an_open_deleter_costs_no_other_lease_its_renewal",
    ),
    Mutant(
        "I2",
        "isolation-of-the-settings",
        "queue/sessions.py",
        "isolation_level = psycopg.IsolationLevel.READ_COMMITTED",
        "isolation_level = connection.connection.isolation_level",
        "db/test_i2_writers_never_wait.py::"
        "test_workers_run_in_read_committed_whatever_the_settings_say",
    ),
    Mutant(
        "I2",
        "related-writers-lock-jobs",
        "triggers/sql/ripple_v1.sql",
        "    INSERT INTO {tables}.pgembed_ripple (spec, path, key)\n",
        "    INSERT INTO {tables}.pgembed_job AS job (spec, source_pk)\n"
        "    SELECT DISTINCT unit_spec, related_key FROM unnest(related_keys) AS by(related_key)\n"
        "    WHERE unit_path = 'pk'\n"
        "    ON CONFLICT (spec, source_pk) WHERE status = 'pending' DO UPDATE SET kind = 'write';\n"
        "    INSERT INTO {tables}.pgembed_ripple (spec, path, key)\n",
        "db/test_ripples.py::test_tags_in_opposite_order",
    ),
    Mutant(
        "I2",
        "enqueue-locks-jobs",
        "spaces/reembedding.py",
        "SELECT {function}(%(spec)s, %(path)s, %(source_pks)s::text[])",
        "SELECT pgembed_enqueue_all_v1(%(spec)s, %(source_pks)s::text[], length(%(path)s))",
        "db/test_enqueue.py::TestBesideWriters::test_none_of_these_rows_waits_for_its_end",
    ),
    # I3: only the holder writes.
    Mutant(
        "I3",
        "no-fence-to-store",
        "queue/jobs/leases.py",
        "AND job.claims = held.token\n          AND job.started_at = held.started_at",
        "AND true",
        "db/test_i3_only_the_holder_writes.py::test_a_worker_frozen_past_its_lease_completes_nothing",
    ),
    Mutant(
        "I3",
        "no-fence-to-end",
        "queue/jobs/settling.py",
        "AND job.claims = %(token)s\n    AND job.started_at = %(started_at)s::timestamptz",
        "AND true",
        "db/test_i3_only_the_holder_writes.py::test_nothing_that_was_lost_can_be_ended_or_renewed",
    ),
    Mutant(
        "I3",
        "works-on-what-it-lost",
        "queue/in_flight.py",
        "self.lose(held.lost - done)",
        "self.lose(set())",
        "db/test_i3_only_the_holder_writes.py::test_a_worker_stops_spending_requests_on_what_it_lost",
    ),
    # I4: nothing searchable outlives its row.
    Mutant(
        "I4",
        "enqueued-row-must-match",
        "spaces/ripples.py",
        " and first.path != UNIT:",
        ":",
        "db/test_enqueue.py::TestARowThatDoesNotMatchTheCondition::"
        "test_loses_the_vectors_that_it_has",
    ),
    Mutant(
        "I4",
        "what-left-is-ranked",
        "retrieval/targets.py",
        "or self.spec.when_spans_tables",
        "or False",
        "db/test_ripples.py::test_what_left_is_not_even_ranked",
    ),
    Mutant(
        "I4",
        "running-job-stays",
        "triggers/sql/forget_v1.sql",
        "AND status = 'running';",
        "AND status = 'never';",
        "db/test_i4_nothing_outlives_its_row.py::test_the_row_goes_before_the_worker_stores",
    ),
    Mutant(
        "I4",
        "vectors-stay",
        "triggers/sql/forget_v1.sql",
        "IF is_a_key THEN",
        "IF false THEN",
        "db/test_i4_nothing_outlives_its_row.py::"
        "test_a_row_that_is_stored_goes_in_the_writers_own_transaction",
    ),
    Mutant(
        "I4",
        "no-job-cleans-up",
        "triggers/sql/forget_v1.sql",
        "VALUES (unit_spec, unit_source_pk, lane)",
        "SELECT unit_spec, unit_source_pk, lane WHERE false",
        "db/test_i4_nothing_outlives_its_row.py::"
        "test_an_old_snapshot_that_takes_the_row_leaves_a_job_that_cleans_up",
    ),
    # I5: a vector is never compared with one of another space.
    Mutant(
        "I5",
        "all-spaces-are-searched",
        "retrieval/retrievers.py",
        "chunk.space_id = %(space)s\n      AND chunk.embedding IS NOT NULL\n      {among}",
        "chunk.embedding IS NOT NULL\n      {among}",
        "db/test_spaces.py::test_a_vector_of_another_space_is_never_compared_with",
    ),
    Mutant(
        "I5",
        "query-by-the-declared-model",
        "retrieval/query_vectors.py",
        "provider = spaces.provider_of_texts(space)",
        "provider = __import__('pgembed_django.providers').providers.get(space.provider)",
        "db/test_spaces.py::test_a_new_model_is_filled_behind_the_active_one_and_then_switched_to",
    ),
    Mutant(
        "I5",
        "merged-by-distance",
        "retrieval/searching.py",
        "one._replace(score=one.merit)",
        "one",
        "db/test_search.py::test_several_models_are_merged_by_rank",
    ),
    # I6: every job ends.
    Mutant(
        "I6",
        "attempts-without-end",
        "queue/jobs/settling.py",
        "if claim.attempts + 1 >= max_attempts:",
        "if False:",
        "db/test_triage.py::test_each_try_that_ends_in_an_error_is_noted",
    ),
    Mutant(
        "I6",
        "crashes-without-end",
        "queue/jobs/settling.py",
        "is_last = claim.crashes + 1 >= max_crashes",
        "is_last = False",
        "db/test_triage.py::test_a_release_may_be_the_last_crash",
    ),
    Mutant(
        "I6",
        "suspect-in-company",
        "queue/jobs/claims.py",
        "AND job.crashes = 0",
        "AND true",
        "db/test_suspects.py::test_a_claim_of_others_takes_no_suspect_along",
    ),
    # I7: one bad text fails alone.
    Mutant(
        "I7",
        "refused-together",
        "providers/batching.py",
        "except InputRefused as error:\n            return self._failed(group, error)",
        "except InputRefused as error:\n"
        "            self._outcomes |= dict.fromkeys(group, error)\n"
        "            return []",
        "unit/test_provider_batching.py::test_the_culprits_stand_alone_within_a_bound",
    ),
    Mutant(
        "I7",
        "storing-is-not-divided",
        "queue/completing.py",
        "if is_many:\n                return",
        "if False:\n                return",
        "db/test_old_code.py::test_a_trigger_that_fails_on_one_row_sets_no_spec_aside",
    ),
    Mutant(
        "I7",
        "charged-at-the-first-failure",
        "providers/batching.py",
        "if times < TRIES:",
        "if False:",
        "unit/test_provider_batching.py::test_one_bad_answer_costs_no_text_its_vector",
    ),
    # I8: an outage is not the jobs' fault.
    Mutant(
        "I8",
        "outage-is-charged",
        "embedding/outcomes.py",
        "elif isinstance(error, ProviderUnavailable):",
        "elif False:",
        "db/test_i8_faults.py::test_no_job_is_lost_and_no_innocent_one_is_charged",
    ),
    Mutant(
        "I8",
        "no-retry-after",
        "embedding/pool.py",
        "self._paused_until = self._clock() + max(asked, jittered)",
        "self._paused_until = self._clock() + jittered",
        "unit/test_pool.py::test_it_waits_as_long_as_the_server_asks_but_not_for_ever",
    ),
    # I9: the table is the truth.
    Mutant(
        "I9",
        "sleeper-is-not-nudged",
        "triggers/sql/nudge_v1.sql",
        "PERFORM pg_notify('pgembed', '');",
        "PERFORM 1;",
        "db/test_nudges.py::test_a_write_wakes_who_sleeps_and_spares_who_is_awake",
    ),
    Mutant(
        "I9",
        "nudge-while-awake",
        "triggers/sql/nudge_v1.sql",
        "IF NOT pg_try_advisory_xact_lock_shared(",
        "IF true OR NOT pg_try_advisory_xact_lock_shared(",
        "db/test_nudges.py::test_a_write_wakes_who_sleeps_and_spares_who_is_awake",
    ),
    # I10: it tends to fully indexed by itself.
    Mutant(
        "I10",
        "stale-stays",
        "spaces/reconcile.py",
        "if digest != texts[key]",
        "if not digest",
        "db/test_reconciler.py::test_one_reconcile_mends_all_that_went_past_the_triggers",
    ),
    Mutant(
        "I10",
        "lowest-lane-starves",
        "queue/lanes.py",
        "lowest_first = self._claims % LOWEST_LANE_EVERY == 0",
        "lowest_first = False",
        "db/test_reconciler.py::test_the_lowest_lane_gets_its_share_while_writes_never_stop",
    ),
    Mutant(
        "I10",
        "hidden-rows-look-deleted",
        "queue/sessions.py",
        "SET row_security = off",
        "SET row_security = on",
        "db/test_surroundings.py::TestRowLevelSecurity",
    ),
    # I11: unchanged text is never embedded twice.
    Mutant(
        "I11",
        "no-reuse-by-digest",
        "embedding/planner.py",
        "if chunk.end > chunk.start and chunk.digest not in reusable:",
        "if chunk.end > chunk.start:",
        "db/test_i11_i12_reuse_and_last_good.py::test_chunks_that_move_take_their_vectors_along",
    ),
    Mutant(
        "I11",
        "nothing-is-staged",
        "embedding/embedder.py",
        "self.writer.to_stage.append((unit, part))",
        "pass",
        "db/test_i11_i12_reuse_and_last_good.py::"
        "test_progress_is_kept_when_a_job_dies_at_its_fifth_batch",
    ),
    # I12: the last good vectors stay.
    Mutant(
        "I12",
        "text-before-vectors",
        "embedding/units.py",
        "return self.plan.is_new and bool(self.waiting)",
        "return bool(self.waiting)",
        "db/test_i11_i12_reuse_and_last_good.py::"
        "test_text_that_waits_never_replaces_vectors_that_are_there",
    ),
    Mutant(
        "I12",
        "vectors-deleted-early",
        "store.py",
        "SET chunk_digest = ''\n",
        "SET chunk_digest = '', embedding = NULL\n",
        "db/test_i11_i12_reuse_and_last_good.py::"
        "test_chunks_that_move_keep_their_vectors_while_they_are_embedded_anew",
    ),
    # I13: progress is honest.
    Mutant(
        "I13",
        "waiting-text-is-covered",
        "spaces/coverage.py",
        "FOUND = Q(position=0) & (",
        "FOUND = Q(position=0) | (",
        "db/test_coverage.py::test_what_is_covered_is_what_a_search_returns",
    ),
    Mutant(
        "I13",
        "rounded-up-to-100",
        "spaces/coverage.py",
        "return int(self.ratio * 1000) / 10",
        "return round(self.ratio * 1000) / 10",
        "db/test_coverage.py::test_a_share_is_never_rounded_up_to_all",
    ),
    Mutant(
        "I13",
        "superseded-is-retried",
        "queue/jobs/triage.py",
        'return "retried" if started == [(True,)] else "superseded"',
        'return "retried"',
        "db/test_operator_commands.py::test_retry_says_exactly_what_happened",
    ),
    Mutant(
        "I13",
        "unanswered-probe-is-healthy",
        "providers/probes.py",
        "reachable, message = False, str(error)",
        "reachable = False",
        "unit/test_probe.py::test_a_server_that_is_down_is_told_from_one_that_is_not_well",
    ),
]
