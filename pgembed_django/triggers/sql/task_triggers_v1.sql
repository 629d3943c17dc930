-- What calls the functions for the ends of tasks. Plain tasks do not come there.
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

CREATE OR REPLACE TRIGGER pgembed_tasks_truncated
AFTER TRUNCATE ON {tables}.pgembed_task
FOR EACH STATEMENT
EXECUTE FUNCTION {functions}.pgembed_tasks_truncated_v1();
