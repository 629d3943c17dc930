    -- A sleeping worker holds this lock exclusively, to be notified. If the lock is free,
    -- the workers are awake. Then holding it until the commit, shared with other writers,
    -- keeps them from falling asleep before they have seen this job.
    IF NOT pg_try_advisory_xact_lock_shared(
        hashtextextended(unit_spec, {job}::regclass::oid::bigint)
    )
        -- A listener anywhere in the cluster that keeps a transaction open lets the queue of
        -- notifications fill up. Once it is full, nobody who notifies can commit: rather leave
        -- the job to a worker's next poll.
        AND pg_notification_queue_usage() < 0.5
    THEN
        PERFORM pg_notify('pgembed', '');
    END IF;
