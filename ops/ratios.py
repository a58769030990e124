"""What share of an undisturbed run's speed did a run reach, and which factor took the rest?

The factors are those of published accounts of fault-tolerant training, over the same events:

- *commit ratio*: attempts that became confirmed steps, of all attempts;
- *participation ratio*: groups that trained (seated, and not healing), of all groups, in the mean over these steps;
- *step-time ratio*: what a participant's attempt would have taken undisturbed, of what it took.

Their product is *goodput*: committed tokens per second over those of the undisturbed run. Undisturbed is this run's
median step in which every group trained, after another such step. With a constant batch fewer groups take longer for a
step; with one per group they do less: both is participation here, so that the product is right for either. Counted
from the first commit on, for before it there is no speed, and without the time between two launches. The whole run is
in the ledger (goodput.py). Pure.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from configs.run_folder import Event
from ops.history import Logs, confirmed_commits, lineage_of, time_of


@dataclasses.dataclass(frozen=True)
class Definition:
    """A published measure: what it is in our words, and where it comes from."""

    name: str
    means: str
    source: str


_TORCHFT = "after the training efficiency of: PyTorch blog 2025, Fault Tolerant Llama, 2000 synthetic failures"
_ETTR = "Kokolis et al. 2025, Revisiting Reliability in Large-Scale ML Research Clusters, arXiv:2410.21680"
_GOODPUT = "Google Cloud 2024, Introducing ML Productivity Goodput; the ml-goodput-measurement library"

DEFINITIONS = (
    Definition("commit_ratio", "attempts that became confirmed steps, of all attempts", _TORCHFT),
    Definition("participation_ratio", "groups that trained, of all groups, mean over the confirmed steps", _TORCHFT),
    Definition("step_time_ratio", "what a participant's attempt takes undisturbed, of what it took", _TORCHFT),
    Definition("goodput_ratio", "their product: committed tokens/s, of those of the undisturbed run", _TORCHFT),
    Definition("effective_training_time_ratio", "group time of work that was kept, of all group time", _ETTR),
    Definition("scheduling_ratio", "time in which a group's processes are there, of all group time", _GOODPUT),
    Definition("runtime_ratio", "group time of work that was kept, of the time in which they are there", _GOODPUT),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratios:
    """None where the run was too short or never undisturbed. ``undisturbed_step_s`` is what they are measured by."""

    commit_ratio: float | None = None
    participation_ratio: float | None = None
    step_time_ratio: float | None = None
    goodput_ratio: float | None = None
    undisturbed_step_s: float | None = None


def read_ratios(logs: Logs, *, groups: int, since: float = 0.0) -> Ratios:
    """The ratios of a run of ``groups`` groups, or of what was added to it from ``since`` (unix seconds) on."""
    history = [e for e in confirmed_commits(logs) if time_of(e) >= since]
    if not history:
        return Ratios()
    first, last = time_of(history[0]), time_of(history[-1])
    attempts = _attempts(logs, since, last)
    commit = len(history) / max(attempts, len(history))
    participation = statistics.fmean(_trained(e) for e in history) / max(groups, 1)
    usual = _undisturbed(history, groups)
    tokens = sum(int(e.get("tokens") or 0) for e in history[1:])
    full = [int(e.get("tokens") or 0) for e in history if _trained(e) == groups]
    if usual is None or last <= first or not tokens or not participation:
        return Ratios(commit_ratio=commit, participation_ratio=participation, undisturbed_step_s=usual)
    goodput = tokens * usual / statistics.median(full) / (last - first - _down(logs, first, last))
    return Ratios(
        commit_ratio=commit,
        participation_ratio=participation,
        step_time_ratio=goodput / (commit * participation),
        goodput_ratio=goodput,
        undisturbed_step_s=usual,
    )


def _down(logs: Logs, since: float, until: float) -> float:
    """Seconds between the last event of each launch and the next launch."""
    launches = [time_of(e) for e in logs.of("launcher", "launch") if since < time_of(e) <= until]
    times = sorted(time_of(e) for events in logs.by_writer.values() for e in events) if launches else []
    return sum(t - max(since, times[max(bisect.bisect_left(times, t) - 1, 0)]) for t in launches)


def _attempts(logs: Logs, since: float, until: float) -> int:
    """Attempts that came to an outcome in that time, each once, whichever groups tell of it."""
    commits = {str(lineage_of(e)) for _, e in logs.of_groups("commit") if since <= time_of(e) <= until}
    discards = {
        str(e.get("attempt", (group, time_of(e))))
        for group, e in logs.of_groups("discard")
        if since <= time_of(e) <= until
    }
    kept = {str(e.get("attempt")) for _, e in logs.of_groups("commit")}
    return len(commits) + len(discards - kept)


def _trained(commit: Event) -> int:
    """Participants that did not heal."""
    return len(set(commit.get("participants") or ()) - set(commit.get("healing") or ()))


def _undisturbed(history: Sequence[Event], groups: int) -> float | None:
    """Seconds from one step to the next where all groups trained in both."""
    pairs = [(a, b) for a, b in itertools.pairwise(history) if b.get("step") == int(a.get("step") or 0) + 1]
    steps = [time_of(b) - time_of(a) for a, b in pairs if _trained(a) == _trained(b) == groups]
    return statistics.median(steps) if steps else None
