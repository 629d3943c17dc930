-- Enqueue tasks together, and one that follows when all of them have ended. Returns the batch's id.
--
-- Each of `tasks`, and `following`, is an object with the parameters of pgembed_enqueue_task_v1:
-- function, arguments, queue, tenant, priority, run_after and serial; `following` also once.
CREATE OR REPLACE FUNCTION {functions}.pgembed_enqueue_batch_v1(
    tasks jsonb,
    following jsonb DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    batch_id bigint;
    unknown text;
    problem text;
BEGIN
    IF jsonb_typeof(tasks) IS DISTINCT FROM 'array'
        OR jsonb_path_exists(tasks, 'strict $[*] ? (@.type() != "object")')
    THEN
        RAISE invalid_parameter_value USING MESSAGE = 'tasks must be an array of objects';
    END IF;
    -- Otherwise the last of the tasks could not end.
    IF jsonb_typeof(following) <> 'object' OR following ? 'run_after' THEN
        RAISE invalid_parameter_value
        USING MESSAGE = 'following must be an object without run_after';
    END IF;
    SELECT {task_problem_v1}
    INTO problem
    FROM (
        SELECT
            following ->> 'function' AS function,
            COALESCE(following -> 'arguments', '{{}}') AS arguments,
            COALESCE(following ->> 'queue', 'default') AS queue,
            COALESCE(following ->> 'tenant', '') AS tenant,
            COALESCE((following ->> 'priority')::integer, 0) AS priority,
            following ->> 'once' AS once,
            interval '7 days' AS once_for,
            NULL::text AS coalesce_key,
            'keep'::text AS bump,
            NULL::interval AS max_wait,
            NULL::bigint AS batch,
            false AS is_scheduled
    ) AS given
    WHERE following IS NOT NULL;
    IF problem IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'following: ' || problem;
    END IF;
    SELECT name
    INTO unknown
    FROM jsonb_array_elements(tasks || COALESCE(following - 'once', '{{}}')) AS given(task),
        jsonb_object_keys(task) AS name
    WHERE name <> ALL (ARRAY[
        'function', 'arguments', 'queue', 'tenant', 'priority', 'run_after', 'serial'
    ])
    LIMIT 1;
    IF FOUND THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'a task of a batch has no %L: it has function, arguments, queue, tenant, priority, '
            'run_after and serial', unknown
        );
    END IF;

    INSERT INTO {tables}.pgembed_taskbatch (total, following)
    VALUES (jsonb_array_length(tasks), following)
    RETURNING id INTO batch_id;

    PERFORM {functions}.pgembed_enqueue_task_v1(
        function => task ->> 'function',
        arguments => COALESCE(task -> 'arguments', '{{}}'),
        queue => COALESCE(task ->> 'queue', 'default'),
        tenant => COALESCE(task ->> 'tenant', ''),
        priority => COALESCE((task ->> 'priority')::integer, 0),
        run_after => (task ->> 'run_after')::timestamptz,
        serial => task ->> 'serial',
        batch => batch_id
    )
    FROM jsonb_array_elements(tasks) AS given(task);
    IF jsonb_array_length(tasks) = 0 THEN
        PERFORM {functions}.pgembed_end_batch_v1(batch_id);
    END IF;
    RETURN batch_id;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_batch_v1(jsonb, jsonb) TO PUBLIC;
