-- A source row was deleted, got another key or no longer matches its spec's condition:
-- delete its vectors in the writer's own transaction.
CREATE OR REPLACE FUNCTION {functions}.pgembed_forget_v1(
    unit_spec text,
    unit_source_pk text,
    lane integer,
    embedding_table text
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A session keeps its plans until there are new statistics. A plan that was made for a
-- table of ten jobs would read the whole table, even once it has a million.
SET enable_seqscan = off
AS $$
DECLARE
    chunks regclass := {embedding_table_v1};
    key_type regtype;
    is_a_key boolean;
    equals text := '=';
BEGIN
    -- First lock the unit's pending job, or add one, until this transaction ends. So
    -- nobody can start to work on the unit meanwhile, neither by this job nor by one
    -- that the reconciler would add. The job outlives the commit: a worker claims it,
    -- finds the row gone, and deletes chunks that this function could not see, because
    -- the writer's snapshot (REPEATABLE READ) is older than the commit that stored them.
    INSERT INTO {tables}.pgembed_job AS job (spec, source_pk, priority)
    VALUES (unit_spec, unit_source_pk, lane)
    {forget_end_v1}

    -- Then delete the running job. This waits for a worker that is storing vectors at this
    -- moment, and takes the lease from one that would store them later.
    DELETE FROM {tables}.pgembed_job
    WHERE spec = unit_spec
      AND source_pk = unit_source_pk
      AND status = 'running';

    -- The chunks are deleted by a later statement, whose snapshot sees what that worker stored.
    --
    -- Anyone may call this function, and a table's triggers would run with its rights. So
    -- it deletes only from a table with the columns of an embedding table, whose owner may
    -- open spaces (the role that migrated, or a worker's role), and which is not temporary,
    -- as the application's role may be allowed to create temporary tables. If the table is
    -- gone, there is nothing to delete, and no reason to stop the writer.
    {forget_key_type_v1}

    -- Another column may have become the key while source_id still has the former key's
    -- type. A key that source_id cannot hold has no chunks.
    is_a_key := {forget_is_a_key_v1};
    IF is_a_key THEN
        {forget_equals_v1}
        EXECUTE format('DELETE FROM %s WHERE source_id %s %L', chunks, equals, unit_source_pk);
    END IF;

    DELETE FROM {tables}.pgembed_staging
    WHERE spec = unit_spec
      AND source_pk = unit_source_pk;

    UPDATE {tables}.pgembed_job
    SET settled_at = statement_timestamp()
    WHERE spec = unit_spec
      AND source_pk = unit_source_pk
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_forget_v1(text, text, integer, text) TO PUBLIC;
