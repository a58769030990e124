"""Fixtures that cost something and are shared by the whole session."""

from __future__ import annotations

import pytest
import torch

from tests.support.rig import Rig
from tests.support.weights import SCALED, shaped
from trainer.models.registry import get

torch.set_num_threads(1)  # as ranks have; several threads a test disturb each other on small machines


@pytest.fixture(scope="session")
def rig(tmp_path_factory):
    """Whole runs, started from one warm server."""
    return Rig(tmp_path_factory.mktemp("rig"))


@pytest.fixture
def flavors(monkeypatch):
    """Flavors of the tiny shape: as it is, tied, and with a stretched embedding and a single key head."""
    small = {
        "tiny": shaped(),
        "tied": shaped(tied=True),
        "scaled": shaped(rope_scaling=SCALED, kv_heads=1),
    }
    monkeypatch.setattr(get("llama3"), "flavors", small)
    return small
