-- A source row was written: leave one pending job for it, and wake an idle worker.
--
-- Runs in the writer's transaction. It locks one job row, that of a source row
-- which the writer has locked itself, and never waits for longer than one of our
-- own short transactions.
CREATE OR REPLACE FUNCTION {functions}.pgembed_enqueue_v1(
    unit_spec text,
    unit_source_pk text,
    lane integer
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO {tables}.pgembed_job AS job (spec, source_pk, priority, traceparent)
    VALUES (
        unit_spec,
        unit_source_pk,
        lane,
        -- Set by whoever traces the write. Empty if it was set in an earlier transaction.
        NULLIF(left(current_setting('pgembed.traceparent', true), 55), '')
    )
    {enqueue_end_v1}

    {nudge_v1}
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_v1(text, text, integer) TO PUBLIC;
