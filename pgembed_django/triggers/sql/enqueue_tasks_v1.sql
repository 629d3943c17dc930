-- Enqueue many calls of one function in the caller's transaction. Returns the tasks' ids in the
-- order of `calls`, a JSON array of objects: {{"arguments", "tenant", "once", "coalesce_key",
-- "serial"}}, each of which may be left out. The rules are those of pgembed_enqueue_task_v1.
CREATE OR REPLACE FUNCTION {functions}.pgembed_enqueue_tasks_v1(
    function text,
    calls jsonb,
    queue text DEFAULT 'default',
    priority integer DEFAULT 0,
    run_after timestamptz DEFAULT NULL,
    once_for interval DEFAULT '7 days',
    bump text DEFAULT 'keep',
    max_wait interval DEFAULT NULL,
    batch bigint DEFAULT NULL
)
RETURNS bigint[]
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    unit_spec text := queue;
    ids bigint[] := array_fill(NULL::bigint, ARRAY[jsonb_array_length(calls)]);
    due timestamptz := COALESCE(run_after, statement_timestamp());
    call record;
BEGIN
    -- In the order of their keys: else two callers could wait for a key of each other.
    FOR call IN
        SELECT place, given
        FROM jsonb_array_elements(calls) WITH ORDINALITY AS one(given, place)
        WHERE NOT {plain_call_v1}
        ORDER BY
            COALESCE(given ->> 'tenant', '') COLLATE "C",
            given ->> 'once' COLLATE "C",
            place
    LOOP
        -- All of its arguments, each of its type: nobody can define a function that fits better.
        ids[call.place] := {functions}.pgembed_enqueue_task_v1(
            function,
            COALESCE(call.given -> 'arguments', '{{}}'::jsonb),
            queue,
            COALESCE(call.given ->> 'tenant', ''::text),
            priority,
            run_after,
            call.given ->> 'once',
            once_for,
            call.given ->> 'coalesce_key',
            bump,
            max_wait,
            call.given ->> 'serial',
            batch,
            false
        );
    END LOOP;

    FOR call IN
        WITH plain AS MATERIALIZED (
            SELECT place, given, nextval({task_ids}) AS id
            FROM jsonb_array_elements(calls) WITH ORDINALITY AS one(given, place)
            WHERE {plain_call_v1}
        ),
        inserted AS (
            INSERT INTO {tables}.pgembed_task (
                id, spec, source_pk, kind, arguments, tenant, priority, run_at, serial, batch_id,
                traceparent
            )
            SELECT
                id,
                queue,
                id::text,
                function,
                COALESCE(given -> 'arguments', '{{}}'::jsonb),
                COALESCE(given ->> 'tenant', ''),
                priority,
                due,
                given ->> 'serial',
                batch,
                NULLIF(left(current_setting('pgembed.traceparent', true), 55), '')
            FROM plain
            ORDER BY place
        )
        SELECT place, id FROM plain
    LOOP
        ids[call.place] := call.id;
    END LOOP;
    {nudge_v1}
    RETURN ids;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_enqueue_tasks_v1(
    text, jsonb, text, integer, timestamptz, interval, text, interval, bigint
) TO PUBLIC;
