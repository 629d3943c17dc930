    SELECT max(atttypid) FILTER (WHERE attname = 'source_id')
    INTO key_type
    FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid
    WHERE attrelid = chunks
      AND attname IN ('source_id', 'space_id', 'chunk_digest', 'text_digest', 'embedding')
      AND relpersistence <> 't'
      AND has_table_privilege(relowner, {space}::regclass, 'INSERT')
    HAVING count(*) = 5;
