"""The drawings of a report: a lane of time for each group, the waterfall of losses, the parts of each recovery.

Matplotlib without a window: figures are made directly and written as PNG or, for the page, as SVG whose ink is the
page's own text colour. A lane is cut into columns; each shows what filled most of it, where rare and dear things
(deaths, heals, discarded work) count more, so that they are seen in a long run. Imported only when something is drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ops.counting import counted
from ops.goodput import GONE, WORK, Span
from ops.recovery import PARTS, Recovery
from ops.report import Report
from trainer.phases import Phase

KINDS: Mapping[str, tuple[str, str]] = {
    "work": ("work that was kept", "#009E73"),
    Phase.QUORUM.value: ("quorum", "#0072B2"),
    Phase.HEAL.value: ("heal, restore", "#CC79A7"),
    Phase.CHECKPOINT_STALL.value: ("checkpoint stall", "#C9B800"),
    Phase.VALIDATION.value: ("validation", "#44AA99"),
    Phase.DISCARDED.value: ("discarded", "#D55E00"),
    Phase.WAITING.value: ("waiting for others", "#E69F00"),
    Phase.STARTING.value: ("starting", "#56B4E9"),
    Phase.REHEARSE.value: ("rehearse", "#88CCEE"),
    Phase.DRAINING.value: ("draining", "#8C6D31"),
    Phase.OTHER.value: ("other", "#8A8A8A"),
    GONE: ("gone", "#8A8A8A40"),
}
"""What is told apart by colour (Okabe and Ito's where it has one): label and colour."""
PART_COLOURS = dict(zip(PARTS, ("#D55E00", "#E69F00", "#8A8A8A", "#56B4E9", "#CC79A7", "#009E73"), strict=True))
COLUMNS = 1600
LANES = 40
BARS = 12
_DEAR = {Phase.DISCARDED.value, Phase.HEAL.value, GONE}
_INK = "#010203"
"""Stands for the page's text colour in an SVG."""
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "svg.fonttype": "none",
    "svg.hashsalt": "phalanx",
}
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")


def draw_png(report: Report, path: Path, *, name: str) -> None:
    """All drawings below one another. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        heights = _heights(report)
        figure = Figure(figsize=(11, sum(heights) + 0.4), dpi=120, layout="constrained")
        figure.suptitle(
            f"{name}: {report.wall_s:.1f} s, {counted(report.steps, 'step')}", fontsize=12, x=0.01, ha="left"
        )
        axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for draw, ax in zip((timeline, losses, recoveries), axes, strict=False):
            draw(ax, report)
        figure.savefig(path, format="png")


def svgs(report: Report) -> list[str]:
    """Each drawing as an ``<svg>`` element for a page, in the page's ink on no ground."""
    found = []
    with matplotlib.rc_context(_STYLE | dict.fromkeys(_INKED, _INK)):
        for draw, height in zip((timeline, losses, recoveries), _heights(report), strict=False):
            figure = Figure(figsize=(11, height), layout="constrained")
            draw(figure.subplots(), report)
            text = io.StringIO()
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            found.append(_inline(text.getvalue()))
    return found


