-- What an older version installed: recorded, and not to be brought up to date. It knows
-- nothing of columns that came later, and wakes workers at every write.
CREATE FUNCTION public.pgembed_enqueue_v0(
    unit_spec text,
    unit_source_pk text,
    lane integer
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO pgembed_job AS job (spec, source_pk, priority)
    VALUES (unit_spec, unit_source_pk, lane)
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO UPDATE SET
        kind = 'write',
        priority = GREATEST(job.priority, excluded.priority),
        run_at = LEAST(job.run_at, excluded.run_at),
        attempts = 0,
        crashes = 0,
        last_error = ''
    WHERE job.run_at > excluded.run_at
       OR job.priority < excluded.priority
       OR job.attempts > 0
       OR job.crashes > 0;

    PERFORM pg_notify('pgembed', '');
END
$$;

CREATE FUNCTION public.pgembed_forget_v0(
    unit_spec text,
    unit_source_pk text,
    lane integer,
    embedding_table text
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO pgembed_job AS job (spec, source_pk, priority)
    VALUES (unit_spec, unit_source_pk, lane)
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO UPDATE SET
        run_at = LEAST(job.run_at, excluded.run_at),
        attempts = 0
    WHERE job.run_at > excluded.run_at
       OR job.attempts > 0;

    DELETE FROM pgembed_job
    WHERE spec = unit_spec
      AND source_pk = unit_source_pk
      AND status = 'running';

    EXECUTE format('DELETE FROM %s WHERE source_id = %L', embedding_table, unit_source_pk);
END
$$;

GRANT EXECUTE ON FUNCTION public.pgembed_enqueue_v0(text, text, integer) TO PUBLIC;
GRANT EXECUTE ON FUNCTION public.pgembed_forget_v0(text, text, integer, text) TO PUBLIC;
