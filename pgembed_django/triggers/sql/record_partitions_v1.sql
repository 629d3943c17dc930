-- Make the partitions of kept results for this month and the next, which a worker's role may not.
-- They are attached, not created as partitions: that would lock the results that others use.
CREATE OR REPLACE FUNCTION {functions}.pgembed_record_partitions_v1()
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    begins timestamp;
    name text;
    partition text;
BEGIN
    -- Without migrations it is an ordinary table, made from the model.
    IF (
        SELECT relkind <> 'p'
        FROM pg_class
        WHERE oid = to_regclass({schema} || 'pgembed_taskrecord')
    ) THEN
        RETURN;
    END IF;
    FOR begins IN
        SELECT date_trunc('month', statement_timestamp() AT TIME ZONE 'UTC') + ahead
        FROM unnest(ARRAY[interval '0', interval '1 month']) AS ahead
    LOOP
        name := to_char(begins, '"pgembed_taskrecord_"YYYY_MM');
        partition := {schema} || name;
        CONTINUE WHEN to_regclass(partition) IS NOT NULL;
        -- Other workers start at the same time.
        PERFORM pg_advisory_xact_lock(hashtextextended(partition, {job}::regclass::oid::bigint));
        -- Not by to_regclass again, which remembers for this session that there was none.
        CONTINUE WHEN EXISTS (
            SELECT
            FROM pg_class
            WHERE pg_class.relname = name
              AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = {job}::regclass)
        );
        EXECUTE format(
            'CREATE TABLE %s (LIKE %spgembed_taskrecord INCLUDING ALL)', partition, {schema}
        );
        EXECUTE format(
            'ALTER TABLE %spgembed_taskrecord ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)',
            {schema},
            partition,
            begins AT TIME ZONE 'UTC',
            (begins + interval '1 month') AT TIME ZONE 'UTC'
        );
    END LOOP;
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_record_partitions_v1() TO PUBLIC;
