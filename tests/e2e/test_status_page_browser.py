"""/statusz in a real browser: names of tensors run nothing and make no element there.

Chromium comes from scripts/setup.sh; without it these tests fail.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from e2e.cluster import HANG_S, Cluster, Trainers, fresh_job

# It starts no service, asks no network but the page's, and leaves no files.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")
REPO = Path(__file__).resolve().parents[2]
RAN = "it has run"
# Text that a page would obey, and the one kind left for a terminal, since names with control
# characters are refused: a mark that turns the text.
NAME = f"</td><script>document.title='{RAN}'</script><b id=made>"
ESCAPES = "\u202e2J"
# Writes the words of headings and short cells with more than one line into the title.
MEASURES = """<script>
const broken = [];
for (const cell of document.querySelectorAll('h1, h2, th, td:not(.name):not(.text)')) {
  const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    for (const word of words.currentNode.data.matchAll(/\\w+/g)) {
      const range = document.createRange();
      range.setStart(words.currentNode, word.index);
      range.setEnd(words.currentNode, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(r => r.top));
      if (tops.size > 1) broken.push(word[0]);
    }
  }
}
document.title = 'measured ' + innerWidth + ' broken: ' + broken.join(' ');
</script>"""
PNG = b"\x89PNG\r\n\x1a\n"


class Dom(HTMLParser):
    """A page after its scripts: its title, its elements and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = self.title = self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._tag = tag
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name == "href"]

    def handle_data(self, data):
        self.text += data
        if self._tag == "title":
            self.title += data


class Browser:
    """Chromium with a profile of its own for each page."""

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which("chromium")
        assert self._program, "no chromium; scripts/setup.sh installs it"
        self._folder, self._pages = folder, 0

    def dom(self, url: str, *flags: str) -> Dom:
        return Dom(self._run("--dump-dom", *flags, url))

    def screenshot(self, url: str, png: Path) -> None:
        self._run(f"--screenshot={png}", "--window-size=1100,900", "--hide-scrollbars", url)

    def _run(self, *arguments: str) -> str:
        self._pages += 1
        profile = self._folder / f"profile-{self._pages}"
        profile.mkdir()
        env = {"PATH": os.environ["PATH"], "HOME": str(profile)}
        done = subprocess.run([self._program, *FLAGS, f"--user-data-dir={profile}", *arguments],
                              env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_the_picture_in_the_manual_is_small():
    png = (REPO / "docs" / "img" / "statusz.png").read_bytes()
    assert png.startswith(PNG) and len(png) < 150_000


@pytest.fixture
def browser(tmp_path):
    return Browser(tmp_path)


def train(cluster: Cluster, job: str, names: list[str]) -> Trainers:
    """A pair after two committed rounds and one skipped because of the first tensor."""
    replicas = [[(name, torch.nn.Parameter(torch.ones(400))) for name in names] for _ in range(2)]
    trainers = Trainers(cluster, replicas, job=job, nonfinite="skip")
    for value in (1.0, 0.5, math.nan):
        for replica in replicas:
            for i, (_, p) in enumerate(replica):
                p.grad = torch.full_like(p, value if i == 0 else 1.0)
        trainers.step()
    return trainers


def test_a_browser_runs_the_script_of_a_page_without_escapes(browser, tmp_path):
    """So the test below can fail."""
    page = tmp_path / "page.html"
    page.write_text(f"<title>quiet</title><table><tr><td>{NAME}</td></tr></table>")
    dom = browser.dom(page.as_uri())
    assert "quiet" not in dom.text and "script" in dom.tags and dom.ids == ["made"]


def test_names_of_tensors_run_nothing_in_a_browser(browser, start_cluster, tmp_path):
    cluster, job = start_cluster(2, BALLAST_TIME_SCALE="10"), fresh_job()
    trainers = train(cluster, job, [ESCAPES + NAME, "bias"])
    try:
        url = f"http://{cluster.admin_addresses[0]}/statusz"
        dom = browser.dom(url)
        assert "table" in dom.tags and job in dom.text and "skipped" in dom.text
        assert not {"script", "b"} & dom.tags and dom.ids == []
        # It appears as text, and turns nothing.
        assert "\\u202e2J" in dom.text and NAME in dom.text
        assert "\u202e" not in dom.text
        assert dom.text.index("All is well") < dom.text.rindex("Ballast server 0")
        assert f"http://{cluster.admin_addresses[1]}/statusz" in dom.links
        png = tmp_path / "page.png"
        browser.screenshot(url, png)
        assert png.read_bytes().startswith(PNG)
        # From a file, whose scripts run.
        copy = tmp_path / "copy.html"
        with urllib.request.urlopen(f"{url}?format=html", timeout=HANG_S) as answer:
            copy.write_text(answer.read().decode() + MEASURES)
        for width in (500, 1280):  # Chromium's narrowest, which is a phone to the page.
            title = browser.dom(copy.as_uri(), f"--window-size={width},900").title
            assert re.fullmatch(rf"measured {width} broken: ", title), title
    finally:
        trainers.close()
