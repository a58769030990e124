"""Fixtures that cost something and are shared by the whole session."""

from __future__ import annotations

import pytest
import torch

from tests.support.rig import Rig

torch.set_num_threads(1)  # as ranks have; several threads a test disturb each other on small machines


@pytest.fixture(scope="session")
def rig(tmp_path_factory):
    """Whole runs, started from one warm server."""
    return Rig(tmp_path_factory.mktemp("rig"))
