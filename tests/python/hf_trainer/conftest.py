"""Fixtures of the tests with Hugging Face's Trainer."""

from __future__ import annotations

import gc

import pytest
import transformers


@pytest.fixture(scope="session", autouse=True)
def frozen_imports():
    """Trainer collects garbage several times a run, which took most of a short one: the objects of
    transformers and torch are no longer examined."""
    transformers.Trainer  # noqa: B018  imports it
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def fresh_accelerate(monkeypatch):
    """Accelerate keeps precision and world for the whole process; no test sees another one's."""
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED", raising=False)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


@pytest.fixture
def one_server(shared_servers, monkeypatch):
    """Addresses of a real server, in the environment."""
    addresses = shared_servers(1)
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(addresses))
    return addresses
