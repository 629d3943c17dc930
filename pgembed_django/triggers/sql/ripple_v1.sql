-- Rows of another table have changed that texts are made of: leave a ripple for each of their
-- keys, and wake an idle worker, who finds the units.
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
    INSERT INTO {tables}.pgembed_ripple (spec, path, key)
    SELECT DISTINCT unit_spec, unit_path, related_key
    FROM unnest(related_keys) AS changed(related_key)
    WHERE related_key IS NOT NULL;

    {nudge_v1}
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_ripple_v1(text, text, text[]) TO PUBLIC;
