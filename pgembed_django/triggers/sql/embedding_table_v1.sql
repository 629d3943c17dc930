to_regclass(
        -- An unqualified name is that of a table beside ours.
        CASE WHEN cardinality(parse_ident(embedding_table)) = 1 THEN {schema} ELSE '' END
        || embedding_table
    )
