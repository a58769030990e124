"""One page of a report: the drawings and tables in a single file that asks for nothing from anywhere.

Read in light and dark: colours of the page follow the reader's setting, drawings take the page's ink.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from html import escape

from ops.counting import counted
from ops.report import Report, ledger_text, text_of
from ops.report_charts import svgs
from ops.report_text import measure_table, notes, ratio, recovery_table, time_table

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1c2024; --soft: #5f6770; --ground: #ffffff; --line: #d8dce0; --card: #f5f7f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #a0a8b0; --ground: #15181b; --line: #343a40; --card: #1e2327; }
}
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.when, td.source { color: var(--soft); }
div.figures { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); margin: 1rem 0; }
div.figures div { background: var(--card); border-radius: .4rem; padding: .6rem .8rem; }
div.figures b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
div.wide { overflow-x: auto; } svg { display: block; height: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th.text, td.text { text-align: left; white-space: normal; }
pre { background: var(--card); border-radius: .4rem; overflow-x: auto; padding: .8rem; }
"""


def page(report: Report, *, name: str) -> str:
    """The page as HTML."""
    drawings = "".join(f'<div class="wide">{svg}</div>' for svg in svgs(report))
    when = datetime.datetime.fromtimestamp(report.goodput.began, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    going = ", still going on" if report.goodput.running else ""
    summary_line = f"began {when}, {report.wall_s:.1f} s{going}; {counted(report.steps, 'step')}"
    parts = [
        f"<h1>{escape(name)}</h1><p class=when>{summary_line}</p>",
        _figures(report),
        drawings,
        "<h2>Recoveries, seconds</h2>" + _table(*recovery_table(report.recoveries)) if report.recoveries else "",
        "<h2>Time by phase, seconds</h2>" + _table(*time_table(report)),
        "<h2>Published measures</h2>" + _table(*measure_table(report)),
        f"<h2>In words</h2><pre>{escape(text_of(report))}</pre>",
        f"<h2>The logs</h2><pre>{escape(notes(report))}</pre>" if notes(report) else "",
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}: report</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(parts)}</body></html>\n'


def _figures(report: Report) -> str:
    """The few numbers that are looked for first."""
    lost = sum(report.discards.values())
    figures = [
        (ratio(report.ratios.goodput_ratio), "goodput"),
        (ratio(report.goodput.effective_training_time_ratio), "effective training time ratio"),
        ("-" if report.tokens_per_s is None else f"{report.tokens_per_s:,.0f}", "tokens/s"),
        (str(len(report.recoveries)), "death" if len(report.recoveries) == 1 else "deaths"),
        (str(lost), "attempt discarded" if lost == 1 else "attempts discarded"),
        ("holds" if report.ledger.holds else "DOES NOT HOLD", "ledger: exactly once"),
    ]
    if report.cost_per_million_tokens is not None:
        figures.append((f"{report.cost_per_million_tokens:.4g}", "cost of a million tokens"))
    title = escape(ledger_text(report.ledger))
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(label)}</div>" for value, label in figures)
    return f'<div class="figures" title="{title}">{cells}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns of text to the left."""
    text = [not any(row[i][:1].isdigit() for row in rows) for i in range(len(head))]
    kinds = [' class="text"' if is_text else "" for is_text in text]
    top = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
