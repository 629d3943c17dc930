-- Enqueue what follows a batch, if all its tasks have ended. The caller has locked the batch.
CREATE OR REPLACE FUNCTION {functions}.pgembed_end_batch_v1(batch bigint)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH ended AS (
        SELECT id, following
        FROM {tables}.pgembed_taskbatch
        WHERE id = batch
          AND ended_at IS NOT NULL
          AND following IS NOT NULL
          AND following_id IS NULL
    )
    UPDATE {tables}.pgembed_taskbatch AS done
    SET following_id = {functions}.pgembed_enqueue_task_v1(
        function => ended.following ->> 'function',
        arguments => COALESCE(ended.following -> 'arguments', '{{}}'),
        queue => COALESCE(ended.following ->> 'queue', 'default'),
        tenant => COALESCE(ended.following ->> 'tenant', ''),
        priority => COALESCE((ended.following ->> 'priority')::integer, 0),
        once => ended.following ->> 'once',
        serial => ended.following ->> 'serial'
    )
    FROM ended
    WHERE done.id = ended.id;
$$;

REVOKE EXECUTE ON FUNCTION {functions}.pgembed_end_batch_v1(bigint) FROM PUBLIC;
