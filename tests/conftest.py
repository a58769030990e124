"""Fixtures that cost something and are shared by the whole session."""

from __future__ import annotations

import uuid

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


@pytest.fixture(scope="session")
def s3():
    """The environment in which s3:// is a server on loopback, one for all tests."""
    from tests.support.s3 import s3_server  # heavy: boto

    with s3_server() as environment:
        yield environment


@pytest.fixture(params=["memory", "file", "s3"])
def store_url(request, tmp_path, monkeypatch):
    """A place in an object store that nobody has used."""
    if request.param == "file":
        return f"file://{tmp_path}/store/run"
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/run"
    for name, value in request.getfixturevalue("s3").items():
        monkeypatch.setenv(name, value)
    from tests.support.s3 import new_bucket

    return new_bucket()


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
