"""Which rows can be stored: the table below, compared with the CHECK over every combination of filled and empty."""

from __future__ import annotations

from itertools import product
from typing import Any

import psycopg
import pytest
from support.runs import Owner

COLUMNS = (
    "lease_token",
    "lease_expires_at",
    "claimed_by",
    "sent_at",
    "started_at",
    "deadline_at",
    "worker",
    "check_at",
    "finished_at",
)
# For each status, in COLUMNS' order: + filled, - empty, . either; C: all three of the claim or none.
SHAPES = {
    "pending": "CCC------",
    "held": "---.-----",
    "sent": "---+---.-",
    "running": "++-++++.-",
    "consumed": ".--+...-+",
    "rejected": ".--....-+",
    "cancelled": ".--....-+",
    "dead": ".--....-+",
    "unknown": ".--....-+",
}
WORKERS_ONLY = {"sent", "running"}  # completion = handover never gets there: the mark is the end
NO_OPEN_EFFECT = {"pending", "sent", "consumed"}  # effect = begun would be forgotten there


def legal(status: str, completion: str, effect: str, filled: tuple[bool, ...]) -> bool:
    """What the table says of one combination."""
    shape = SHAPES[status]
    claim = {have for have, wanted in zip(filled, shape, strict=True) if wanted == "C"}
    return (
        all(wanted in {".", "C"} or have == (wanted == "+") for have, wanted in zip(filled, shape, strict=True))
        and len(claim) <= 1
        and not (completion == "handover" and status in WORKERS_ONLY)
        and not (effect == "begun" and status in NO_OPEN_EFFECT)
    )


def test_every_combination_is_legal_exactly_where_the_table_says(owner: Owner) -> None:
    cases = list(
        product(SHAPES, ("worker", "handover"), ("none", "begun", "done"), product((False, True), repeat=len(COLUMNS)))
    )
    values = ", ".join(
        f"CASE WHEN (c.filled ->> {place})::boolean THEN {sample} END AS {name}"
        for place, (name, sample) in enumerate(
            zip(
                COLUMNS,
                ["gen_random_uuid()", "now()", "'b/1'", "now()", "now()", "now()", "'w'", "now()", "now()"],
                strict=True,
            )
        )
    )
    answers = owner.rows(
        f"SELECT pfsup.row_is_legal(jsonb_populate_record(NULL::pfsup.async_dispatches, base || to_jsonb(v)))"
        f" FROM ROWS FROM (unnest(%s::text[]), unnest(%s::text[]), unnest(%s::text[]), unnest(%s::jsonb[]))"
        f" WITH ORDINALITY AS c (status, completion, effect, filled, place),"
        f" LATERAL (SELECT c.status, c.completion, c.effect, {values}) AS v,"
        " (SELECT jsonb_build_object('id', 1, 'actor', 'a', 'queue', 'a', 'aggregate_id', '1', 'headers', '{}'::jsonb,"
        " 'send_attempts', 0, 'deliveries', 0, 'attempts', 0, 'max_attempts', 20, 'recoveries', 0) AS base) AS b"
        " ORDER BY c.place",
        [case[0] for case in cases],
        [case[1] for case in cases],
        [case[2] for case in cases],
        [f"[{','.join('true' if have else 'false' for have in case[3])}]" for case in cases],
    )
    wrong = [case for case, answer in zip(cases, answers, strict=True) if answer[0] is not legal(*case)]
    assert wrong == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("status", "lost"),
        ("actor", "a b"),
        ("actor", ""),
        ("actor", "a" * 129),
        ("queue", "a/b"),
        ("aggregate_id", ""),
        ("aggregate_id", "a\nb"),
        ("aggregate_id", "a" * 201),
        ("delivery_key", ""),
        ("delivery_key", "k" * 401),
        ("tenant", ""),
        ("headers", "[]"),
        ("headers", '{"a": "' + "x" * 8192 + '"}'),
        ("payload", '"' + "x" * 262144 + '"'),
        ("completion", "later"),
        ("effect", "maybe"),
        ("last_error", "e" * 2001),
        ("send_attempts", -1),
        ("deliveries", -1),
        ("attempts", -1),
        ("max_attempts", 0),
        ("recoveries", -1),
    ],
)
def test_value_outside_its_bounds_cannot_be_stored(owner: Owner, column: str, value: Any) -> None:
    columns = {"actor": "a", "queue": "a", "aggregate_id": "1", column: value}
    with pytest.raises(psycopg.errors.CheckViolation) as e:
        owner.rows(
            f"INSERT INTO pfsup.async_dispatches ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})",
            *columns.values(),
        )
    assert e.value.diag.constraint_name == "row_is_legal"
