-- The source table was truncated: delete everything that we hold of its rows.
--
-- The writer has locked the table exclusively until it commits, so none of its rows can
-- be read or enqueued meanwhile. So unlike pgembed_forget_v1 this leaves no pending jobs.
CREATE OR REPLACE FUNCTION {functions}.pgembed_forget_all_v1(
    unit_spec text,
    embedding_table text
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    chunks regclass := {embedding_table_v1};
BEGIN
    DELETE FROM {tables}.pgembed_job
    WHERE spec = unit_spec
      AND status IN ('pending', 'running');

    -- Delete from embedding tables only, as in pgembed_forget_v1. It may be gone already.
    IF EXISTS (
        SELECT FROM pg_attribute
        JOIN pg_class ON pg_class.oid = attrelid
        WHERE attrelid = chunks
          AND attname IN ('source_id', 'space_id', 'chunk_digest', 'text_digest', 'embedding')
          AND relpersistence <> 't'
          AND has_table_privilege(relowner, {space}::regclass, 'INSERT')
        HAVING count(*) = 5
    ) THEN
        -- DELETE, not TRUNCATE: a search that has locked this table and waits for the source
        -- table must not deadlock with the writer.
        EXECUTE format('DELETE FROM %s', chunks);
    END IF;

    DELETE FROM {tables}.pgembed_staging
    WHERE spec = unit_spec;

    UPDATE {tables}.pgembed_job
    SET settled_at = statement_timestamp()
    WHERE spec = unit_spec
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_forget_all_v1(text, text) TO PUBLIC;
