    -- Shared by the bodies of enqueue_v1 and enqueue_all_v1: a call would cost each save time.
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    -- DO UPDATE, not DO NOTHING: it locks the job until this transaction commits,
    -- even if its WHERE is false, so no worker can claim the job and read the
    -- text that is being replaced.
    DO UPDATE SET
        kind = 'write',
        -- The change waits from now on, however old the gap is whose job it takes over.
        created_at = CASE WHEN job.is_awaited THEN job.created_at ELSE excluded.created_at END,
        is_awaited = true,
        priority = GREATEST(job.priority, excluded.priority),
        run_at = LEAST(job.run_at, excluded.run_at),
        attempts = 0,
        crashes = 0,
        outages = 0,
        last_error = '',
        traceparent = COALESCE(excluded.traceparent, job.traceparent)
    -- Write the job only if it must come forward or start afresh.
    WHERE job.run_at > excluded.run_at
       OR job.priority < excluded.priority
       OR NOT job.is_awaited
       OR job.attempts > 0
       OR job.crashes > 0
       OR job.outages > 0;
