"""What ties a rank to its fellows and, on rank 0, its group to the lighthouse.

Rank 0 joins, gets the incarnation number and tells it to the others through the group's store. From then on every rank
holds a lifeline to rank 0, and rank 0 a Watch stream to the gateway, so that any death, notice or grant reaches every
rank while its main thread is wherever it is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Store

from checkpointing.chosen import noted
from configs.digest import common_differing, common_digest
from configs.dump import to_toml
from configs.load import ConfigError, parse_text
from configs.protocol import Notice, Refused, Seated, Terms, Unreachable, replica_id
from configs.run_folder import EventLog, RunFolder
from configs.schema import Config
from configs.secret import guarded_address, read_secret
from configs.timeouts import Timeouts, derive
from configs.tls import Tls, tls_of
from configs.words import DepartureCause, Exit, ExitRequest, Lineage
from lighthouse.client import Control
from lighthouse.relay import Relay
from replica_groups.channel import Beside
from replica_groups.identity import Place
from replica_groups.introduction import TurnedAway
from replica_groups.lifelines import Hub, Line, Message
from replica_groups.mesh import device_of
from replica_groups.seat import GRANT, NOTICE
from replica_groups.signals import Signals
from replica_groups.vitals import Vitals
from trainer.disk import local_folder
from trainer.own_lighthouse import start_lighthouse
from trainer.process import Leaver
from trainer.voucher import machine, software

_OWN_END = {Exit.DONE, Exit.DRAINED}
_RETRY_S = 0.1


@dataclasses.dataclass(kw_only=True)
class Connection:
    """One rank's ties."""

    group: str
    rank: int
    incarnation: int
    host: str
    """Address of the configured interface: everything of this rank binds and advertises it."""
    lighthouse: str
    timeouts: Timeouts
    signals: Signals
    beside: Beside
    log: EventLog
    """The group's event log; every rank may write faults to it."""
    vitals: Vitals
    tls: Tls | None = None
    control: Control | None = None
    hub: Hub | None = None
    line: Line | None = None
    relay: Relay | None = None
    endpoint: str | None = None
    """Where rank 0 serves its metrics."""

    def door(self) -> str:
        """Rank 0: where torchft's manager asks. It speaks no TLS: then it is a relay of this process."""
        if self.tls is None:
            return self.lighthouse
        assert self.control is not None
        self.relay = Relay(self.control, replica_id=replica_id(self.group, self.incarnation))
        return self.relay.url

    def drain(self) -> None:
        """Ask the group to leave on purpose; the ranks agree on it before the next attempt."""
        self.signals.drain()


def connect(config: Config, place: Place, *, store: Store, run: RunFolder, leaver: Leaver) -> Connection:
    """Make the ties. Blocks until all ranks of the group are here and the lighthouse has admitted the group.

    Raises Refused with the gateway's reason, ExitRequest when no lighthouse answers.
    """
    host, secret = guarded_address(config.fault_tolerance.interface), read_secret()
    timeouts, tls = derive(config), tls_of(config)
    signals = Signals()
    on_broken = _on_broken(leaver)
    if place.rank:
        birth = json.loads(store.get("birth"))
        try:
            line = Line(
                address=birth["lifeline"],
                rank=place.rank,
                on_message=lambda _, message: _hear(message, signals, leaver),
                on_broken=on_broken,
                secret=secret,
                tls=tls,
            )
        except TurnedAway as refusal:
            raise ExitRequest(Exit.BAD_CONFIG, str(refusal)) from refusal
        line.start()
        connection = _connection(place, birth, host, timeouts, signals, run, tls)
        connection.line = line
        connection.vitals.tell_always(line, every_s=timeouts.pulse_s)
        leaver.before(lambda code, reason: line.send({"leaving": int(code), "reason": reason}))
        return connection

    url = place.lighthouse or start_lighthouse(config, run, tls=tls)
    control = Control(url, secret=secret, tls=tls)
    seated = _join(control, config, place, timeouts)
    vitals = Vitals(world=place.world)
    hub = Hub(
        host=host,
        world=place.world,
        on_message=lambda rank, message: _hear_fellow(rank, message, vitals, leaver),
        on_broken=on_broken,
        secret=secret,
        tls=tls,
    )
    birth = {"incarnation": seated.incarnation, "lifeline": hub.address, "lighthouse": url}
    store.set("birth", json.dumps(birth))
    connection = _connection(place, birth, host, timeouts, signals, run, tls)
    connection.control, connection.hub, connection.vitals = control, hub, vitals
    leaver.before(lambda code, reason: _last_words(connection, code, reason))
    hub.start()
    outage = _Outage()
    control.watch(
        place.group,
        seated.incarnation,
        _on_notice(connection, leaver, outage),
        outage.broke,
        pulse=vitals.pulse,
        every_s=timeouts.pulse_s,
    )
    if seated.ended is not None:
        raise _ended(config, place, run, seated.ended)
    return connection


