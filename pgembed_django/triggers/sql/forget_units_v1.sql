-- Many source rows were deleted, or got other keys: do for all of them what pgembed_forget_v1 does for
-- one, which says why it does so. Called by the worker that reads the write-ahead log.
CREATE OR REPLACE FUNCTION {functions}.pgembed_forget_units_v1(
    unit_spec text,
    unit_source_pks text[],
    lane integer,
    embedding_table text
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    chunks regclass := {embedding_table_v1};
    key_type regtype;
    keys text[];
    equals text := '=';
BEGIN
    INSERT INTO {tables}.pgembed_job AS job (spec, source_pk, priority)
    SELECT unit_spec, source_pk, lane
    -- DISTINCT: a key that is there twice would raise an error.
    FROM (SELECT DISTINCT unnest(unit_source_pks)) AS gone(source_pk)
    {forget_end_v1}

    DELETE FROM {tables}.pgembed_job
    WHERE spec = unit_spec
      AND source_pk = ANY(unit_source_pks)
      AND status = 'running';

    {forget_key_type_v1}
    SELECT array_agg(unit_source_pk)
    INTO keys
    FROM unnest(unit_source_pks) AS gone(unit_source_pk)
    WHERE {forget_is_a_key_v1};
    IF keys IS NOT NULL THEN
        {forget_equals_v1}
        EXECUTE format('DELETE FROM %s WHERE source_id %s ANY(%L)', chunks, equals, keys);
    END IF;

    DELETE FROM {tables}.pgembed_staging
    WHERE spec = unit_spec
      AND source_pk = ANY(unit_source_pks);

    UPDATE {tables}.pgembed_job
    SET settled_at = statement_timestamp()
    WHERE spec = unit_spec
      AND source_pk = ANY(unit_source_pks)
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_forget_units_v1(text, text[], integer, text) TO PUBLIC;
