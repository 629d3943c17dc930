-- One statement brought many source rows: leave one pending job for each of them, as
-- pgembed_enqueue_v1 does for one, and wake an idle worker.
--
-- It locks job rows of source rows that the writer has itself locked, and no others, so
-- two such writers never wait for each other here, in whatever order they come.
CREATE OR REPLACE FUNCTION {functions}.pgembed_enqueue_all_v1(
    unit_spec text,
    unit_source_pks text[],
    lane integer
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = {tables}, pg_temp
AS $$
BEGIN
    INSERT INTO pgembed_job AS job (spec, source_pk, priority, traceparent)
    SELECT
        unit_spec,
        source_pk,
        lane,
        -- Whoever traces the write has set it. Empty where that was an earlier transaction.
        NULLIF(left(current_setting('pgembed.traceparent', true), 55), '')
    -- A key that is there twice (its constraint is deferred) would stop the writer.
    FROM (SELECT DISTINCT unnest(unit_source_pks)) AS written(source_pk)
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    -- DO UPDATE, not DO NOTHING: it locks the job until this transaction commits,
    -- even where its WHERE is false, so no worker can claim the job and read the
    -- text that is being replaced.
    DO UPDATE SET
        kind = 'write',
        -- The change is waiting since now, however old the gap is that it meets.
        created_at = CASE
            WHEN job.kind IN ('reconciler', 'backfill') THEN excluded.created_at
            ELSE job.created_at
        END,
        priority = GREATEST(job.priority, excluded.priority),
        run_at = LEAST(job.run_at, excluded.run_at),
        attempts = 0,
        crashes = 0,
        outages = 0,
        last_error = '',
        traceparent = COALESCE(excluded.traceparent, job.traceparent)
    -- Only a job that must come forward or start afresh is written.
    WHERE job.run_at > excluded.run_at
       OR job.priority < excluded.priority
       OR job.attempts > 0
       OR job.crashes > 0
       OR job.outages > 0;

    -- An idle worker on watch holds this lock exclusively: it wants to be told.
    -- Otherwise a worker is awake, and holding the lock (shared with other writers)
    -- until commit keeps it from falling asleep before it has seen this job.
    IF NOT pg_try_advisory_xact_lock_shared(
        hashtextextended(unit_spec, 'pgembed_job'::regclass::oid::bigint)
    ) THEN
        PERFORM pg_notify('pgembed', '');
    END IF;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_all_v1(text, text[], integer) TO PUBLIC;