def _ended(config: Config, place: Place, run: RunFolder, at: Lineage) -> ExitRequest:
    """A run that has ended is done, but a request to go back that no start has taken up yet was not met by that."""
    asked = config.checkpoint
    if asked.enable and asked.load_step >= 0 and not noted(local_folder(config, place, run), asked.load_step):
        why = (
            f"checkpoint.load_step = {asked.load_step}: the run has ended at {at}; a greater training.steps reopens it"
        )
        return ExitRequest(Exit.CHECKPOINT, why)
    return ExitRequest(Exit.DONE, f"the run has ended at {at}")


def _connection(
    place: Place,
    birth: dict[str, Any],
    host: str,
    timeouts: Timeouts,
    signals: Signals,
    run: RunFolder,
    tls: Tls | None,
) -> Connection:
    return Connection(
        group=place.group,
        rank=place.rank,
        incarnation=birth["incarnation"],
        host=host,
        lighthouse=birth["lighthouse"],
        tls=tls,
        timeouts=timeouts,
        signals=signals,
        beside=Beside(),
        vitals=Vitals(world=1),
        log=EventLog(run.event_log(place.group), group=place.group, incarnation=birth["incarnation"]),
    )


def _join(control: Control, config: Config, place: Place, timeouts: Timeouts) -> Seated:
    terms = Terms(
        run=config.job.name,
        config_digest=common_digest(config),
        groups=config.launch.groups,
        min_groups=config.fault_tolerance.min_groups,
        start_wait_s=timeouts.start_wait_s,
        failure_detection_s=timeouts.failure_detection_s,
        steps=config.training.steps,
        first_step_limit_s=timeouts.first_step_limit_s,
        heal_limit_s=timeouts.heal_limit_s,
        join_interval_s=config.fault_tolerance.join_interval_s,
        exact=config.fault_tolerance.reduction == "exact",
        software=software(),
        machine=machine(device_of(place.local_rank)),
    )
    deadline = time.monotonic() + timeouts.first_step_limit_s
    told = False
    while True:
        try:
            return control.join(
                terms,
                group=place.group,
                life=place.life,
                pid=os.getpid(),
                ranks=list(range(place.world)),
                config=to_toml(config),
            )
        except Refused as refusal:  # another run, config or secret: starting again would not help
            text = f"the lighthouse refuses {place.group}: {refusal}{_which_keys(control, config, refusal)}"
            raise ExitRequest(Exit.BAD_CONFIG, text) from refusal
        except Unreachable as error:
            if not told:
                print(f"waiting for the lighthouse at {place.lighthouse}: {error}")
                told = True
            if time.monotonic() > deadline:
                raise ExitRequest(Exit.QUORUM_LOST, f"no lighthouse at {place.lighthouse}: {error}") from error
            time.sleep(_RETRY_S)


def _which_keys(control: Control, config: Config, refusal: Refused) -> str:
    """The keys behind a config digest that differs; nothing where the lighthouse cannot tell."""
    if "config_digest" not in str(refusal):
        return ""
    try:
        keys = common_differing(config, parse_text(control.config(), where="the run's config"))
    except (ConfigError, Refused, Unreachable):
        return ""
    return f"; keys that differ: {', '.join(keys)}" if keys else ""


def _on_notice(connection: Connection, leaver: Leaver, outage: _Outage) -> Callable[[Notice], None]:
    def tell(notice: Notice) -> None:
        outage.over()
        if notice.buried is not None:
            leaver.leave(Exit.INCARNATION_OVER, f"buried: {notice.buried}")
        connection.signals.notice(notice)
        assert connection.hub is not None
        connection.hub.broadcast({"notice": NOTICE.dump_python(notice, mode="json")})

    return tell


class _Outage:
    """Says that the lighthouse is away, and why, each reason once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def broke(self, reason: str) -> None:
        if reason not in self._told:
            print(f"the stream to the lighthouse broke ({reason}); asking again until it is back")
        self._told.add(reason)

    def over(self) -> None:
        self._told.clear()


def _on_broken(leaver: Leaver) -> Callable[[str], None]:
    return lambda reason: leaver.leave(Exit.INCARNATION_OVER, reason)


def _hear(message: Message, signals: Signals, leaver: Leaver) -> None:
    """What rank 0 says to another rank."""
    if "notice" in message:
        signals.notice(NOTICE.validate_python(message["notice"], strict=False))
    elif "grant" in message:
        signals.grant(GRANT.validate_python(message["grant"], strict=False))
    elif "leaving" in message:
        leaver.leave(Exit(message["leaving"]), message["reason"])


def _hear_fellow(rank: int, message: Message, vitals: Vitals, leaver: Leaver) -> None:
    """What another rank says to rank 0. An end that is not the group's own is everybody's, with its code."""
    if "vitals" in message:
        vitals.hear(rank, message)
        return
    code = Exit(message["leaving"])
    if code not in _OWN_END:
        leaver.leave(code, f"rank {rank}: {message['reason']}")


def _last_words(connection: Connection, code: Exit, reason: str) -> None:
    connection.log("exit", code=int(code), reason=reason)
    assert connection.hub is not None
    assert connection.control is not None
    connection.hub.broadcast({"leaving": int(code), "reason": reason})
    cause = DepartureCause.LEFT if code in _OWN_END else DepartureCause.EXITED
    connection.control.leave(connection.group, connection.incarnation, cause=cause, reason=reason)
