-- Roles with no more rights than they need, for a project called mysite: replace that name.
--
--   mysite_web      saves rows, and searches
--   mysite_staff    also serves the admin pages of pgembed. Leave it out if nobody uses them
--   mysite_worker   runs embed_worker and the other embed_ commands
--
-- The owner of the tables runs migrate, and needs no role from here. Run this after migrate, and
-- again after each migrate that adds a decorated model, as a superuser, or as that owner if it
-- has CREATEROLE and also owns the database:
--
--   psql -v ON_ERROR_STOP=1 -f roles.sql mysite
--
-- Then grant the roles to the users that log in: GRANT mysite_worker TO worker_login.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['mysite_web', 'mysite_staff', 'mysite_worker'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END
$$;

-- Saving rows needs no rights on our tables: triggers call functions that have them. What
-- mysite_web may do with your own tables is up to you. To call the functions, and to search:
DO $$
BEGIN
    EXECUTE format(
        'GRANT USAGE ON SCHEMA %s TO mysite_web, mysite_worker',
        (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'pgembed_job'::regclass)
    );
END
$$;
GRANT SELECT ON pgembed_space TO mysite_web;
GRANT SELECT (spec, scan, finished_recipe) ON pgembed_scancursor TO mysite_web;
-- Only for @embeddable(stale="hide"). Not the errors, which may quote answers of providers.
GRANT SELECT (spec, source_pk, status, is_awaited, settled_at) ON pgembed_job TO mysite_web;

-- The admin pages read all our tables. Retry, Dismiss, Cancel and Pause write to three of them;
-- Re-embed deletes staged vectors, and records the progress of a run over all rows.
GRANT mysite_web TO mysite_staff;
GRANT SELECT
    ON pgembed_attempt, pgembed_job, pgembed_scancursor, pgembed_pause, pgembed_quota, pgembed_ripple,
       pgembed_rollup, pgembed_space, pgembed_staging, pgembed_task, pgembed_taskbatch,
       pgembed_taskkey, pgembed_taskoutcome, pgembed_taskrate, pgembed_taskrecord, pgembed_worker,
       pgembed_replicationslot
    TO mysite_staff;
GRANT INSERT, UPDATE, DELETE ON pgembed_job, pgembed_pause TO mysite_staff;
GRANT DELETE ON pgembed_staging TO mysite_staff;
GRANT INSERT, UPDATE ON pgembed_scancursor TO mysite_staff;
-- To retry and cancel tasks. Their keys and batches follow by triggers.
GRANT UPDATE, DELETE ON pgembed_task TO mysite_staff;

-- The worker's own tables.
GRANT SELECT, INSERT, UPDATE, DELETE
    ON pgembed_attempt, pgembed_job, pgembed_scancursor, pgembed_pause, pgembed_quota, pgembed_ripple,
       pgembed_rollup, pgembed_space, pgembed_staging, pgembed_task, pgembed_taskbatch,
       pgembed_taskkey, pgembed_taskoutcome, pgembed_taskrate, pgembed_taskrecord, pgembed_worker,
       pgembed_replicationslot
    TO mysite_worker;
-- To read changes from the write-ahead log, a superuser runs this. The user that logs in needs it as
-- well, as it is not inherited:
-- ALTER ROLE mysite_worker REPLICATION;
-- Restarted in the middle of a deploy, it checks whether a migration explains why a table is gone.
GRANT SELECT ON django_migrations TO mysite_worker;

-- Tables that our triggers watch, or that are published for us (by pgembed, or what PGEMBED_PUBLICATION
-- names): of your tables, the worker reads only these. If a text method reads other tables, grant
-- SELECT on those as well.
DO $$
DECLARE
    source record;
BEGIN
    FOR source IN
        SELECT DISTINCT tgrelid::regclass AS name, relnamespace::regnamespace AS schema
        FROM pg_trigger
        JOIN pg_class ON pg_class.oid = tgrelid
        WHERE tgname LIKE 'pgtrigger\_pgembed\_%'
        UNION
        SELECT prrelid::regclass, relnamespace::regnamespace
        FROM pg_publication_rel
        JOIN pg_publication ON pg_publication.oid = prpubid
        JOIN pg_class ON pg_class.oid = prrelid
        WHERE pubname = 'pgembed'
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO mysite_worker, mysite_web', source.schema);
        EXECUTE format('GRANT SELECT ON %s TO mysite_worker, mysite_staff', source.name);
    END LOOP;
END
$$;

-- Tables of vectors: searches read them, and the worker writes them. Their owner builds their
-- indexes: that takes CREATE on the schema, and with it a role could define operators and functions
-- that the queries of other roles would run.
DO $$
DECLARE
    chunks record;
BEGIN
    FOR chunks IN
        SELECT attrelid::regclass AS name, relnamespace::regnamespace AS schema
        FROM pg_attribute
        JOIN pg_class ON pg_class.oid = attrelid AND relkind = 'r'
        WHERE attname IN ('source_id', 'space_id', 'chunk_digest', 'text_digest', 'embedding')
        GROUP BY attrelid, relnamespace
        HAVING count(*) = 5
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO mysite_worker, mysite_web', chunks.schema);
        EXECUTE format(
            'GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO mysite_worker', chunks.name
        );
        EXECUTE format('GRANT SELECT ON %s TO mysite_web', chunks.name);
        -- To re-embed rows, their chunks are marked as stale.
        EXECUTE format('GRANT UPDATE (chunk_digest) ON %s TO mysite_staff', chunks.name);
    END LOOP;
END
$$;
