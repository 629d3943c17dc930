    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO UPDATE SET
        run_at = LEAST(job.run_at, excluded.run_at),
        attempts = 0,
        crashes = 0,
        outages = 0,
        last_error = ''
    WHERE job.run_at > excluded.run_at
       OR job.attempts > 0
       OR job.crashes > 0
       OR job.outages > 0;
