-- Whether a call has nothing that takes more than an INSERT.
(
    given ->> 'once' IS NULL
    AND given ->> 'coalesce_key' IS NULL
    AND COALESCE(jsonb_typeof(given -> 'arguments'), 'object') = 'object'
    AND octet_length(COALESCE(given ->> 'tenant', '')) <= 800
    AND octet_length(COALESCE(given ->> 'serial', '')) <= 800
    AND octet_length(queue) BETWEEN 1 AND 800
    AND strpos(queue, '.') = 0
    AND priority BETWEEN -100 AND 100
)
