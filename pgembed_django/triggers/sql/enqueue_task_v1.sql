-- Enqueue a task in the caller's transaction, and wake an idle worker. Returns the task's id, or
-- with `once` that of the task which was enqueued under the same key before.
--
-- `once` waits for a transaction that has just enqueued under the same key: only its end tells
-- whether the key is taken. Nothing else here waits.
CREATE OR REPLACE FUNCTION {functions}.pgembed_enqueue_task_v1(
    function text,
    arguments jsonb DEFAULT '{{}}',
    queue text DEFAULT 'default',
    tenant text DEFAULT '',
    priority integer DEFAULT 0,
    run_after timestamptz DEFAULT NULL,
    once text DEFAULT NULL,
    once_for interval DEFAULT '7 days',
    coalesce_key text DEFAULT NULL,
    bump text DEFAULT 'keep',
    max_wait interval DEFAULT NULL,
    serial text DEFAULT NULL,
    batch bigint DEFAULT NULL,
    is_scheduled boolean DEFAULT false
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    unit_spec text := queue;
    new_id bigint := nextval({task_ids});
    due timestamptz := COALESCE(run_after, statement_timestamp());
    found_id bigint;
    problem text;
BEGIN
    problem := CASE
        WHEN num_nulls(function, arguments, queue, tenant, priority, once_for, bump, is_scheduled) > 0
        THEN 'function, arguments, queue, tenant, priority, once_for and bump must not be NULL'
        WHEN jsonb_typeof(arguments) <> 'object' OR arguments - 'args' - 'kwargs' <> '{{}}'
        THEN 'arguments must be an object with "args", "kwargs" or both'
        WHEN jsonb_typeof(arguments -> 'args') <> 'array'
        THEN '"args" must be an array'
        WHEN jsonb_typeof(arguments -> 'kwargs') <> 'object'
        THEN '"kwargs" must be an object'
        WHEN queue LIKE '%.%' OR queue = ''
        THEN format('the name of a queue has no dot, and is not empty: %L', queue)
        WHEN bump NOT IN ('keep', 'latest', 'replace')
        THEN format('bump must be keep, latest or replace, not %L', bump)
        WHEN bump = 'latest' AND coalesce_key IS NOT NULL AND max_wait IS NULL
        THEN 'bump "latest" needs max_wait: it would postpone the task for ever'
        WHEN priority NOT BETWEEN -100 AND 100
        THEN format('priority must be between -100 and 100, not %s', priority)
        WHEN coalesce_key IS NOT NULL AND (once IS NOT NULL OR batch IS NOT NULL)
        THEN 'coalesce_key excludes once and batch'
    END;
    IF problem IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = problem;
    END IF;
    -- No index takes a longer one. Its digest tells it from others just as well.
    IF octet_length(tenant) > 800 THEN
        tenant := left(tenant, 100) || encode(sha256(convert_to(tenant, 'UTF8')), 'hex');
    END IF;
    IF octet_length(once) > 800 THEN
        once := left(once, 100) || encode(sha256(convert_to(once, 'UTF8')), 'hex');
    END IF;
    IF octet_length(coalesce_key) > 800 THEN
        coalesce_key :=
            left(coalesce_key, 100) || encode(sha256(convert_to(coalesce_key, 'UTF8')), 'hex');
    END IF;
    IF octet_length(serial) > 800 THEN
        serial := left(serial, 100) || encode(sha256(convert_to(serial, 'UTF8')), 'hex');
    END IF;

    IF once IS NOT NULL THEN
        INSERT INTO {tables}.pgembed_taskkey AS taken (tenant, key, task_id, kept_for)
        VALUES (tenant, once, new_id, once_for)
        ON CONFLICT ON CONSTRAINT pgembed_one_task_per_key DO UPDATE SET
            task_id = excluded.task_id,
            kept_for = excluded.kept_for,
            created_at = excluded.created_at,
            expires_at = NULL
        -- Locks the key in any case, so that the next statement sees it.
        WHERE taken.expires_at < statement_timestamp();
        IF NOT FOUND THEN
            SELECT task_id
            INTO STRICT found_id
            FROM {tables}.pgembed_taskkey AS taken
            WHERE taken.tenant = pgembed_enqueue_task_v1.tenant
              AND taken.key = once;
            RETURN found_id;
        END IF;
    END IF;

    IF coalesce_key IS NOT NULL THEN
        -- SKIP LOCKED: whoever has locked the pending one, a writer or a claim, need not be waited
        -- for, as another one is inserted then. The claim collapses them.
        SELECT task.id
        INTO found_id
        FROM {tables}.pgembed_task AS task
        WHERE task.status = 'pending'
          AND task.is_coalesced
          AND task.spec = queue
          AND task.source_pk = coalesce_key
          AND task.kind = function
        ORDER BY task.id DESC
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE {tables}.pgembed_task AS task
            SET
                arguments = CASE
                    WHEN bump = 'keep' THEN task.arguments
                    ELSE pgembed_enqueue_task_v1.arguments
                END,
                priority = GREATEST(task.priority, pgembed_enqueue_task_v1.priority),
                run_at = CASE bump
                    WHEN 'keep' THEN LEAST(task.run_at, due)
                    WHEN 'replace' THEN due
                    -- Never postponed for ever.
                    ELSE LEAST(GREATEST(task.run_at, due), task.created_at + max_wait)
                END,
                attempts = 0,
                crashes = 0,
                outages = 0
            WHERE task.id = found_id;
            {nudge_v1}
            RETURN found_id;
        END IF;
    END IF;

    INSERT INTO {tables}.pgembed_task AS task (
        id, spec, source_pk, kind, arguments, tenant, priority, run_at, once, serial, is_coalesced,
        batch_id, is_scheduled, is_awaited, traceparent
    )
    VALUES (
        new_id,
        queue,
        COALESCE(coalesce_key, new_id::text),
        function,
        arguments,
        tenant,
        priority,
        due,
        once,
        COALESCE(serial, coalesce_key),
        coalesce_key IS NOT NULL,
        batch,
        is_scheduled,
        NOT is_scheduled,
        NULLIF(left(current_setting('pgembed.traceparent', true), 55), '')
    )
    -- Each schedule has one run that is yet to end.
    ON CONFLICT (kind) WHERE is_scheduled AND status IN ('pending', 'running') DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    {nudge_v1}
    RETURN new_id;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_task_v1(
    text, jsonb, text, text, integer, timestamptz, text, interval, text, text, interval, text,
    bigint, boolean
) TO PUBLIC;
