-- One statement inserted many source rows: leave one pending job for each of them, as
-- pgembed_enqueue_v1 does for one, and wake an idle worker.
--
-- It only locks job rows of source rows that the writer has locked itself. So two such
-- writers never wait for each other here, whatever the order of their rows.
CREATE OR REPLACE FUNCTION {functions}.pgembed_enqueue_all_v1(
    unit_spec text,
    unit_source_pks text[],
    lane integer
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO {tables}.pgembed_job AS job (spec, source_pk, priority, traceparent)
    SELECT
        unit_spec,
        source_pk,
        lane,
        -- Set by whoever traces the write. Empty if it was set in an earlier transaction.
        NULLIF(left(current_setting('pgembed.traceparent', true), 55), '')
    -- DISTINCT: a key that is there twice (if its constraint is deferred) would raise an error.
    FROM (SELECT DISTINCT unnest(unit_source_pks)) AS written(source_pk)
    {enqueue_end_v1}

    {nudge_v1}
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_all_v1(text, text[], integer) TO PUBLIC;
