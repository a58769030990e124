"""The tables of ``phalanx report``: time by phase and group, recoveries with their parts, published measures.

Plain text that needs no terminal. What is in them is decided in report.py, goodput.py, recovery.py and ratios.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ops.counting import counted
from ops.goodput import PHASES
from ops.ratios import DEFINITIONS
from ops.recovery import PARTS, Recovery, summary
from ops.report import Report, text_of

GROUPS_SHOWN = 8
DEATHS_SHOWN = 30
DAMAGE_SHOWN = 10


def full_text(report: Report) -> str:
    """Everything ``phalanx report`` prints of a run."""
    parts = [
        text_of(report),
        "time by phase, seconds of each group (every second is in one phase)\n" + table(*time_table(report)),
        "recoveries, seconds\n" + table(*recovery_table(report.recoveries)) if report.recoveries else "",
        "published measures\n" + _measures(report),
        notes(report),
    ]
    return "\n\n".join(part for part in parts if part)


def time_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Phases by group, with the part of all group time; of many groups the sum alone."""
    total = report.goodput.total
    everything = math.fsum(total.values()) or 1.0
    groups = list(report.seconds) if len(report.seconds) <= GROUPS_SHOWN else []
    rows = [
        [phase, *(f"{report.seconds[g].get(phase, 0.0):.2f}" for g in groups), f"{total[phase] / everything:.1%}"]
        for phase in PHASES
        if phase in total
    ]
    sums = [f"{math.fsum(report.seconds[g].values()):.2f}" for g in groups]
    return ["phase", *groups, "of all"], [*rows, ["wall", *sums, ""]]


def recovery_table(recoveries: Sequence[Recovery]) -> tuple[list[str], list[list[str]]]:
    """One row for each death, the newest where there are too many, and p50, p95 and max of all of them."""
    head = ["group", "stall", "recovery", *PARTS, "heal MB", "why"]
    rows = [
        [
            r.group if r.incarnation is None else f"{r.group}.{r.incarnation}",
            seconds(r.stall_s),
            seconds(r.recovery_s),
            *(seconds(r.parts_s.get(part)) for part in PARTS),
            f"{r.heal_bytes / 1e6:.1f}" if r.heal_sources else "-",
            r.reason.partition(";")[0],
        ]
        for r in recoveries[-DEATHS_SHOWN:]
    ]
    spreads = summary(recoveries)
    for name in ("p50", "p95", "max"):
        values = [spreads[column][name] if column in spreads else None for column in ("stall", "recovery", *PARTS)]
        rows.append([name, *(seconds(v) for v in values), "", f"of {len(recoveries)}"])
    return head, rows


def measure_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Each published measure: our figure, what it is, where it is from."""
    figures = report.ratios_by_name
    rows = [[d.name, ratio(figures[d.name]), d.means, d.source] for d in DEFINITIONS]
    return ["measure", "here", "what it is", "source"], rows


def _measures(report: Report) -> str:
    """The measures with their sources below."""
    sources = list(dict.fromkeys(d.source for d in DEFINITIONS))
    _, rows = measure_table(report)
    short = [[name, here, f"{what} [{sources.index(source) + 1}]"] for name, here, what, source in rows]
    below = [f"  [{number}] {source}" for number, source in enumerate(sources, start=1)]
    return "\n".join([table(["measure", "here", "what it is"], short), *below])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    right = [any(row[i][:1].isdigit() for row in rows) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  " + "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def notes(report: Report) -> str:
    """What a reader must know of the logs themselves."""
    lines = [
        f"the clock of {clock.host} was {clock.ahead_s:+.3f} s off the lighthouse's"
        + ("" if clock.steady else ", and was set while the run went on")
        for clock in report.clocks
    ]
    if report.elsewhere:
        lines.append(f"took part, but their logs are not in this folder: {', '.join(report.elsewhere)}")
    if report.damaged:
        shown = "".join(f"\n    {line}" for line in report.damaged[:DAMAGE_SHOWN])
        more = max(0, len(report.damaged) - DAMAGE_SHOWN)
        rest = f"\n    and {more} more" if more else ""
        lines.append(
            f"{counted(len(report.damaged), 'damaged line was', 'damaged lines were')} passed over:{shown}{rest}"
        )
    return "\n".join(lines)
