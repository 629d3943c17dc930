-- What keeps a task from being enqueued, or NULL.
CASE
    WHEN function IS NULL OR arguments IS NULL OR queue IS NULL OR tenant IS NULL
      OR priority IS NULL OR once_for IS NULL OR bump IS NULL OR is_scheduled IS NULL
    THEN 'function, arguments, queue, tenant, priority, once_for and bump must not be NULL'
    WHEN jsonb_typeof(arguments) <> 'object' OR arguments - 'args' - 'kwargs' <> '{{}}'
    THEN 'arguments must be an object with "args", "kwargs" or both'
    WHEN jsonb_typeof(arguments -> 'args') <> 'array'
    THEN '"args" must be an array'
    WHEN jsonb_typeof(arguments -> 'kwargs') <> 'object'
    THEN '"kwargs" must be an object'
    WHEN queue LIKE '%.%' OR octet_length(queue) NOT BETWEEN 1 AND 800
    THEN format('the name of a queue has no dot, and is neither empty nor long: %L', queue)
    WHEN bump NOT IN ('keep', 'latest', 'replace')
    THEN format('bump must be keep, latest or replace, not %L', bump)
    WHEN bump = 'latest' AND coalesce_key IS NOT NULL AND max_wait IS NULL
    THEN 'bump "latest" needs max_wait: it would postpone the task for ever'
    WHEN priority NOT BETWEEN -100 AND 100
    THEN format('priority must be between -100 and 100, not %s', priority)
    WHEN coalesce_key IS NOT NULL AND (once IS NOT NULL OR batch IS NOT NULL)
    THEN 'coalesce_key excludes once and batch'
END