def timeline(ax: Axes, report: Report) -> None:
    """A lane for each group, deaths and returns marked."""
    lanes = _lanes(report)
    unit, label = _unit(report.wall_s)
    for row, group in enumerate(lanes):
        for kind, bars in columns(report.goodput.spans[group], report.wall_s).items():
            scaled = [(begin / unit, width / unit) for begin, width in bars]
            ax.broken_barh(scaled, (row - 0.38, 0.76), facecolors=KINDS[kind][1], linewidth=0, antialiased=False)
    ink = matplotlib.rcParams["text.color"]
    rows = {group: row for row, group in enumerate(lanes)}
    deaths = [r for r in report.recoveries if r.group in rows]
    began = report.goodput.began
    at = [((r.t - began) / unit, rows[r.group] - 0.46) for r in deaths]
    back = [((r.t + r.recovery_s - began) / unit, rows[r.group] - 0.46) for r in deaths if r.recovery_s is not None]
    _mark(ax, at, marker="v", colour="#D55E00", edge=ink)
    _mark(ax, back, marker="^", colour="#009E73", edge=ink)
    ax.set(xlim=(0, max(report.wall_s / unit, 1e-9)), ylim=(len(lanes) - 0.4, -0.75), xlabel=label)
    ax.set_yticks(range(len(lanes)), lanes)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    hidden = "" if len(lanes) == len(report.seconds) else f" ({len(lanes)} of {len(report.seconds)}: most lost)"
    ax.set_title(f"Time of each group{hidden}")
    present = _kinds(report)
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=text) for k, (text, colour) in KINDS.items() if k in present
    ]
    if deaths:
        handles.append(Line2D([], [], marker="v", color="#D55E00", markeredgecolor=ink, linestyle="", label="died"))
        handles.append(
            Line2D([], [], marker="^", color="#009E73", markeredgecolor=ink, linestyle="", label="back with a share")
        )
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, borderaxespad=0)


def losses(ax: Axes, report: Report) -> None:
    """From all time of all groups down to the work that was kept."""
    present = _kinds(report)
    everything = math.fsum(present.values()) or 1.0
    work = present.get("work", 0.0) / everything
    steps = [(KINDS[k][0], present[k] / everything, KINDS[k][1]) for k in KINDS if k != "work" and k in present]
    steps.sort(key=lambda step: -step[1])
    rows = [("all time of all groups", 0.0, 1.0, "#8A8A8A", everything)]
    left = 1.0
    for label, part, colour in steps:
        left -= part
        rows.append((label, max(left, 0.0), part, colour, part * everything))
    rows.append(("work that was kept", 0.0, work, KINDS["work"][1], work * everything))
    for row, (_, begin, width, colour, seconds) in enumerate(rows):
        ax.barh(row, 100 * width, left=100 * begin, color=colour, height=0.7)
        _beside(ax, 100 * (begin + width), row, f"{100 * width:.1f} %, {_long(seconds)}")
    ax.set_yticks(range(len(rows)), [row[0] for row in rows])
    # From 0, though losses may be small: a bar is read by its length.
    ax.set(xlim=(0, 114), ylim=(len(rows) - 0.4, -0.6), xlabel="% of the time of all groups")
    ax.set_xticks([t for t in ax.get_xticks() if t <= 100])
    ax.set_title("Where the time went")


def recoveries(ax: Axes, report: Report) -> None:
    """The parts of the newest recoveries, and the survivors' stall."""
    shown = report.recoveries[-BARS:]
    for row, found in enumerate(shown):
        at = 0.0
        for part, seconds in found.parts_s.items():
            ax.barh(row, seconds, left=at, color=PART_COLOURS[part], height=0.62)
            at += seconds
        _beside(ax, at, row, f"{at:.2f} s" + ("" if found.recovery_s is not None else ", then no share of its own"))
    ink = matplotlib.rcParams["text.color"]
    stalls = [(r.stall_s, row) for row, r in enumerate(shown) if r.stall_s is not None]
    ax.plot(*zip(*stalls, strict=True), "D", color=ink, markersize=4) if stalls else None
    longest = max([*(math.fsum(r.parts_s.values()) for r in shown), *(s for s, _ in stalls), 1e-9])
    ax.set(xlim=(0, 1.18 * longest), ylim=(len(shown) - 0.4, -0.6), xlabel="seconds from the kill")
    ax.set_yticks(range(len(shown)), [_name(report, r) for r in shown])
    some = "" if len(shown) == len(report.recoveries) else f" (the last {len(shown)} of {len(report.recoveries)})"
    ax.set_title(f"Deaths and what followed{some}")
    handles: list[Patch | Line2D] = [Patch(color=c, label=part.replace("_", " ")) for part, c in PART_COLOURS.items()]
    handles.append(Line2D([], [], marker="D", color=ink, markersize=4, linestyle="", label="survivors' stall"))
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, borderaxespad=0)


