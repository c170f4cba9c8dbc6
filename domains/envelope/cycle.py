"""One bounded cycle over the outbox itself. `check_at` on the row paces it: no ledger line for what merely waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis.exceptions as broker
from psycopg.types.json import Jsonb

from ...shared.db.queries import Queries
from ...shared.drain import Drain
from ..decisions import Decision, Limits, Verdict
from ..looks import Looks
from ..phase import plain
from ..report import Report
from ..session import Row, Session, Transaction, is_the_rows, paced, told
from .decide import Evidence, Place, decide
from .streams import Entries, Found, Ref, ref_of

DOMAIN = "envelope"
# What waits in its stream is none, nor what dispatch will send anew as a whole, nor what nobody can tell.
CANDIDATES = (Place.TAKEN_UP, Place.ACKNOWLEDGED, Place.GONE)
NO_REF = "its sink_ref is not a stream and an entry's id: nobody can say where its entry is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the configuration says: `grace_s` for a sent entry, `owned`: actors whose runs a business domain judges."""

    limits: Limits
    batch_size: int
    grace_s: float
    owned: tuple[str, ...]


class EnvelopeCycle:
    """The cycles of the envelope domain in one process."""

    def __init__(
        self, rules: Rules, queries: Queries, shared: Queries, *, session: Session, looks: Looks, entries: Entries
    ) -> None:
        self._rules = rules
        self._queries = queries
        self._shared = shared
        self._session = session
        self._looks = looks
        self._entries = entries

    async def run_once(self, drain: Drain) -> Report:
        """One cycle. A row's failure is in the report; raises what all would meet, Redis away at the end of the cycle:
        lost runs need no Redis, and are judged all the same.
        """
        report, began = Report(), time.monotonic()
        before = self._session.database_s, self._session.pool_wait_s
        try:
            await self._cycle(drain, report)
        finally:
            report.duration_s = time.monotonic() - began
            report.database_s = self._session.database_s - before[0]
            report.pool_wait_s = self._session.pool_wait_s - before[1]
        return report

    async def _cycle(self, drain: Drain, report: Report) -> None:
        rows = await self._find(report)
        places, away = await self._places([row for row in rows if row["status"] == "sent"], report)
        again: dict[int, float] = {}
        for row in rows:
            if drain.requested:
                report.complete = False
                break
            found = places.get(row["id"])
            if row["status"] == "running" or (found is not None and found.place in CANDIDATES):
                taken_at = time.monotonic()
                await self._take(row, found, report, again)
                await paced(drain, taken_at, self._rules.limits.share)
            elif found is None and away is not None:
                again[row["id"]] = self._rules.limits.interval_s
        await self._look_again(again)
        if away is not None:
            raise away

    async def _find(self, report: Report) -> list[Row]:
        asked = {
            "batch": self._rules.batch_size,
            "grace_s": self._rules.grace_s,
            "owned": list(self._rules.owned),
        }
        async with self._session.transaction() as tx:
            *rows, told_ = await tx.run(self._queries, "find", asked)
        report.looked_at = told_["looked"]
        report.has_more = told_["looked"] >= self._rules.batch_size
        report.oldest_s = told_["age_s"] or 0.0
        return rows

    async def _places(self, rows: list[Row], report: Report) -> tuple[dict[int, Found], broker.RedisError | None]:
        """Where the entries are; with Redis away nowhere, and why."""
        wanted: dict[int, Ref] = {}
        for row in rows:
            if (ref := ref_of(row["sink_ref"])) is not None:
                wanted[row["id"]] = ref
            else:
                await self._fail(row["id"], ValueError(NO_REF), report)
        try:
            return await self._entries.find(wanted)
        except broker.RedisError as error:
            return {}, error

    async def _take(self, row: Row, found: Found | None, report: Report, again: dict[int, float]) -> None:
        """Judge one row in a transaction of its own; its entry is removed after the commit."""
        report.waiting += 1
        report.oldest_s = max(report.oldest_s, row["age_s"])
        try:
            async with self._session.transaction() as tx:
                verdict = await self._judge(tx, row, found)
        except Exception as error:
            if not is_the_rows(error):
                raise
            await self._fail(row["id"], error, report)
            return
        if verdict is None:
            report.locked += 1
            return
        report.examined += 1
        report.decisions[verdict.decision] += 1
        if verdict.decision is Decision.REDISPATCH:
            report.staged += 1
            if found is None or found.place is not Place.GONE:  # else what stands there is another dispatch's
                await self._entries.remove(row["sink_ref"])
        elif verdict.decision is Decision.STILL_RUNNING and verdict.wait_s is not None:
            again[row["id"]] = verdict.wait_s

    async def _judge(self, tx: Transaction, row: Row, found: Found | None) -> Verdict | None:
        """Lock, compare with what was found, decide, change, write down; None when it is locked elsewhere."""
        asked = {"dispatch_id": row["id"], "id": str(row["id"]), "domain": DOMAIN}
        now = await tx.run(self._queries, "recheck", asked)
        if now and not now[0]["here"]:
            return None
        evidence = self._evidence(row, now[0] if now else None, found)
        verdict = decide(evidence, self._rules.limits)
        if not await self._act(tx, row, verdict):
            return Verdict(decision=Decision.MOVED_ON, reason="it changed while it was judged")
        if verdict.after:
            await self._note(tx, row["id"], verdict, evidence)
        return verdict

    def _evidence(self, row: Row, now: Row | None, found: Found | None) -> Evidence:
        if now is None:
            return Evidence(id=row["id"], status="gone", moved=True)
        same = all(now[name] == row[name] for name in ("status", "sink_ref", "token", "deliveries"))
        is_lost = now["status"] == "running" and not now["alive"]
        return Evidence(
            id=row["id"],
            status=now["status"],
            moved=not same,
            place=found.place if found else None,
            idle_s=found.idle_s if found else 0.0,
            grace_s=self._rules.grace_s,
            alive=now["alive"],
            confirmed=is_lost and self._looks.twice(row["id"], (now["token"], now["expires_at"])),
            effect=now["effect"],
            on_lost=now["on_lost"],
            recoveries=now["recoveries"],
            sent_again=now["sent_again"],
        )

    async def _act(self, tx: Transaction, row: Row, verdict: Verdict) -> bool:
        """Do what the verdict says; False when the row is no longer what was judged."""
        match verdict.decision:
            case Decision.REDISPATCH:
                options = {} if row["status"] == "running" else {"lost_ref": row["sink_ref"]}
                answer = await tx.run(self._shared, "redispatch", {"dispatch_id": row["id"], "options": Jsonb(options)})
                return answer[0]["outcome"] == "staged"
            case Decision.OUTCOME_UNKNOWN | Decision.GIVE_UP:
                asked = {
                    "dispatch_id": row["id"],
                    "token": row["token"],
                    "becomes": verdict.after,
                    "reason": verdict.reason,
                }
                return (await tx.run(self._shared, "end_lost", asked))[0]["outcome"] == "ended"
            case _:
                return True

    async def _note(self, tx: Transaction, dispatch_id: int, verdict: Verdict, evidence: Evidence) -> None:
        """A lost run is counted on its row, a lost message in the ledger: never both for one take-over."""
        await self._write(
            tx,
            dispatch_id,
            decision=verdict.decision.value,
            reason=verdict.reason,
            evidence=plain(evidence),
            wait_s=verdict.wait_s,
            charged=int(evidence.status == "sent"),
            before=evidence.status,
            after=verdict.after,
        )

    async def _fail(self, dispatch_id: int, error: Exception, report: Report) -> None:
        report.errors.append(error)
        async with self._session.transaction() as tx:
            await self._write(tx, dispatch_id, decision="error", reason=told(error), wait_s=60.0)

    async def _write(self, tx: Transaction, dispatch_id: int, **noted: Any) -> None:
        blank: Mapping[str, Any] = {
            "domain": DOMAIN, "id": str(dispatch_id), "dispatch_id": dispatch_id,
            "evidence": None, "wait_s": None, "charged": 0, "before": None, "after": None,
        }  # fmt: skip
        await tx.run(self._shared, "note", {**blank, **noted})

    async def _look_again(self, again: Mapping[int, float]) -> None:
        if again:
            async with self._session.transaction() as tx:
                await tx.run(self._queries, "look_again", {"ids": list(again), "waits": list(again.values())})
