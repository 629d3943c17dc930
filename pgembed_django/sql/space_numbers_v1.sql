-- Spaces are numbered from anywhere. Vectors that come from another database, table by
-- table, carry its numbers: here they are to be nobody's, not another model's.
DO $$
BEGIN
    EXECUTE format(
        'ALTER TABLE pgembed_space ALTER COLUMN id SET START WITH %s RESTART',
        100000 + floor(random() * 900000)::integer
    );
END
$$;