def columns(spans: Iterable[Span], wall_s: float) -> dict[str, list[tuple[float, float]]]:
    """(begin, width) of the bars of each kind in one lane."""
    width = wall_s / COLUMNS
    if width <= 0:
        return {}
    filled: list[dict[str, float]] = [{} for _ in range(COLUMNS)]
    for span in spans:
        kind = kind_of(span.phase)
        dear = 3.0 if kind in _DEAR else 1.0
        first, last = int(span.begin / width), min(int(span.end / width), COLUMNS - 1)
        for column in range(first, last + 1):
            inside = min(span.end, (column + 1) * width) - max(span.begin, column * width)
            filled[column][kind] = filled[column].get(kind, 0.0) + max(inside, 0.0) * dear
    bars: dict[str, list[tuple[float, float]]] = {}
    begin, before = 0, ""
    for column, kinds in enumerate([*filled, {}]):
        kind = max(kinds, key=lambda k: kinds[k]) if kinds else ""
        if kind != before:
            if before:
                bars.setdefault(before, []).append((begin * width, (column - begin) * width))
            begin, before = column, kind
    return bars


def kind_of(phase: str) -> str:
    """The key in ``KINDS`` of a phase."""
    return "work" if phase in WORK else phase


def _kinds(report: Report) -> dict[str, float]:
    sums: dict[str, float] = {}
    for phase, seconds in report.goodput.total.items():
        sums[kind_of(phase)] = sums.get(kind_of(phase), 0.0) + seconds
    return sums


def _lanes(report: Report) -> list[str]:
    """The groups to show, in their order; of too many, those with the least work."""
    groups = list(report.seconds)
    work = {g: math.fsum(report.seconds[g].get(phase, 0.0) for phase in WORK) for g in groups}
    kept = set(sorted(groups, key=lambda g: work[g])[:LANES])
    return [g for g in groups if g in kept]


def _heights(report: Report) -> list[float]:
    """Inches of each drawing that there is something for."""
    lanes = len(_lanes(report))
    heights = [max(2.6, 0.9 + (0.34 if lanes <= BARS else 0.2) * lanes), 1.0 + 0.24 * (len(_kinds(report)) + 1)]
    return [*heights, max(2.0, 0.9 + 0.3 * min(len(report.recoveries), BARS))] if report.recoveries else heights


def _unit(wall_s: float) -> tuple[float, str]:
    for unit, label, least in ((3600.0, "hours", 3 * 3600.0), (60.0, "minutes", 600.0)):
        if wall_s >= least:
            return unit, label
    return 1.0, "seconds"


def _long(seconds: float) -> str:
    unit, label = _unit(seconds)
    return f"{seconds / unit:,.1f} {label if unit > 1 else 's'}"


def _name(report: Report, recovery: Recovery) -> str:
    name = recovery.group if recovery.incarnation is None else f"{recovery.group}.{recovery.incarnation}"
    return f"{name} at {recovery.t - report.goodput.began:.0f} s"


def _beside(ax: Axes, x: float, y: float, text: str) -> None:
    """What a bar that ends at ``x`` comes to."""
    ax.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)


def _mark(ax: Axes, points: Sequence[tuple[float, float]], *, marker: str, colour: str, edge: str) -> None:
    for x, y in points:
        ax.plot(x, y, marker, color=colour, markeredgecolor=edge, markeredgewidth=0.5, markersize=6, clip_on=False)


def _inline(svg: str) -> str:
    """Without what only a file of its own needs; as wide as the page lets it."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<svg [^>]*?)width="[^"]*"', r'\1width="100%"', body, count=1)
    body = re.sub(r'(<svg [^>]*?)height="[^"]*pt"', r"\1", body, count=1)
    return body.replace(_INK, "currentColor")
