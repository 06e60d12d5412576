"""The names in a PromQL expression: metrics, labels, functions.

Comes from: dashboard.json and rules.yaml. Goes to: test_monitoring.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import promql_parser as promql


@dataclasses.dataclass(frozen=True)
class Selector:
    """One metric in an expression, with the labels that its braces name."""

    metric: str
    labels: frozenset[str]
    text: str


def _nodes(node) -> Iterator:
    yield node
    below: list = []
    if isinstance(node, promql.BinaryExpr):
        below = [node.lhs, node.rhs]
    elif isinstance(node, promql.Call):
        below = list(node.args)
    elif isinstance(node, promql.MatrixSelector):
        below = [node.vector_selector]
    elif isinstance(node, (promql.AggregateExpr, promql.ParenExpr, promql.UnaryExpr)):
        below = [node.expr]
    for child in below:
        yield from _nodes(child)


def selectors(text: str) -> list[Selector]:
    """All metrics of an expression; an exception if it is no PromQL."""
    return [Selector(node.name, frozenset(m.name for m in node.matchers.matchers), str(node))
            for node in _nodes(promql.parse(text)) if isinstance(node, promql.VectorSelector)]


def grouped_by(text: str) -> set[str]:
    """All labels that an aggregation of the expression keeps."""
    return {label for node in _nodes(promql.parse(text))
            if isinstance(node, promql.AggregateExpr) and node.modifier
            for label in node.modifier.labels}


def functions(text: str) -> set[str]:
    return {node.func.name for node in _nodes(promql.parse(text)) if isinstance(node, promql.Call)}
