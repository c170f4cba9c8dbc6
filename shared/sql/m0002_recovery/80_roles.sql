-- Recovery is the supervisor's: role _run. What it thinks may be read.
GRANT EXECUTE ON FUNCTION
    @schema@.mark_sent(uuid[], bigint[], text[], interval),
    @schema@.hand_out(text, text[], interval, interval),
    @schema@.note_recovery(text, text, text, text, jsonb, interval, integer, bigint, text, text),
    @schema@.forget_recovery(text, text),
    @schema@.domain_pause(text),
    @schema@.end_lost(bigint, uuid, text, text),
    @schema@.redispatch_key(text, text, text, jsonb, jsonb),
    @schema@.find_outstanding(integer, interval, text[]),
    @schema@.recheck_envelope(bigint),
    @schema@.look_again(bigint[], double precision[])
    TO @schema@_run;
GRANT SELECT ON @schema@.live_envelopes, @schema@.outstanding, @schema@.recovery TO @schema@_run;
GRANT SELECT ON @schema@.recovery TO @schema@_read, @schema@_operate;
