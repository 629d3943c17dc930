-- A task has ended, or is tried again after it had: its key expires from now on, its batch counts
-- it, and the last one of a batch enqueues what follows. Tasks with neither never come here.
CREATE OR REPLACE FUNCTION {functions}.pgembed_task_ended_v1()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_again boolean := TG_OP = 'UPDATE' AND NEW.status = 'pending';
    step integer := CASE WHEN is_again THEN -1 ELSE 1 END;
    has_failed boolean := TG_OP = 'UPDATE';
    following jsonb;
BEGIN
    IF OLD.once IS NOT NULL THEN
        UPDATE {tables}.pgembed_taskkey
        SET expires_at = CASE WHEN NOT is_again THEN statement_timestamp() + kept_for END
        WHERE tenant = OLD.tenant
          AND key = OLD.once
          AND task_id = OLD.id;
    END IF;
    IF OLD.batch_id IS NOT NULL THEN
        UPDATE {tables}.pgembed_taskbatch AS batch
        SET
            ended = batch.ended + step,
            failed = batch.failed + CASE WHEN has_failed THEN step ELSE 0 END,
            ended_at = CASE WHEN batch.ended + step = batch.total THEN statement_timestamp() END
        WHERE batch.id = OLD.batch_id
          -- What follows has been enqueued.
          AND batch.ended_at IS NULL;
        IF FOUND THEN
            PERFORM {functions}.pgembed_end_batch_v1(OLD.batch_id);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER pgembed_task_is_gone
AFTER DELETE ON {tables}.pgembed_task
FOR EACH ROW
WHEN (
    (OLD.once IS NOT NULL OR OLD.batch_id IS NOT NULL)
    -- A failed one had ended before.
    AND OLD.status IN ('pending', 'running')
)
EXECUTE FUNCTION {functions}.pgembed_task_ended_v1();

CREATE OR REPLACE TRIGGER pgembed_task_has_failed
AFTER UPDATE OF status ON {tables}.pgembed_task
FOR EACH ROW
WHEN (
    (OLD.once IS NOT NULL OR OLD.batch_id IS NOT NULL)
    AND (OLD.status IN ('pending', 'running')) = (NEW.status = 'failed')
    AND NEW.status IN ('pending', 'failed')
)
EXECUTE FUNCTION {functions}.pgembed_task_ended_v1();
