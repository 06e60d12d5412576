"""The runner of the GPU kit: its report is whole after every check, whatever a stage does."""

import json
import os
import pathlib
import subprocess
import sys

from serving import REPO

# Stages of a kit of this test's own, in addition to the real ones.
BODIES = {
    "good": "stage.check('holds', True, 'as said'); stage.measured('rate', 2.5, 'GB/s', least=2)",
    "bad": "stage.check('does not hold', False, '3 bits | differ')",
    "raises": "stage.check('before', True); raise ValueError('as planned')",
    "hangs": "stage.check('before it hangs', True); import signal; signal.pause()",
    "dies": "stage.check('before it dies', True); import os; os.kill(os.getpid(), 9)",
}


def run(folder: pathlib.Path, *arguments: str, grace_s: float = 5) -> tuple[int, dict, str, str]:
    """Exit code, report.json, report.md and stdout of the kit with the stages of BODIES."""
    for name, body in BODIES.items():
        (folder / f"{name}.py").write_text(
            "from gpu_kit import checks\n\n\ndef run(stage):\n    " + body +
            f"\n\n\nchecks.main('{name}', run)\n")  # fmt: skip
    table = ", ".join(f"stages.Stage('{n}', 1, 0.1)" for n in BODIES)
    (folder / "kit.py").write_text(
        f"import sys, gpu_kit\nfrom gpu_kit import __main__, stages\n"
        f"gpu_kit.__path__.append({str(folder)!r})\nstages.ALL = ({table})\n"
        f"stages.GRACE_S = {grace_s}\nsys.exit(__main__.main())\n")  # fmt: skip
    paths = f"{REPO / 'tests'}:{folder}:{REPO / 'client' / 'python'}"
    # A stage finds the same modules as the runner.
    (folder / "sitecustomize.py").write_text(
        f"import gpu_kit\ngpu_kit.__path__.append({str(folder)!r})\n")  # fmt: skip
    done = subprocess.run(
        [sys.executable, folder / "kit.py", "--out", folder / "out", "--work", folder, *arguments],
        env={**os.environ, "PYTHONPATH": paths}, text=True, capture_output=True,
    )  # fmt: skip
    out = folder / "out"
    report = json.loads((out / "report.json").read_text()) if out.exists() else {}
    page = (out / "report.md").read_text() if out.exists() else ""
    return done.returncode, report, page, done.stdout + done.stderr


def test_what_a_stage_says_stands_in_both_reports(tmp_path):
    code, report, page, said = run(tmp_path, "--stage", "good", "--cpu")
    assert code == 0, said
    assert [(c["check"], c["state"]) for c in report["checks"]] == [
        ("holds", "passed"), ("rate", "passed"),
    ]  # fmt: skip
    assert "| passed | rate | 2.5 GB/s (at least 2) |  |" in page
    assert "2 passed, 0 failed, 0 measured, 0 seen, 0 not run" in said


def test_a_failed_check_and_an_exception_are_red_and_the_others_run(tmp_path):
    code, report, page, said = run(
        tmp_path, "--stage", "bad", "--stage", "raises", "--stage", "good", "--cpu"
    )
    assert code == 1
    states = {c["check"]: c["state"] for c in report["checks"]}
    assert states == {
        "holds": "passed", "rate": "passed", "does not hold": "failed", "before": "passed",
        "raises: runs to its end": "failed",
    }  # fmt: skip
    assert "ValueError: as planned" in page
    assert "3 bits / differ" in page, "a bar would cut the table's row"


def test_a_stage_that_hangs_or_dies_loses_nothing_that_it_said(tmp_path):
    code, report, page, said = run(
        tmp_path, "--stage", "hangs", "--stage", "dies", "--cpu", "--minutes", "0.1", grace_s=10
    )
    assert code == 1
    assert {c["check"] for c in report["checks"]} == {"before it hangs", "before it dies"}
    ended = {s["stage"]: s["ended"] for s in report["stages"]}
    assert ended == {"hangs": "out of time", "dies": "exit code -9"}
    assert "cut short: hangs, dies" in said


def test_arguments_are_refused_by_name(tmp_path):
    code, _, _, said = run(tmp_path, "--minutes", "0")
    assert code == 2
    assert "--minutes is 0.0; give more than 0" in said
    code, _, _, said = run(tmp_path, "--stage", "none")
    assert code == 2
    assert "invalid choice: 'none'" in said
