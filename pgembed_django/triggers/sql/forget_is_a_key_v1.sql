    CASE
        WHEN key_type = 'uuid'::regtype
        THEN length(unit_source_pk) = 36 AND unit_source_pk ~ '^[0-9a-f-]+$'
        WHEN key_type IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)
         AND unit_source_pk !~ '^-?[0-9]+$'
        THEN false
        WHEN key_type = 'smallint'::regtype
        THEN unit_source_pk::numeric BETWEEN '-32768' AND '32767'
        WHEN key_type = 'integer'::regtype
        THEN unit_source_pk::numeric BETWEEN '-2147483648' AND '2147483647'
        WHEN key_type = 'bigint'::regtype
        THEN unit_source_pk::numeric BETWEEN '-9223372036854775808' AND '9223372036854775807'
        ELSE key_type IS NOT NULL
    END
