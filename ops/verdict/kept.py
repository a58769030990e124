"""What does a chaos run leave for whoever judges it later? Its scenario, and the limits that the scenario set.

They lie in the run folder, so that ``phalanx chaos judge`` comes to the verdict of ``phalanx chaos run``: written
before the run begins, and once more when the undisturbed run is known and how it ended.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from configs.run_folder import RunFolder, write_atomically
from configs.words import Exit, ExitRequest
from ops.verdict.judge import Verdict, judge
from ops.verdict.limits import Limits
from ops.verdict.story import Invariant, Story, Violation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """One run of a scenario."""

    scenario: str
    """Its name, or the file as it was given."""
    run: str
    seed: int
    limits: Limits
    late_s: float | None = None
    """It was ended after so many seconds, because it was not over by then."""

    def verdict(self, story: Story) -> Verdict:
        """On the run's own logs."""
        found = judge(story, self.limits)
        if self.late_s is None:
            return found
        late = Violation(Invariant.LIMITS, f"the run was not over after {self.late_s:.0f} s")
        return Verdict(violations=(*found.violations, late))


_ADAPTER = TypeAdapter(Kept)


def keep(folder: Path, kept: Kept) -> None:
    """Leave it in a run folder."""
    write_atomically(RunFolder(folder).scenario, _ADAPTER.dump_json(kept, indent=1).decode() + "\n")


def kept_in(folder: Path) -> Kept | None:
    """What a run folder holds; None where it is of no chaos run. Raises ExitRequest(2) when it cannot be read."""
    path = RunFolder(folder).scenario
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = f"{path}: expected what `phalanx chaos run` left there; without the file its limits are left out"
        raise ExitRequest(Exit.BAD_CONFIG, f"{why} ({type(error).__name__})") from error
