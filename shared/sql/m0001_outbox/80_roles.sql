-- Who may do what. Roles are the cluster's, named after the schema; they separate duties, not tenants: whoever may stage
-- may stage for any tenant. Running this file again changes nothing. Where the migrating role may not create roles,
-- `pfsup migrate --no-roles` leaves this file out and prints it for an administrator.
-- One block a role, in the order of the functions' files; each function's REVOKE … FROM PUBLIC stands in its own file.

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['@schema@_stage', '@schema@_work', '@schema@_run', '@schema@_operate', '@schema@_read']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN
                    NULL;  -- another database of this cluster was migrated at the same moment
                WHEN insufficient_privilege THEN
                    RAISE EXCEPTION 'cannot create role %: %', wanted, SQLERRM
                        USING ERRCODE = '42501',
                              HINT = 'run pfsup migrate --no-roles and give what it prints to an administrator';
            END;
        END IF;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA @schema@ TO @schema@_stage, @schema@_work, @schema@_run, @schema@_operate, @schema@_read;

-- Everyone may learn which version the schema has.
GRANT SELECT ON @schema@.schema_migrations
    TO @schema@_stage, @schema@_work, @schema@_run, @schema@_operate, @schema@_read;

-- stage: the application, in its own transactions.
GRANT EXECUTE ON FUNCTION
    @schema@.stage(text, text, jsonb, timestamptz, text, jsonb),
    @schema@.stage_many(jsonb),
    @schema@.cancel(bigint),
    @schema@.cancel(text)
    TO @schema@_stage;

-- work: the worker processes.
GRANT EXECUTE ON FUNCTION
    @schema@.begin_work(bigint, text, text, interval, jsonb),
    @schema@.beat(bigint, uuid, interval),
    @schema@.effect(bigint, uuid, text, text, text),
    @schema@.settle(bigint, uuid, text, text, jsonb),
    @schema@.report_late(bigint, uuid, text, text, text)
    TO @schema@_work;

-- run: the supervisor's children.
GRANT EXECUTE ON FUNCTION @schema@.redispatch(bigint, jsonb) TO @schema@_run;
GRANT EXECUTE ON FUNCTION
    @schema@.claim_due(uuid, text, interval, integer, text[], jsonb, boolean, boolean, text[]),
    @schema@.next_due(text[], timestamptz),
    @schema@.release_claims(uuid, bigint[]),
    @schema@.fail_send(uuid, bigint[], text[], integer, interval, interval),
    @schema@.take_back(uuid, integer),
    @schema@.requeue_lost(text, timestamptz, text, text, integer),
    @schema@.sent_queues(),
    @schema@.stage_restaged(text, integer),
    @schema@.sync_actors(jsonb),
    @schema@.register_instance(uuid, text, text, integer, text),
    @schema@.beat_instance(uuid)
    TO @schema@_run;
GRANT EXECUTE ON FUNCTION
    @schema@.prune_ended(bigint, integer, interval),
    @schema@.prune_audit(integer, interval),
    @schema@.prune_rest(integer, interval),
    @schema@.ended_of(bigint[]),
    @schema@.known_queues(),
    @schema@.table_health()
    TO @schema@_run;

-- operate: a person, or a tool that a person drives; reads what `read` reads.
GRANT EXECUTE ON FUNCTION
    @schema@.retry(bigint, text, text),
    @schema@.discard(bigint, text, text),
    @schema@.settle_unknown(bigint, text, text, text),
    @schema@.resend(bigint, text, text),
    @schema@.release(bigint, text, text),
    @schema@.pause(text, text, text, text, timestamptz),
    @schema@.resume(text, text, text, text)
    TO @schema@_operate;

-- read: views only.
GRANT SELECT ON @schema@.dispatches, @schema@.backlog, @schema@.audit TO @schema@_read, @schema@_operate;
