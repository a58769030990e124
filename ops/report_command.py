"""``phalanx report RUN``: prints what a run came to; ``--png`` and ``--html`` draw it."""

from __future__ import annotations

import argparse
from pathlib import Path

from configs.words import Exit, ExitRequest
from ops.console import Console
from ops.counting import counted
from ops.history import read_logs
from ops.report import Report, read_plan, read_report
from ops.report_text import full_text
from ops.result import Result


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run folder, and where to draw."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder; the run may be going on")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw timeline, losses and recoveries into a PNG file")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write one page with drawings and tables")


def run(options: argparse.Namespace, console: Console) -> Result:
    """Read, tell and draw. Raises ExitRequest(2) where there are no logs or a file cannot be written."""
    report = read_report(read_logs(options.run), plan=read_plan(options.run))
    name = options.run.resolve().name
    drawn = [str(path) for path in (options.png, options.html) if path is not None]
    try:
        _draw(report, name=name, png=options.png, html=options.html)
    except OSError as error:
        raise ExitRequest(Exit.BAD_CONFIG, f"cannot write {error.filename}: {error.strerror}") from error
    for path in drawn:
        console.say(f"drawn: {path}")
    text = f"{options.run}: {counted(report.steps, 'step')}\n{full_text(report)}"
    return Result(text=text, data={**report.as_json(), "drawn": drawn})


def _draw(report: Report, *, name: str, png: Path | None, html: Path | None) -> None:
    if png is None and html is None:
        return
    from ops.report_charts import draw_png  # heavy: matplotlib
    from ops.report_html import page

    if png is not None:
        draw_png(report, png, name=name)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(report, name=name))
