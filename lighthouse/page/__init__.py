"""Which files make the live page? Static ones, shipped with the package, read once and served as they are.

``uplot/`` is the chart library, as published; everything else is ours. The page takes nothing from anywhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from lighthouse.http import Page

FOLDER = Path(__file__).parent
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def pages() -> dict[str, Callable[[], Page]]:
    """Every file of the live page by its path; ``/`` is the page itself."""
    files = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in _TYPES]
    found = {f"/{path.relative_to(FOLDER).as_posix()}": _page(path) for path in files}
    return {"/": found.pop("/index.html"), **found}


def _page(path: Path) -> Callable[[], Page]:
    body = Page(_TYPES[path.suffix], path.read_bytes())
    return functools.partial(Page, *body)
