"""/statusz of a real server, as a browser and as a terminal get it: names of tensors stay text."""

from __future__ import annotations

import math
import urllib.request
from html.parser import HTMLParser

import pytest
import torch

from e2e.cluster import HANG_S, Cluster, Trainers, fresh_job

# Control characters in a name are refused when the job is made; this one turns the text around it.
TURNS = "\u202e"
NAME = f"<script>alert(1)</script>{TURNS}\"'&"
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


def fetch(cluster: Cluster, server: int, accept: str) -> tuple[str, str]:
    """The page's type and text."""
    url = f"http://{cluster.admin_addresses[server]}/statusz"
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


class Page(HTMLParser):
    """The tags of a page, and its text as a reader sees it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data + " "


@pytest.fixture
def skipped(start_cluster):
    """A cluster with a job whose second round was skipped because of a tensor with that name."""
    cluster = start_cluster(1, BALLAST_TIME_SCALE="10")
    p = torch.nn.Parameter(torch.ones(100))
    trainers = Trainers(cluster, [[(NAME, p)]], job=fresh_job(), nonfinite="skip")
    for value in (1.0, math.nan):
        p.grad = torch.full_like(p, value)
        trainers.step()
    yield cluster, trainers.job
    trainers.close()


def test_a_browser_gets_a_page_on_which_names_are_text(skipped):
    cluster, job = skipped
    kind, html = fetch(cluster, 0, BROWSER)
    assert kind == "text/html; charset=utf-8"
    page = Page(html)
    assert "script" not in page.tags and "img" not in page.tags
    assert TURNS not in html and "\\u202e" in page.text
    assert "<script>alert(1)</script>" in page.text, "the log's warning names the tensor"
    for text in (job, "committed", "skipped", "dram", "slot 0", "Last events", "WARN"):
        assert text in page.text


def test_a_terminal_gets_text_without_escapes(skipped):
    cluster, job = skipped
    kind, text = fetch(cluster, 0, "*/*")
    assert kind.startswith("text/plain")
    assert job in text and "skipped" in text and "alert(1)" in text
    assert TURNS not in text and "\\u202e" in text
