-- Enqueue what follows a batch, if all its tasks have ended. Two that end the last tasks wait for
-- each other here.
CREATE OR REPLACE FUNCTION {functions}.pgembed_end_batch_v1(batch bigint)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    following jsonb;
BEGIN
    SELECT done.following
    INTO following
    FROM {tables}.pgembed_taskbatch AS done
    WHERE done.id = batch
      AND done.ended_at IS NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A statement of its own: it sees what those before have committed.
    IF EXISTS (
        SELECT
        FROM {tables}.pgembed_task AS task
        WHERE task.batch_id = batch
          AND task.status IN ('pending', 'running')
    ) THEN
        -- Whoever waits here at a stricter isolation level will not see this end: it has to fail.
        UPDATE {tables}.pgembed_taskbatch AS done
        SET failed = done.failed
        WHERE done.id = batch;
        RETURN;
    END IF;
    UPDATE {tables}.pgembed_taskbatch AS done
    SET
        ended_at = statement_timestamp(),
        following_id = CASE WHEN following IS NOT NULL THEN
            {functions}.pgembed_enqueue_task_v1(
                function => following ->> 'function',
                arguments => COALESCE(following -> 'arguments', '{{}}'),
                queue => COALESCE(following ->> 'queue', 'default'),
                tenant => COALESCE(following ->> 'tenant', ''),
                priority => COALESCE((following ->> 'priority')::integer, 0),
                once => following ->> 'once',
                serial => following ->> 'serial'
            )
        END
    WHERE done.id = batch;
END
$$;

REVOKE EXECUTE ON FUNCTION {functions}.pgembed_end_batch_v1(bigint) FROM PUBLIC;
