    -- As enqueue_v1 and enqueue_all_v1 both have it, in their bodies: a call would cost each save.
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
    )
        -- Somebody who listens, anywhere in the cluster, has had a transaction open for very
        -- long: once the queue is full, whoever notifies cannot commit. Better to be polled.
        AND pg_notification_queue_usage() < 0.5
    THEN
        PERFORM pg_notify('pgembed', '');
    END IF;
