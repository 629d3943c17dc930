-- Source rows were written: leave a message in the write-ahead log, which a worker reads after the
-- commit. `verb` is enqueue, forget or forget_all.
--
-- Locks nothing and writes to no table. A message of a transaction that is rolled back is not read.
CREATE OR REPLACE FUNCTION {functions}.pgembed_emit_v1(
    verb text,
    unit_spec text,
    lane integer,
    embedding_table text,
    source_pks text[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_catalog.pg_logical_emit_message(
        true,
        'pgembed',
        -- It is sent as it is, whatever the encoding of the database.
        pg_catalog.convert_to(
            pg_catalog.json_build_array(verb, unit_spec, lane, embedding_table, source_pks)::text,
            'UTF8'
        )
    );
END
$$;

GRANT EXECUTE ON FUNCTION {functions}.pgembed_emit_v1(text, text, integer, text, text[]) TO PUBLIC;
