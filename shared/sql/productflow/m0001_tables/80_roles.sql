-- Who may do what in the reference tables: pfsup's own roles, which `pfsup migrate` made before. The application
-- (stage), its workers (work) and recovery (run) read and write rows; nobody but the owner deletes one. A person's
-- tools (operate) and readers (read) read.

GRANT USAGE ON SCHEMA @productflow@ TO @schema@_stage, @schema@_work, @schema@_run, @schema@_operate, @schema@_read;

GRANT SELECT ON
    @productflow@.schema_migrations,
    @productflow@.delivery_jobs,
    @productflow@.provider_effects,
    @productflow@.local_edit_tasks,
    @productflow@.image_tasks,
    @productflow@.image_candidates,
    @productflow@.workflow_runs,
    @productflow@.workflow_node_runs,
    @productflow@.agent_conversations,
    @productflow@.agent_tasks,
    @productflow@.agent_turns,
    @productflow@.agent_turn_events,
    @productflow@.agent_effects_unproved,
    @productflow@.agent_turns_needing_worker
    TO @schema@_stage, @schema@_work, @schema@_run, @schema@_operate, @schema@_read;

GRANT INSERT, UPDATE ON
    @productflow@.delivery_jobs,
    @productflow@.provider_effects,
    @productflow@.local_edit_tasks,
    @productflow@.image_tasks,
    @productflow@.image_candidates,
    @productflow@.workflow_runs,
    @productflow@.workflow_node_runs,
    @productflow@.agent_conversations,
    @productflow@.agent_tasks,
    @productflow@.agent_turns,
    @productflow@.agent_turn_events
    TO @schema@_stage, @schema@_work, @schema@_run;
