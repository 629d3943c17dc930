-- A row of another table has changed that texts are made of: leave a ripple for its key, or for
-- the one before and the one after, and wake an idle worker, who finds the units.
--
-- The table has no unique index but that of its ids. So the writer locks nothing that others
-- write, and never waits, in whatever order several writers change the same rows.
CREATE OR REPLACE FUNCTION {functions}.pgembed_ripple_v1(
    unit_spec text,
    unit_path text,
    related_keys text[]
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- One by one: a query over them would cost the writer a quarter more.
    FOR number IN 1 .. cardinality(related_keys) LOOP
        IF related_keys[number] IS NOT NULL
            AND (number = 1 OR related_keys[number] IS DISTINCT FROM related_keys[1])
        THEN
            INSERT INTO {tables}.pgembed_ripple (spec, path, key)
            VALUES (unit_spec, unit_path, related_keys[number]);
        END IF;
    END LOOP;

    {nudge_v1}
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_ripple_v1(text, text, text[]) TO PUBLIC;
