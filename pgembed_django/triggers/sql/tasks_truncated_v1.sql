-- All tasks are gone: their keys expire, and their batches are over.
CREATE OR REPLACE FUNCTION {functions}.pgembed_tasks_truncated_v1()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE {tables}.pgembed_taskkey
    SET expires_at = statement_timestamp() + kept_for
    WHERE expires_at IS NULL;
    UPDATE {tables}.pgembed_taskbatch
    SET ended_at = statement_timestamp()
    WHERE ended_at IS NULL;
    RETURN NULL;
END
$$;

-- Whoever may make a table could else let a trigger of its own call it.
REVOKE EXECUTE ON FUNCTION {functions}.pgembed_tasks_truncated_v1() FROM PUBLIC;
