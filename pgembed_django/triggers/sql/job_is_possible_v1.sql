-- Refuse impossible jobs. This is one function in PL/pgSQL instead of a CHECK in plain SQL
-- per rule: Postgres parses the expressions of a table's CHECKs again for every statement,
-- and six of them took most of the time of the trigger's INSERT. It parses a function once
-- per session.
CREATE OR REPLACE FUNCTION pgembed_job_is_possible_v1(job pgembed_job)
RETURNS boolean
LANGUAGE plpgsql
IMMUTABLE
AS $$
DECLARE
    broken text;
BEGIN
    -- Accept at once what a trigger inserts. PL/pgSQL prepares an expression again in each
    -- transaction, and preparing this one costs a single save less than preparing all rules.
    -- pg_catalog: Postgres would prefer a function of a role's own for exactly these types to
    -- one that takes any types.
    IF job.status = 'pending'
       AND pg_catalog.num_nonnulls(job.worker_id, job.lease_expires_at, job.finished_at, job.settled_at) = 0
       AND (job.claims | job.items_done | job.items_total) = 0
       AND (job.attempts | job.crashes | job.outages | job.parkings) = 0
    THEN
        RETURN true;
    END IF;

    broken := CASE
        WHEN job.status NOT IN ('pending', 'running', 'succeeded', 'failed', 'dismissed')
        THEN 'pgembed_job_status_known'
        WHEN (job.status = 'running') <> (job.worker_id IS NOT NULL)
          OR (job.status = 'running') <> (job.lease_expires_at IS NOT NULL)
        THEN 'pgembed_job_running_has_worker_and_lease'
        WHEN (job.status IN ('pending', 'running')) <> (job.finished_at IS NULL)
        THEN 'pgembed_job_finished_has_time'
        WHEN job.status = 'failed' AND job.last_error = ''
        THEN 'pgembed_job_failed_has_error'
        WHEN job.status NOT IN ('failed', 'dismissed') AND job.settled_at IS NOT NULL
        THEN 'pgembed_job_only_failures_settle'
        WHEN LEAST(
            job.claims, job.attempts, job.crashes, job.outages, job.parkings,
            job.items_done, job.items_total
        ) < 0
        THEN 'pgembed_job_counts_are_counts'
    END;
    IF broken IS NULL THEN
        RETURN true;
    END IF;
    RAISE check_violation USING
        MESSAGE = pg_catalog.format('job of %s %s breaks %s', job.spec, job.source_pk, broken),
        CONSTRAINT = broken;
END
$$;

GRANT EXECUTE ON FUNCTION pgembed_job_is_possible_v1(pgembed_job) TO PUBLIC;

ALTER TABLE pgembed_job
    ADD CONSTRAINT pgembed_job_is_possible CHECK (pgembed_job_is_possible_v1(pgembed_job));
