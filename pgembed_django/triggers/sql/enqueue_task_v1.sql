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
    problem := {task_problem_v1};
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

    -- A key that is taken is only read. ON CONFLICT DO UPDATE would lock it until this transaction
    -- ends, and the end of its task would wait for that.
    WHILE once IS NOT NULL LOOP
        SELECT task_id
        INTO found_id
        FROM {tables}.pgembed_taskkey AS taken
        WHERE taken.tenant = pgembed_enqueue_task_v1.tenant
          AND taken.key = once
          AND (taken.expires_at < statement_timestamp()) IS NOT TRUE;
        IF FOUND THEN
            RETURN found_id;
        END IF;
        UPDATE {tables}.pgembed_taskkey AS taken
        SET
            task_id = new_id,
            kept_for = once_for,
            created_at = statement_timestamp(),
            expires_at = NULL
        WHERE taken.tenant = pgembed_enqueue_task_v1.tenant
          AND taken.key = once
          AND taken.expires_at < statement_timestamp();
        EXIT WHEN FOUND;
        INSERT INTO {tables}.pgembed_taskkey (tenant, key, task_id, kept_for)
        VALUES (tenant, once, new_id, once_for)
        ON CONFLICT ON CONSTRAINT pgembed_one_task_per_key DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;

    IF coalesce_key IS NOT NULL THEN
        -- SKIP LOCKED: whoever has locked the pending one, a writer or a claim, need not be waited
        -- for, as another one is inserted then. The claim collapses them into the newest. So an
        -- older one will not do: if the writer of the newest is rolled back, that one would win.
        SELECT task.id
        INTO found_id
        FROM {tables}.pgembed_task AS task
        WHERE task.status = 'pending'
          AND task.id = (
              SELECT max(newest.id)
              FROM {tables}.pgembed_task AS newest
              WHERE newest.status = 'pending'
                AND newest.is_coalesced
                AND newest.spec = queue
                AND newest.source_pk = coalesce_key
                AND newest.tenant = pgembed_enqueue_task_v1.tenant
                AND newest.kind = function
          )
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
                outages = 0,
                -- Whoever asked for its end meant the call before.
                cancel_asked_at = NULL
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
