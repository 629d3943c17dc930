-- What an older worker ran: recorded, and not to be brought up to date. One statement a verb.

-- claim
UPDATE pgembed_job
SET
    status = 'running',
    claims = claims + 1,
    worker_id = %(worker)s,
    started_at = statement_timestamp(),
    lease_expires_at = statement_timestamp() + %(lease)s * interval '1 second'
WHERE id IN (
    SELECT id
    FROM pgembed_job AS candidate
    WHERE status = 'pending'
      AND spec = ANY(%(specs)s)
      AND run_at <= statement_timestamp()
      AND NOT EXISTS (
          SELECT
          FROM pgembed_job AS other
          WHERE other.status = 'running'
            AND other.spec = candidate.spec
            AND other.source_pk = candidate.source_pk
      )
    ORDER BY priority DESC, run_at, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
RETURNING id, claims, source_pk

-- complete
UPDATE pgembed_job
SET
    status = 'succeeded',
    worker_id = NULL,
    lease_expires_at = NULL,
    finished_at = statement_timestamp()
WHERE id = %(id)s
  AND status = 'running'
  AND claims = %(token)s

-- retry
UPDATE pgembed_job
SET
    status = 'pending',
    attempts = attempts + 1,
    worker_id = NULL,
    lease_expires_at = NULL,
    last_error = %(error)s
WHERE id = %(id)s
  AND status = 'running'
  AND claims = %(token)s
