"""A parameter that no trainer has a gradient for is untouched in autograd's eyes, too."""

from __future__ import annotations

import torch
from e2e.cluster import Trainers


def test_a_graph_through_untouched_parameters_survives_a_step_of_others(clusters):
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append([torch.nn.Parameter(torch.randn(16)) for _ in range(2)])
    trainers = Trainers(clusters(1), [[("a", a), ("b", b)] for a, b in models])
    graphs = []
    for a, b in models:
        graphs.append((b * b).sum())  # saves b: a version bump of b would refuse its backward
        (a * a).sum().backward()
    trainers.step()
    for (a, b), graph in zip(models, graphs, strict=True):
        graph.backward()
        assert torch.equal(b.grad, 2 * b)
    trainers.close()


def test_a_parameter_stepped_by_the_other_trainer_alone_is_seen_as_changed(clusters):
    models = [[torch.nn.Parameter(torch.ones(16)) for _ in range(2)] for _ in range(2)]
    trainers = Trainers(clusters(1), [[("a", a), ("b", b)] for a, b in models])
    for a, _ in models:
        (a * a).sum().backward()
    (models[1][1] ** 2).sum().backward()
    versions = [b._version for _, b in models]
    trainers.step()
    assert torch.equal(models[0][1], models[1][1]) and not torch.equal(
        models[0][1], torch.ones(16)
    )
    assert all(b._version > v for (_, b), v in zip(models, versions, strict=True))
    trainers.step()  # and the service's own writes are no edits
    trainers.close()
