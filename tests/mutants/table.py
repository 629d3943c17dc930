"""The mutants: breaks of what holds the invariants of the design, promises of tasks and search."""

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
    Mutant(
        "I1",
        "language-unwatched",
        "declaration/specs.py",
        "dict.fromkeys((*self.fields, *language))",
        "dict.fromkeys(self.fields)",
        "db/test_languages.py::"
        "test_a_changed_language_alone_changes_the_words_and_asks_no_provider",
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
    Mutant(
        "I2",
        "words-wait-for-writers",
        "spaces/stored.py",
        """        WHERE id = ANY(%(ids)s::bigint[])
        FOR UPDATE SKIP LOCKED""",
        """        WHERE id = ANY(%(ids)s::bigint[])
        FOR UPDATE""",
        "db/test_languages.py::TestWriters::test_a_page_does_not_wait_for_a_writer",
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
        "db/test_search.py::test_several_models_are_merged_by_how_well_rows_do_in_their_own",
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
        "if (digest, language) != (texts[key], languages.get(key))",
        "if not digest",
        "db/test_reconciler.py::test_one_reconcile_mends_all_that_went_past_the_triggers",
    ),
    Mutant(
        "I10",
        "language-unseen",
        "spaces/reconcile.py",
        "if (digest, language) != (texts[key], languages.get(key))",
        "if digest != texts[key]",
        "db/test_languages.py::"
        "test_the_deep_reconciler_finds_a_language_that_was_written_past_the_triggers",
    ),
    Mutant(
        "I10",
        "words-passed-over",
        "spaces/words.py",
        "        return Look(after)\n",
        "        return Look(chunks[-1].id if len(chunks) == max(rows, 1) else None)\n",
        "db/test_languages.py::"
        "test_a_language_that_changes_while_the_former_is_mended_is_not_missed",
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
    # T1, of tasks as all that follow: a key is enqueued once.
    Mutant(
        "T1",
        "a-taken-key-answers-with-a-new-id",
        "triggers/sql/enqueue_task_v1.sql",
        "IF FOUND THEN\n            RETURN found_id;",
        "IF FOUND THEN\n            RETURN new_id;",
        "db/test_tasks.py::test_a_key_is_enqueued_once",
    ),
    Mutant(
        "T1",
        "a-taken-key-is-locked",
        "triggers/sql/enqueue_task_v1.sql",
        "AND (taken.expires_at < statement_timestamp()) IS NOT TRUE;",
        "AND (taken.expires_at < statement_timestamp()) IS NOT TRUE FOR NO KEY UPDATE;",
        "db/test_task_keys.py::"
        "test_who_asks_for_a_key_that_is_taken_does_not_hold_up_the_end_of_its_task",
    ),
    Mutant(
        "T1",
        "key-goes-with-its-row",
        "triggers/sql/task_ended_v1.sql",
        "THEN statement_timestamp() + kept_for END",
        "THEN statement_timestamp() END",
        "db/test_task_keys.py::"
        "test_a_key_outlives_its_task_for_a_while_and_is_free_again_then[deleted]",
    ),
    Mutant(
        "T1",
        "former-task-ends-the-key",
        "triggers/sql/task_ended_v1.sql",
        "AND task_id = OLD.id;",
        "AND true;",
        "db/test_task_keys.py::"
        "test_a_former_task_that_is_retried_does_not_end_the_key_of_the_later_one",
    ),
    # T2: calls coalesce while they wait and lose no last one, and a serial key runs one at a time.
    Mutant(
        "T2",
        "kept-call-is-postponed",
        "triggers/sql/enqueue_task_v1.sql",
        "WHEN 'keep' THEN LEAST(task.run_at, due)",
        "WHEN 'keep' THEN due",
        "db/test_task_coalesce.py::test_keep_brings_a_task_forward_and_never_back",
    ),
    Mutant(
        "T2",
        "replace-keeps-the-first-call",
        "triggers/sql/enqueue_task_v1.sql",
        "WHEN bump = 'keep' THEN task.arguments",
        "WHEN bump <> 'latest' THEN task.arguments",
        "db/test_task_coalesce.py::test_replace_takes_the_last_call_and_its_time",
    ),
    Mutant(
        "T2",
        "postponed-for-ever",
        "triggers/sql/enqueue_task_v1.sql",
        "ELSE LEAST(GREATEST(task.run_at, due), task.created_at + max_wait)",
        "ELSE GREATEST(task.run_at, due)",
        "db/test_task_coalesce.py::test_latest_postpones_but_never_beyond_the_longest_wait",
    ),
    Mutant(
        "T2",
        "merged-into-a-claimed-task",
        "triggers/sql/enqueue_task_v1.sql",
        "WHERE task.status = 'pending'\n"
        "          AND task.id = (\n"
        "              SELECT max(newest.id)\n"
        "              FROM {tables}.pgembed_task AS newest\n"
        "              WHERE newest.status = 'pending'",
        "WHERE task.id = (\n"
        "              SELECT max(newest.id)\n"
        "              FROM {tables}.pgembed_task AS newest\n"
        "              WHERE newest.status IN ('pending', 'running')",
        "db/test_task_coalesce.py::test_a_call_during_a_run_is_another_task",
    ),
    Mutant(
        "T2",
        "merged-into-an-older-task",
        "triggers/sql/enqueue_task_v1.sql",
        "SELECT max(newest.id)",
        "SELECT min(newest.id)",
        "db/test_task_coalesce.py::test_a_write_beside_two_that_wait_goes_into_the_newer_one",
    ),
    Mutant(
        "T2",
        "coalescing-waits-for-a-writer",
        "triggers/sql/enqueue_task_v1.sql",
        "FOR NO KEY UPDATE SKIP LOCKED;",
        "FOR NO KEY UPDATE;",
        "db/test_task_coalesce.py::test_a_task_that_another_writer_has_locked_is_not_waited_for",
    ),
    Mutant(
        "T2",
        "oldest-of-a-key-runs",
        "tasks/turns.py",
        "newest = [max(group) for",
        "newest = [min(group) for",
        "db/test_task_claims.py::TestCollapse::test_the_newest_of_a_key_runs_and_the_older_ones_go",
    ),
    Mutant(
        "T2",
        "two-of-a-serial-key",
        "migrations/0001_initial.py",
        "fields=('queue', 'serial'), name='pgembed_one_running_per_serial'",
        "fields=('queue', 'serial', 'id'), name='pgembed_one_running_per_serial'",
        "db/test_task_claims.py::TestTwoClaimsOfAKey::"
        "test_a_key_whose_suspect_is_being_started_is_left_alone",
    ),
    Mutant(
        "T2",
        "what-runs-is-asked-before-the-lock",
        "tasks/turns.py",
        "AND other.serial = job.serial",
        "AND false",
        "db/test_task_claims.py::TestTwoClaimsOfAKey::"
        "test_what_began_after_the_look_is_seen_by_the_start",
    ),
    # T3: only the holder completes a task, and its rows commit with its end.
    Mutant(
        "T3",
        "no-fence-to-complete-a-task",
        "tasks/completing.py",
        "if not held.ours:",
        "if False:",
        "db/test_task_running.py::"
        "test_a_lost_lease_is_found_when_completing_and_the_late_result_is_discarded",
    ),
    Mutant(
        "T3",
        "within-another-transaction",
        "tasks/completing.py",
        "durable=True",
        "durable=False",
        "db/test_task_running.py::test_completing_within_another_transaction_is_refused",
    ),
    Mutant(
        "T3",
        "task-ends-after-the-commit",
        "tasks/completing.py",
        "            try:\n                self._complete()\n",
        "            try:\n                transaction.on_commit(self._complete, self._using)\n",
        "db/test_task_running.py::"
        "test_a_commit_whose_answer_is_lost_counts_if_it_has_happened[True]",
    ),
    Mutant(
        "T3",
        "lost-answer-is-no-commit",
        "tasks/completing.py",
        "if not self._was_committed():",
        "if True:",
        "db/test_task_running.py::"
        "test_a_commit_whose_answer_is_lost_counts_if_it_has_happened[True]",
    ),
    # T4: tenants take turns, and limits hold.
    Mutant(
        "T4",
        "turns-begin-anew",
        "tasks/claims.py",
        "served=place.tenant",
        'served=""',
        "db/test_task_claims.py::TestTurns::"
        "test_many_tenants_are_served_in_turn_from_one_look_to_the_next",
    ),
    Mutant(
        "T4",
        "all-are-taken-out-of-turn",
        "tasks/turns.py",
        "(SELECT count(*) FROM taken) <= %(most)s",
        "(SELECT count(*) FROM taken) > 0",
        "db/test_task_claims.py::TestAllThatWait",
    ),
    Mutant(
        "T4",
        "tasks-with-a-key-starve",
        "tasks/claims.py",
        "if not (self._waiting or self._has_taken_all):",
        "if not self._waiting:",
        "db/test_task_claims.py::TestAllThatWait",
    ),
    Mutant(
        "T4",
        "limited-queues-are-taken-whole",
        "tasks/claims.py",
        "free = [one for one in queues if one not in self._limits]",
        "free = list(queues)",
        "db/test_task_claims.py::TestAllThatWait",
    ),
    Mutant(
        "T4",
        "first-tenant-takes-all",
        "tasks/claims.py",
        "most=share + (number < rest))",
        "most=0 if number else places)",
        "db/test_task_claims.py::TestTurns::"
        "test_one_tenant_with_most_tasks_delays_no_other_by_more_than_a_round",
    ),
    Mutant(
        "T4",
        "lowest-priority-starves",
        "tasks/claims.py",
        "direction = 1 if self._claims % LOWEST_LANE_EVERY == 0 else -1",
        "direction = -1",
        "db/test_task_claims.py::TestTurns::test_the_lowest_priority_goes_first_now_and_then",
    ),
    Mutant(
        "T4",
        "two-claims-count-at-once",
        "tasks/limits.py",
        "if not is_first:",
        "if False:",
        "db/test_task_claims.py::test_two_claims_at_once_do_not_exceed_a_limit",
    ),
    Mutant(
        "T4",
        "running-tasks-do-not-count",
        "tasks/limits.py",
        "free = max(limits.concurrency - self._running.total(), 0)",
        "free = limits.concurrency",
        "db/test_task_claims.py::TestLimits::test_at_once",
    ),
    Mutant(
        "T4",
        "those-of-a-tenant-do-not-count",
        "tasks/limits.py",
        "free = limits.tenant_concurrency - self._running[tenant]",
        "free = limits.tenant_concurrency",
        "db/test_task_claims.py::TestLimits::test_at_once_of_a_tenant",
    ),
    Mutant(
        "T4",
        "starts-are-not-charged",
        "tasks/limits.py",
        "        if charged:\n",
        "        if False:\n",
        "db/test_task_claims.py::TestLimits::test_in_a_minute",
    ),
    Mutant(
        "T4",
        "suspect-does-not-count",
        "tasks/claims.py",
        "if room is not None and found:",
        "if False:",
        "db/test_task_claims.py::TestLimits::test_a_suspect_of_a_tenant_at_its_limit_stays",
    ),
    # T5: what follows an end is enqueued once, in the transaction of that end.
    Mutant(
        "T5",
        "no-next-run-after-success",
        "tasks/finishing.py",
        'if getattr(one.task, "every", None) is not None:',
        "if False:",
        "db/test_task_schedules.py::test_a_run_that_succeeds_inserts_the_next_one",
    ),
    Mutant(
        "T5",
        "no-next-run-after-failure",
        "tasks/handler.py",
        "return lambda: schedules.insert_next(task, started_at=started_at, using=self._using)",
        "return None",
        "db/test_task_schedules.py::test_a_run_that_fails_for_good_inserts_the_next_one",
    ),
    Mutant(
        "T5",
        "two-ends-of-a-batch",
        "triggers/sql/task_ended_v1.sql",
        "                LIMIT 1\n                FOR NO KEY UPDATE SKIP LOCKED;",
        "                LIMIT 1;",
        "db/test_task_batches.py::test_two_workers_that_end_the_last_two_enqueue_what_follows_once",
    ),
    Mutant(
        "T5",
        "followed-twice",
        "triggers/sql/end_batch_v1.sql",
        "      AND done.ended_at IS NULL\n    FOR NO KEY UPDATE;",
        "    FOR NO KEY UPDATE;",
        "db/test_task_batches.py::"
        "test_two_ends_that_both_find_no_other_task_enqueue_what_follows_once",
    ),
    Mutant(
        "T5",
        "followed-too-early",
        "triggers/sql/end_batch_v1.sql",
        "    IF EXISTS (",
        "    IF false AND EXISTS (",
        "db/test_task_batches.py::test_two_workers_that_end_the_last_two_enqueue_what_follows_once",
    ),
    # T6: a task ends as its options and people say.
    Mutant(
        "T6",
        "given-up-is-retried",
        "tasks/running.py",
        'is_final = isinstance(error, getattr(self.task, "give_up_on", ())) or (',
        "is_final = False or (",
        "db/test_task_running.py::test_some_errors_are_worth_another_try",
    ),
    Mutant(
        "T6",
        "attempts-of-the-settings",
        "tasks/handler.py",
        'getattr(task, "attempts", None) or self._settings.max_attempts',
        "self._settings.max_attempts",
        "db/test_task_running.py::test_the_last_attempt_fails",
    ),
    Mutant(
        "T6",
        "another-run-costs-an-attempt",
        "tasks/handler.py",
        "held.release(claim, delay_seconds=outcome.seconds)",
        "self._retry(run, outcome.said)",
        "db/test_task_running.py::test_another_run_may_be_asked_for_without_an_attempt",
    ),
    Mutant(
        "T6",
        "time-out-costs-nothing",
        "tasks/handler.py",
        'self._retry(run, f"builtins.TimeoutError: No end within {seconds:g} s")',
        "self.held.release(claim)",
        "db/test_task_running.py::"
        "test_a_task_whose_time_is_up_costs_attempts_and_its_place_is_free_again",
    ),
    Mutant(
        "T6",
        "canceling-deletes-what-runs",
        "tasks/canceling.py",
        "if noted != [(Job.Status.PENDING,)]:",
        "if False:",
        "db/test_task_bulk.py::TestCancel::test_asks_a_running_one",
    ),
    Mutant(
        "T6",
        "canceling-deletes-failures",
        "tasks/canceling.py",
        "AND status IN ('pending', 'running')\n    RETURNING status",
        "RETURNING status",
        "db/test_task_bulk.py::TestCancel::test_of_a_failure_leaves_it_to_a_person",
    ),
    Mutant(
        "T6",
        "canceled-run-is-retried",
        "tasks/running.py",
        "if self.canceled_for and isinstance(error, Canceled | asyncio.CancelledError):",
        "if False:",
        "db/test_task_running.py::test_a_person_may_ask_a_running_task_to_end",
    ),
    Mutant(
        "T6",
        "no-result-is-kept",
        "tasks/finishing.py",
        "WHERE keep > 0",
        "WHERE keep < 0",
        "db/test_task_results.py::test_a_kept_result_is_told_until_it_expires",
    ),
    Mutant(
        "T6",
        "no-result-of-completing-is-kept",
        "tasks/running.py",
        "self.ended(self._kept(result))",
        "self.ended(None)",
        "db/test_task_running.py::test_completing_twice_is_an_error_that_does_not_undo_the_first",
    ),
    Mutant(
        "T6",
        "others-beside-a-suspect",
        "queue/lanes.py",
        "if [claim for claim in working if claim.crashes]:",
        "if False:",
        "db/test_task_claims.py::TestSuspects::"
        "test_nothing_is_claimed_beside_a_task_that_a_worker_died_with",
    ),
    Mutant(
        "T6",
        "suspect-beside-others",
        "queue/lanes.py",
        "        if is_working:\n            return []",
        "        if False:\n            return []",
        "db/test_task_claims.py::TestSuspects::test_it_is_not_claimed_beside_others",
    ),
    # T7: nothing is stored that cannot run, and nobody else calls what ends tasks.
    Mutant(
        "T7",
        "args-are-not-checked",
        "triggers/sql/task_problem_v1.sql",
        "WHEN jsonb_typeof(arguments -> 'args') <> 'array'",
        "WHEN false",
        "db/test_task_sql.py::test_bad_input_is_told",
    ),
    Mutant(
        "T7",
        "following-is-not-checked",
        "triggers/sql/enqueue_batch_v1.sql",
        "    IF problem IS NOT NULL THEN",
        "    IF false THEN",
        "db/test_task_batches.py::test_what_could_not_follow_is_refused_when_the_batch_is_enqueued",
    ),
    Mutant(
        "T7",
        "call-in-bulk-is-not-checked",
        "triggers/sql/plain_call_v1.sql",
        "AND COALESCE(jsonb_typeof(given -> 'arguments'), 'object') = 'object'",
        "AND true",
        "db/test_task_bulk.py::TestOfSql::test_is_told_what_is_wrong",
    ),
    Mutant(
        "T7",
        "nul-in-an-argument",
        "tasks/arguments.py",
        'if "\\0" in given:',
        "if False:",
        "unit/test_task_declaration.py::TestArguments::"
        "test_that_the_database_cannot_store_are_refused",
    ),
    Mutant(
        "T7",
        "public-ends-batches",
        "triggers/sql/end_batch_v1.sql",
        "REVOKE EXECUTE ON FUNCTION {functions}.pgembed_end_batch_v1(bigint) FROM PUBLIC;\n",
        "",
        "db/test_task_sql.py::test_everybody_may_enqueue_and_nobody_else_ends",
    ),
    Mutant(
        "T7",
        "public-ends-tasks",
        "triggers/sql/task_ended_v1.sql",
        "REVOKE EXECUTE ON FUNCTION {functions}.pgembed_task_ended_v1() FROM PUBLIC;\n",
        "",
        "db/test_task_sql.py::test_everybody_may_enqueue_and_nobody_else_ends",
    ),
    Mutant(
        "T7",
        "public-truncates-tasks",
        "triggers/sql/tasks_truncated_v1.sql",
        "REVOKE EXECUTE ON FUNCTION {functions}.pgembed_tasks_truncated_v1() FROM PUBLIC;\n",
        "",
        "db/test_task_sql.py::test_everybody_may_enqueue_and_nobody_else_ends",
    ),
    # S1: by words the best are found, as BM25 has them, although few passages are scored.
    Mutant(
        "S1",
        "first-statement-is-enough",
        "retrieval/retrievers.py",
        "if lower := self._lower(retriever.least, list(best.values()), depth=depth):",
        "if lower := None:",
        "db/test_bm25.py::test_the_best_are_found_although_few_passages_are_scored",
    ),
    Mutant(
        "S1",
        "enough-are-the-best",
        "retrieval/retrievers.py",
        "if reached >= least:",
        "if is_enough:",
        "db/test_bm25.py::test_the_best_are_found_although_few_passages_are_scored",
    ),
    Mutant(
        "S1",
        "too-few-are-enough",
        "retrieval/retrievers.py",
        "return None if is_enough else self._by_words(0.0)",
        "return None",
        "db/test_bm25.py::test_as_many_are_found_as_match_although_few_passages_are_scored",
    ),
    Mutant(
        "S1",
        "condition-leaves-out-a-word",
        "retrieval/bm25.py",
        "words[at : needed + 1]])",
        "words[at : max(needed, at + 1)]])",
        "unit/test_bm25.py::test_whatever_can_score_enough_is_found",
    ),
    Mutant(
        "S1",
        "all-are-scored",
        "retrieval/bm25.py",
        "                LIMIT %(most_scored)s\n",
        "",
        "db/test_bm25.py::test_no_more_passages_are_scored_than_the_bound",
    ),
    Mutant(
        "S1",
        "the-best-make-way-for-any",
        "retrieval/retrievers.py",
        "best = _best_of_each([*best.values(), *more], sign=sign)",
        "best = _best_of_each(more, sign=sign)",
        "db/test_bm25.py::test_few_with_a_rare_word_are_best_although_too_many_have_the_other",
    ),
    Mutant(
        "S1",
        "a-phrase-is-looked-for-twice",
        "retrieval/retrievers.py",
        "        if self.survey.words.is_narrow:\n",
        "        if False:\n",
        "db/test_bm25.py::test_all_that_have_a_phrase_are_ranked_at_once",
    ),
    Mutant(
        "S1",
        "few-that-pass-are-looked-for-twice",
        "retrieval/retrievers.py",
        "if least and self._passing is not None:",
        "if False:",
        "db/test_bm25.py::test_the_few_that_pass_a_filter_are_scored_at_once",
    ),
    Mutant(
        "S1",
        "uncounted-word-is-absent",
        "retrieval/frequencies.py",
        "lexeme: number / passages for",
        "lexeme: 0.0 * number for",
        "db/test_bm25.py::test_a_word_that_the_statistics_do_not_tell_is_counted",
    ),
    Mutant(
        "S1",
        "statistics-of-the-first-search",
        "retrieval/frequencies.py",
        "if kept.known is None or kept.at != at:",
        "if kept.known is None:",
        "db/test_bm25.py::test_a_table_that_has_grown_is_read_again",
    ),
    Mutant(
        "S1",
        "repeated-word-counts-once",
        "retrieval/bm25.py",
        "times * rarity * (k1 + 1)",
        "rarity * (k1 + 1)",
        "db/test_bm25.py::test_a_score_is_that_of_the_books",
    ),
    Mutant(
        "S1",
        "length-is-ignored",
        "retrieval/bm25.py",
        "+ %(b)s * ({ranks}) / {number} / per_word / %(length)s)",
        "+ %(b)s)",
        "db/test_bm25.py::test_a_score_is_that_of_the_books",
    ),
    Mutant(
        "S1",
        "word-without-positions-is-none",
        "retrieval/frequencies.py",
        "sum(coalesce(cardinality(positions), 1))",
        "sum(cardinality(positions))",
        "db/test_bm25.py::test_a_word_without_positions_counts_once",
    ),
    # C1: changes are read from the write-ahead log once, and none is missed.
    Mutant(
        "C1",
        "a-later-commit-is-taken-for-visible",
        "capture/batches.py",
        "if ahead < 2**31:",
        "if ahead < 1:",
        "unit/test_capture_batches.py::test_what_no_transaction_has_ended_after_is_not_visible",
    ),
    Mutant(
        "C1",
        "former-key-is-kept",
        "capture/batches.py",
        "if before is not None and before != after:",
        "if before is not None and after is None:",
        "db/test_capture.py::"
        "test_a_row_that_gets_another_key_leaves_no_vectors_under_the_former_one",
    ),
    Mutant(
        "C1",
        "truncate-is-passed-over",
        "capture/batches.py",
        "for target in self.tables[oid]:",
        "for target in ():",
        "db/test_capture.py::test_of_a_truncated_table_no_vectors_are_left",
    ),
    Mutant(
        "C1",
        "unchanged-key-is-gone",
        "capture/pgoutput.py",
        "elif kind == 0x75 and unchanged:",
        "elif kind == 0x00 and unchanged:",
        "unit/test_pgoutput.py::test_a_column_that_is_unchanged_and_not_sent_is_what_it_was",
    ),
    Mutant(
        "C1",
        "position-is-not-noted",
        "capture/reading.py",
        "self._note(last_of.position if last_of else None,",
        "self._note(None,",
        "db/test_capture_slots.py::"
        "test_a_reader_that_is_killed_before_it_confirms_leaves_nothing_to_be_enqueued_twice",
    ),
    Mutant(
        "C1",
        "former-reader-writes",
        "capture/slots.py",
        "ours = ReplicationSlot.objects.using(using).filter(pk=name, holder=holder)\n    state:",
        "ours = ReplicationSlot.objects.using(using).filter(pk=name)\n    state:",
        "db/test_capture_slots.py::"
        "test_a_former_reader_that_was_only_frozen_writes_nothing_once_another_has_taken_over",
    ),
    Mutant(
        "C1",
        "moved-slot-is-trusted",
        "capture/streamer.py",
        "seen.confirmed <= (position or 0)",
        "seen.is_ours",
        "db/test_capture_slots.py::"
        "test_a_slot_that_others_have_moved_is_made_anew_and_everything_is_compared",
    ),
    Mutant(
        "C1",
        "slot-is-made-twice",
        "capture/streamer.py",
        "if not (is_ours and as_seen):",
        "if not is_ours:",
        "db/test_capture_slots.py::test_of_two_that_begin_at_once_one_makes_the_slot",
    ),
    Mutant(
        "C1",
        "publication-is-one-again",
        "capture/slots.py",
        "concat_ws('.', publication.oid, publication.xmin, rel.oid, schema.oid)",
        "'published'",
        "db/test_capture_slots.py::"
        "test_what_was_taken_out_of_the_publication_is_compared_when_it_is_put_back",
    ),
    Mutant(
        "C1",
        "open-writers-are-not-awaited",
        "capture/reading.py",
        "if oldest >= since}",
        "if oldest and since}",
        "db/test_capture_slots.py::"
        "test_rows_are_compared_once_all_that_wrote_before_the_table_was_published_have_ended",
    ),
    Mutant(
        "C1",
        "switched-back-is-not-compared",
        "capture/streamer.py",
        "compare(back, using=self.using)",
        "compare((), using=self.using)",
        "db/test_capture_slots.py::"
        "test_what_triggers_watch_again_is_compared_once_they_are_installed",
    ),
    Mutant(
        "C1",
        "any-identity-is-published",
        "models/publication.py",
        "IF is_usable IS NOT TRUE THEN",
        "IF is_usable IS NULL AND {table} IS NULL THEN",
        "db/test_capture_slots.py::"
        "test_a_table_whose_updates_would_fail_is_refused_before_it_is_published",
    ),
    Mutant(
        "C1",
        "unread-rows-are-ranked",
        "retrieval/targets.py",
        "or self.spec.is_read_from_log",
        "or self.spec.when_spans_tables",
        "db/test_capture_search.py::test_rows_that_are_gone_make_no_further_page",
    ),
    # E1: a local model's process may die at any time.
    Mutant(
        "E1",
        "waiting-calls-are-lost",
        "executors/own_process.py",
        "if member.facts and not self.is_closed:",
        "if not member.facts and not self.is_closed:",
        "unit/test_executors.py::test_a_killed_process_takes_along_what_it_had_and_no_more",
    ),
    Mutant(
        "E1",
        "death-blames-nobody",
        "executors/own_process.py",
        "return ProviderLost(said) if self.facts else ProviderUnavailable(said)",
        "return ProviderUnavailable(said)",
        "db/test_local_models.py::"
        "test_a_text_that_kills_its_process_fails_alone_and_no_other_is_charged",
    ),
    Mutant(
        "E1",
        "outlives-its-worker",
        "executors/serving.py",
        "while os.getppid() == parent:",
        "while os.getppid():",
        "unit/test_executors.py::"
        "test_a_process_ends_with_the_one_that_started_it_whatever_it_is_at",
    ),
    Mutant(
        "E1",
        "forked-processes-share-a-pipe",
        "executors/own_process.py",
        "os.register_at_fork(after_in_child=_forget_all)",
        "",
        "unit/test_executors.py::test_a_forked_process_starts_one_of_its_own",
    ),
    Mutant(
        "E1",
        "queries-wait-their-turn",
        "executors/serving.py",
        "self._prepared.put((not is_query, next",
        "self._prepared.put((False, next",
        "unit/test_executors.py::test_a_query_is_computed_before_batches_that_wait",
    ),
    Mutant(
        "E1",
        "broken-device-is-used-on",
        "executors/serving.py",
        "if self._model.is_broken_by(error):",
        "if False:",
        "unit/test_executors.py::test_a_process_that_a_text_ends_is_started_again",
    ),
    Mutant(
        "E1",
        "other-files-are-loaded",
        "providers/local.py",
        "if digest is not None and folder_digest(model) != digest:",
        "if digest is None:",
        "unit/test_provider_in_process.py::"
        "test_files_that_change_while_they_are_used_are_not_loaded_again",
    ),
    Mutant(
        "E1",
        "too-long-texts-are-cut-silently",
        "providers/local.py",
        "for index in found.too_long:",
        "for index in ():",
        "unit/test_provider_in_process.py::test_a_sentence_transformer_never_cuts_silently",
    ),
    Mutant(
        "E1",
        "executor-is-part-of-the-space",
        "providers/sentence_transformers.py",
        'space_options = (*LocalProvider.space_options, "dtype", "file_name")',
        'space_options = (*LocalProvider.space_options, "file_name", "_executor_kind")',
        "unit/test_provider_in_process.py::"
        "test_half_precision_is_another_space_and_an_executor_is_not",
    ),
]
