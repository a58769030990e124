"""A rank that publishes its first checkpoint before it may leave, however late that is.

A process that wakes after its burial does two things at once: a thread renames, others find out that it is over and
end the process. Which comes first is chance; the one that a test needs is that the name still appears.
"""

from __future__ import annotations

import threading
from typing import Any

from ops.launch.ranks import RankSpec, run_trainer

LIMIT_S = 60.0


def run_and_publish_before_leaving(config: Any, spec: RankSpec) -> None:
    """Be a rank of the run, in the interleaving in which the renaming thread is faster."""
    from checkpointing.writer import Checkpointer
    from trainer.process import Leaver

    published = threading.Event()
    publish, leave = Checkpointer._publish, Leaver.leave

    def publish_and_tell(self: Checkpointer, *words: Any) -> str:
        try:
            return publish(self, *words)
        finally:
            published.set()

    def leave_after(self: Leaver, *words: Any) -> None:
        published.wait(LIMIT_S)
        leave(self, *words)

    Checkpointer._publish = publish_and_tell
    Leaver.leave = leave_after
    run_trainer(config, spec)
