-- A task has ended, or is tried again after it had: its key expires from now on, and the last one of
-- a batch enqueues what follows. Tasks with neither never come here.
--
-- Ends are not counted, as all of a batch would wait for each other at its row: it tells how many
-- have failed, and the index of those that have not ended tells the rest.
CREATE OR REPLACE FUNCTION {functions}.pgembed_task_ended_v1()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_again boolean := TG_OP = 'UPDATE' AND NEW.status = 'pending';
    awaited bigint;
BEGIN
    IF OLD.once IS NOT NULL THEN
        UPDATE {tables}.pgembed_taskkey
        SET expires_at = CASE WHEN NOT is_again THEN statement_timestamp() + kept_for END
        WHERE tenant = OLD.tenant
          AND key = OLD.once
          AND task_id = OLD.id;
    END IF;
    IF OLD.batch_id IS NOT NULL THEN
        IF TG_OP = 'UPDATE' THEN
            UPDATE {tables}.pgembed_taskbatch
            SET failed = failed + CASE WHEN is_again THEN -1 ELSE 1 END
            WHERE id = OLD.batch_id
              -- What follows has been enqueued.
              AND ended_at IS NULL;
        END IF;
        IF NOT is_again
            AND EXISTS (
                SELECT
                FROM {tables}.pgembed_taskbatch
                WHERE id = OLD.batch_id
                  AND ended_at IS NULL
            )
        THEN
            -- Another one that is free will end later, and look then. It is locked until this
            -- transaction ends, so that it sees this end. Remembered, as many may end at once.
            SELECT id
            INTO awaited
            FROM {tables}.pgembed_task
            WHERE id = NULLIF(current_setting('pgembed.awaited', true), '')::bigint
              AND batch_id = OLD.batch_id
              AND status IN ('pending', 'running')
            FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                SELECT id
                INTO awaited
                FROM {tables}.pgembed_task
                WHERE batch_id = OLD.batch_id
                  AND status IN ('pending', 'running')
                -- From the back, as claims begin at the front.
                ORDER BY id DESC
                LIMIT 1
                FOR NO KEY UPDATE SKIP LOCKED;
                PERFORM set_config('pgembed.awaited', COALESCE(awaited::text, ''), true);
            END IF;
            -- All others have ended or are about to. Each waits here for those before.
            IF awaited IS NULL THEN
                PERFORM {functions}.pgembed_end_batch_v1(OLD.batch_id);
            END IF;
        END IF;
    END IF;
    RETURN NULL;
END
$$;

-- Whoever may make a table could else let a trigger of its own call it.
REVOKE EXECUTE ON FUNCTION {functions}.pgembed_task_ended_v1() FROM PUBLIC;
