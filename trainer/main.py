"""One rank of a replica group, from its first instruction to its exit code.

``run_rank`` is what the launcher's warm children call and what ``python -m trainer`` comes down to. Rank 0 joins the
lighthouse and tells the others their incarnation; all build and rehearse with void state; then attempts follow one
another until the run or this incarnation ends.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import NoReturn

import torch

from configs.lifetime import die_with_parent
from configs.protocol import Ended, QuorumLost
from configs.run_folder import EventNotWritten, RunFolder
from configs.schema import Config
from configs.words import Exit, ExitRequest
from replica_groups.channel import use_interface
from replica_groups.identity import Place, open_group_store
from trainer.build import build
from trainer.connection import connect
from trainer.data.errors import DataError
from trainer.laps import Laps
from trainer.process import Leaver, leave_on_terminate, on_terminate, redirect_output
from trainer.transaction import Transaction

_STORE_LIMIT_S = 300.0


def run_rank(config: Config, place: Place) -> NoReturn:
    """Run this rank to its end; the process ends with an exit code of the contract."""
    leaver, laps = Leaver(), Laps()
    try:
        _run(config, place, leaver, laps)
    except ExitRequest as request:
        leaver.leave(request.code, request.reason)
    except EventNotWritten as error:
        leaver.leave(Exit.INCARNATION_OVER, str(error))
    except BaseException as error:  # noqa: BLE001  the process's edge: whatever ends a rank gets a code and a trace
        code = _code_of(error)
        if code is Exit.INCARNATION_OVER:
            traceback.print_exc()
        leaver.leave(code, f"{type(error).__name__}: {error}")
    raise AssertionError("leave does not return")


def _run(config: Config, place: Place, leaver: Leaver, laps: Laps) -> None:
    leave_on_terminate(leaver)
    die_with_parent()
    use_interface(config.fault_tolerance.interface)
    os.environ["OMP_NUM_THREADS"] = str(config.launch.threads_per_rank)
    torch.set_num_threads(config.launch.threads_per_rank)
    run = RunFolder(root=Path(config.job.dump_folder).expanduser())
    store = open_group_store(place, timeout_s=_STORE_LIMIT_S)
    connection = connect(config, place, store=store, run=run, leaver=leaver)
    on_terminate(connection.drain)
    redirect_output(run.rank_log(group=place.group, incarnation=connection.incarnation, rank=place.rank))
    laps.done("join")
    parts, state = build(config, place, store=store, connection=connection, run=run, laps=laps)
    transaction = Transaction(parts, state)
    while True:
        transaction.attempt()


def _code_of(error: BaseException) -> Exit:
    if isinstance(error, Ended):
        return Exit.DONE
    if isinstance(error, DataError):
        return Exit.BAD_CONFIG
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, QuorumLost):
        return Exit.QUORUM_LOST
    return Exit.INCARNATION_OVER
