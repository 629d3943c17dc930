        -- The search_path has no operators of extensions. citext, for instance, brings its own,
        -- and an index that only this one uses.
        IF key_type >= 16384 THEN
            SELECT COALESCE(max(format('OPERATOR(%s)', amopopr::regoper)), '=')
            INTO equals
            FROM pg_opclass
            JOIN pg_amop ON amopfamily = opcfamily
            WHERE opcintype = key_type
              AND opcdefault
              AND opcmethod = (SELECT oid FROM pg_am WHERE amname = 'btree')
              AND amoplefttype = key_type
              AND amoprighttype = key_type
              AND amopstrategy = 3;
        END IF;
