"""One bounded cycle of a domain: find candidates in a short transaction, then judge each in one of its own.

Finding gives no right to act: between the two a worker may have finished the row, or a person cancelled it. So each is
locked and read again, decided by a pure function, and changed together with its envelope, its ledger line and its audit
line. A full batch does not make the cycle go on: it waits for its interval (seed 000, section 5.2).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.errors import ProgrammingError, UniqueViolation
from psycopg.types.json import Jsonb

from ..shared.db.queries import Queries
from ..shared.drain import Drain
from ..shared.text import printable
from .decisions import Change, Decision, Run, Verdict, moved_on, next_look_s, still_running
from .looks import Looks
from .phase import E, Evidence, Phase, Subject, plain, run_of
from .report import Report
from .session import Row, Session, Transaction, is_the_rows, paced, told
from .walk import START, Walk, place_of

PAGE_FIRST = 4  # times the batch: the first page of rows that the finder looks at
PAGE_LARGEST = 5_000
LOOKED_A_CYCLE = 100_000  # rows; a longer walk goes on in the next cycle
LOCKS = re.compile(rb"\bFOR (NO KEY )?UPDATE( OF \w+)? SKIP LOCKED\b")

logger = logging.getLogger("pfsup.recovery")


class Overtaken(Exception):
    """A change came too late (see Change.raced)."""


class Refused(Exception):
    """A change failed for want of a table, a column or a right, which is this one row's fault: a trigger of the
    application misses them. Were the domain's own table gone, the re-read before the change would have failed.
    """


class Cycle:
    """The cycles of one domain in one process. Never two at once: the caller waits for `run_once`."""

    def __init__(self, subject: Subject, phases: Sequence[Phase[Any]], session: Session, looks: Looks) -> None:
        self._subject = subject
        self._phases = phases
        self._session = session
        self._looks = looks
        self._walks: dict[str, Walk] = {}

    async def run_once(self, drain: Drain) -> Report:
        """One cycle: every phase, each within its batch; ends early when the drain is asked for.

        A candidate's failure is in the report's errors. Raises what every candidate would meet: no connection, a table
        that is gone.
        """
        report, began = Report(), time.monotonic()
        before = self._session.database_s, self._session.pool_wait_s
        left = self._subject.batch_size
        for phase in self._phases:
            batch = left if phase.takes_rest else self._subject.batch_size
            if drain.requested:
                report.complete = False
                break
            left = batch - await self._run_phase(phase, max(0, batch), drain, report)
        report.duration_s = time.monotonic() - began
        report.database_s = self._session.database_s - before[0]
        report.pool_wait_s = self._session.pool_wait_s - before[1]
        return report

    async def _run_phase(self, phase: Phase[E], batch: int, drain: Drain, report: Report) -> int:
        """Find and judge up to `batch` candidates; returns how many were handed out."""
        found = await self.find(phase, batch, report)
        for candidate in found:
            if drain.requested:
                report.complete = False
                break
            began = time.monotonic()
            await self._take(phase, candidate, report)
            await paced(drain, began, self._subject.limits.share)
        return len(found)

    async def find(self, phase: Phase[E], batch: int, report: Report) -> list[str]:
        """Hand out the oldest free candidates: from now on they sleep, whatever becomes of this process."""
        walk = self._walks.setdefault(phase.find, Walk())
        async with self._session.transaction() as tx:
            free = await self._free(tx, phase, walk, batch, report)
            handed_out = [row["id"] for row in free[:batch]]
            if handed_out and not self._subject.observes:
                await tx.run(self._subject.shared, "hand_out", self._subject.params(
                    ids=handed_out, base_s=self._subject.limits.interval_s, cap_s=self._subject.limits.asleep_cap_s
                ))  # fmt: skip
        report.has_more = report.has_more or len(free) > batch
        return handed_out

    async def _free(self, tx: Transaction, phase: Phase[E], walk: Walk, batch: int, report: Report) -> list[Row]:
        """Free candidates, one more than the batch where there are, from pages that grow while few are free."""
        place = begun = walk.begin()
        free: list[Row] = []
        size, looked = PAGE_FIRST * (batch + 1), 0
        while looked < LOOKED_A_CYCLE and len(free) <= batch:
            page = min(size, PAGE_LARGEST)
            asked = self._subject.params(after_at=place[0], after_id=place[1], page=page, most=batch + 1 - len(free))
            *found, told = await self._read(tx, phase.find, asked)
            free += found
            looked += told["looked"]
            report.waiting += told["waiting"]
            report.oldest_s = max(report.oldest_s, told["oldest_s"] or 0.0)
            place = place_of(told) if told["looked"] == page else START
            if place == START:
                break
            size *= PAGE_FIRST
        if len(free) > batch:
            place = place_of(free[batch - 1]) if batch else begun
        walk.end(place)
        report.looked_at += looked
        return free

    async def _take(self, phase: Phase[E], candidate: str, report: Report) -> None:
        """Judge one candidate in a transaction of its own. Its failure is noted in another, and ends nothing."""
        try:
            async with self._session.transaction() as tx:
                verdict = await self._judge(tx, phase, candidate)
        except Overtaken as late:
            verdict = moved_on(str(late), finished=False)
            await self._note_apart(candidate, decision=verdict.decision.value, reason=verdict.reason)
        except Exception as error:
            if not is_the_rows(error):
                raise
            report.errors.append(error)
            await self._note_apart(candidate, decision="error", reason=told(error))
            return
        if verdict is None:
            report.locked += 1
            return
        report.examined += 1
        report.decisions[verdict.decision] += 1
        report.staged += verdict.decision is Decision.REDISPATCH

    async def _judge(self, tx: Transaction, phase: Phase[E], candidate: str) -> Verdict | None:
        """Lock, read, decide, change, write down; None when the row is locked elsewhere or gone."""
        asked = self._subject.params(id=candidate)
        rows = await self._read(tx, phase.recheck, asked)
        if self._subject.observes:
            return self._observed(phase, candidate, rows)
        for repair in phase.repairs if rows else ():
            await self._write(tx, repair, asked | rows[0])
        if rows and (phase.repairs or phase.reads_again):
            rows = await tx.run(self._subject.queries, phase.recheck, asked)
        if not rows:
            await self._note(tx, candidate, decision="locked", reason="it is locked elsewhere, or gone")
            return None
        evidence = phase.evidence(rows[0], run_of(rows[0], self._looks))
        verdict = await self._act(tx, candidate, evidence, phase.decide(evidence, self._subject.limits))
        await self._write_down(tx, candidate, evidence, verdict)
        return verdict

    async def _read(self, tx: Transaction, name: str, asked: Mapping[str, Any]) -> list[Row]:
        queries = self._subject.queries
        return await tx.run(unlocked(queries, name) if self._subject.observes else queries, name, asked)

    def _observed(self, phase: Phase[E], candidate: str, rows: list[Row]) -> Verdict | None:
        """What would be done, and why; nothing is."""
        if not rows:
            return None
        evidence = phase.evidence(rows[0], run_of(rows[0], self._looks))
        verdict = phase.decide(evidence, self._subject.limits)
        logger.info("would decide %s for %s: %s", verdict.decision, printable(candidate), printable(verdict.reason))
        return verdict

    async def _act(self, tx: Transaction, candidate: str, evidence: Evidence, verdict: Verdict) -> Verdict:
        """Change what the verdict says; the envelope first, because its answer may be that a worker came back."""
        run = evidence.run
        match verdict.decision:
            case Decision.REDISPATCH if verdict.stage is not None:
                refusal = await self._redispatch(tx, verdict)
            case Decision.OUTCOME_UNKNOWN | Decision.GIVE_UP if run is not None and run.status == "running":
                refusal = await self._end(tx, run, verdict)
            case _:
                refusal = None
        if refusal is not None:
            return refusal
        for change in verdict.changes:
            asked = self._subject.params(id=candidate, reason=verdict.reason[:2000]) | dict(change.params)
            await self._change(tx, change, asked)
        return verdict

    async def _change(self, tx: Transaction, change: Change, asked: Mapping[str, Any]) -> None:
        """Run one change. Raises Overtaken, which undoes all of the candidate, where it came too late."""
        try:
            answer = await self._write(tx, change.name, asked)
        except UniqueViolation as error:
            if change.raced:
                raise Overtaken(change.raced) from error
            raise
        if change.raced and not answer[0]["changed"]:
            raise Overtaken(change.raced)

    async def _write(self, tx: Transaction, name: str, asked: Mapping[str, Any]) -> list[Row]:
        """Run one statement that writes to the domain's tables. Raises Refused where what it sets off is at fault."""
        try:
            return await tx.run(self._subject.queries, name, asked)
        except ProgrammingError as error:
            if error.sqlstate is None:
                raise  # psycopg's own: a fault of ours
            raise Refused(told(error)) from error

    async def _redispatch(self, tx: Transaction, verdict: Verdict) -> Verdict | None:
        assert verdict.stage is not None
        payload = verdict.stage.payload
        answer = await tx.run(self._subject.shared, "redispatch_key", self._subject.params(
            aggregate_id=verdict.stage.aggregate_id,
            delivery_key=f"{self._subject.domain}:{verdict.stage.aggregate_id}",
            payload=None if payload is None else Jsonb(dict(payload)),
        ))  # fmt: skip
        outcome = answer[0]["outcome"]
        return None if outcome in ("staged", "queued") else still_running(f"its envelope is {outcome}")

    async def _end(self, tx: Transaction, run: Run, verdict: Verdict) -> Verdict | None:
        becomes = "unknown" if verdict.decision is Decision.OUTCOME_UNKNOWN else "dead"
        asked = {"dispatch_id": run.id, "token": run.token, "becomes": becomes, "reason": verdict.reason}
        outcome = (await tx.run(self._subject.shared, "end_lost", asked))[0]["outcome"]
        return None if outcome == "ended" else still_running(f"its envelope is {outcome}")

    async def _write_down(self, tx: Transaction, candidate: str, evidence: Evidence, verdict: Verdict) -> None:
        if verdict.forget:
            await tx.run(self._subject.shared, "forget", self._subject.params(id=candidate))
            return
        wait_s = next_look_s(
            verdict, checks=evidence.checks, recoveries=evidence.recoveries, limits=self._subject.limits
        )
        await self._note(
            tx,
            candidate,
            decision=verdict.decision.value,
            reason=verdict.reason,
            evidence=plain(evidence),
            wait_s=wait_s,
            charged=int(verdict.charged and verdict.decision is Decision.REDISPATCH),
            dispatch_id=evidence.run.id if evidence.run else None,
            before=evidence.status,
            after=verdict.after or None,
        )

    async def _note(self, tx: Transaction, candidate: str, **noted: Any) -> None:
        blank = dict.fromkeys(("evidence", "wait_s", "dispatch_id", "before", "after")) | {"charged": 0}
        await tx.run(self._subject.shared, "note", self._subject.params(id=candidate) | blank | noted)

    async def _note_apart(self, candidate: str, *, decision: str, reason: str) -> None:
        async with self._session.transaction() as tx:
            await self._note(tx, candidate, decision=decision, reason=reason)


def unlocked(queries: Queries, name: str) -> dict[str, bytes]:
    """The statement of that name without its locks, for a reader that has no right to lock."""
    return {name: LOCKS.sub(b"", queries[name])}
