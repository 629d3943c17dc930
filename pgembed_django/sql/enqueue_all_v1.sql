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
    -- A key that is there twice (its constraint is deferred) would stop the writer. With its
    -- schema: an unnest() of a role's own, for just this type, would be preferred.
    FROM (SELECT DISTINCT pg_catalog.unnest(unit_source_pks)) AS written(source_pk)
    {enqueue_end_v1}
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_all_v1(text, text[], integer) TO PUBLIC;
