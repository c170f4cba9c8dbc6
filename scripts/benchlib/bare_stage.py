"""The bare INSERT that stage() is compared with: a table of the same columns, defaults and indexes, without the CHECK,
without the trigger, without a function in front.
"""

from __future__ import annotations

TABLE = """
CREATE SCHEMA IF NOT EXISTS bare;
CREATE TABLE bare.envelopes (LIKE pfsup.async_dispatches INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING INDEXES)
WITH (fillfactor = 70);
"""
INSERT = (
    b"INSERT INTO bare.envelopes (actor, queue, aggregate_id, payload)"
    b" VALUES (%(actor)s, %(actor)s, %(aggregate)s, %(payload)s::jsonb) RETURNING id, 'created', status"
)
