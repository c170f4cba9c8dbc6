"""How long dispatch and recovery rest after a pass: the article's difference in two functions (seed 000, section 5)."""

from __future__ import annotations

# A queue at its max_outstanding is looked at again this often: no notification says that a worker has finished.
LIMITED_S = 0.05


def pause_after_dispatch(
    *, full: bool, wait_s: float | None, scan_interval_s: float, retry_in_s: float | None = None, limited: bool = False
) -> float:
    """Seconds until the next pass, unless a wake comes first: none after a full batch; else the earliest of the scan
    interval, the next due time and the next trial of a stream.
    """
    if full:
        return 0.0
    reasons = [scan_interval_s]
    if wait_s is not None:
        reasons.append(wait_s)
    if retry_in_s is not None:
        reasons.append(retry_in_s)
    if limited:
        reasons.append(LIMITED_S)
    return max(0.0, min(reasons))


def pause_after_recovery(*, took_s: float, interval_s: float) -> float:
    """Seconds until the next cycle: what is left of the interval, however full the batch was. Ticks that passed in a
    slow cycle are swallowed: the next one is the next that lies ahead.
    """
    return interval_s - took_s % interval_s


def pause_between_candidates(*, took_s: float, share: float) -> float:
    """Seconds to rest after a candidate that took `took_s`, so that recovery works for at most `share` of the time.

    Six domains at full speed took both cores of a machine: what a commit waited for dispatch grew from 1.4 to 7 ms.
    """
    return took_s * (1 / share - 1)
