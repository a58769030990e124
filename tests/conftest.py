"""Fixtures that cost something and are shared by the whole session."""

from __future__ import annotations

import pytest

from tests.support.rig import Rig


@pytest.fixture(scope="session")
def rig(tmp_path_factory):
    """Whole runs, started from one warm server."""
    return Rig(tmp_path_factory.mktemp("rig"))
