"""Every command of ballastctl: answered, unreachable, not found and misspelt, in each form.

Scripts rely on the keys of -o json and yaml: ballastctl_keys.json has them, and a key may be added
but not removed.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.cluster import HANG_S, fresh_job, wait_for
from e2e.test_jobs import start

REPO = Path(__file__).resolve().parents[2]
KEYS = Path(__file__).with_name("ballastctl_keys.json")
FORMS = ("table", "json", "yaml")
NOWHERE = "127.0.0.1:1"

# The arguments of each command after the words of its name. {job}: a job with two attached
# trainers; {rest}: one that rests; {n}: a number of its own for each form. In a working order:
# later commands use the results of earlier ones.
COMMANDS = {
    "status": "",
    "health": "",
    "shards": "{job}",
    "trainers": "{job}",
    "rounds": "{job} --last 2",
    "top": "",
    "jobs list": "",
    "jobs show": "{job}",
    "jobs retry": "{job}",
    "tenants": "",
    "snapshot create": "{job} s{n} --keep 9",
    "snapshot list": "{job}",
    "snapshot show": "{job} s{n}",
    "snapshot verify": "{job} s{n}",
    "snapshot restore": "{job} s{n} --as {job}-r{n}",
    "snapshot fork": "{job} s{n} --as {job}-f{n}",
    "export": "{job} --name {job}-e{n} --state",
    "import": "{job}-e{n} --as {job}-i{n}",
    "jobs delete": "{job}-i{n} --force",
    "snapshot delete": "{job} s{n}",
    "doctor": "",
    "size": "7B --servers 2",
    "config check": "",
    "config show": "",
    "config schema": "",
    "completion bash": "",
    "completion zsh": "",
    "completion fish": "",
    "tune nvme": "--path /nowhere",
}
# test_tokens.py; the Python package answers: test_ds_check.py.
ELSEWHERE = ["reload", "ds check"]
ALONE = [c for c in COMMANDS if c.split()[0] in ("doctor", "size", "config", "completion", "tune")]
NAMED = {  # that name a thing which may be missing
    "shards": "none",
    "trainers": "none",
    "rounds": "none",
    "jobs show": "none",
    "jobs delete": "none",
    "jobs retry": "none",
    "snapshot create": "none s",
    "snapshot show": "none s",
    "snapshot verify": "none s",
    "snapshot delete": "none s",
    "snapshot restore": "none s --as new",
    "snapshot fork": "none s --as new",
    "export": "none",
    "import": "none --as new",
    "config check": "/nowhere/file.yaml",
    "config show": "/nowhere/file.yaml",
    "doctor": "--config /nowhere/file.yaml",
}


class Ctl:
    def __init__(self, ballastd: Path) -> None:
        self.program = ballastd.parent / "ballastctl"

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run([self.program, *arguments], capture_output=True, text=True,
                              check=False, timeout=HANG_S,
                              env={"PATH": os.environ["PATH"], **environment})  # fmt: skip


@pytest.fixture
def ctl(ballastd):
    return Ctl(ballastd)


def key_paths(value: object, path: str = "") -> set[str]:
    if isinstance(value, dict):
        below = (key_paths(v, f"{path}.{k}" if path else k) for k, v in value.items())
        return set().union({path} if path else set(), *below)
    if isinstance(value, list):
        return set().union({path}, *(key_paths(v, path + "[]") for v in value))
    return {path}


def only_words(said: str) -> bool:
    """Lines of ballastctl's own, without anything that a terminal obeys."""
    lines = said.splitlines()
    return bool(lines) and lines[0].startswith("ballastctl: ") and "\x1b" not in said


def test_the_table_below_has_every_command(ctl):
    page = (REPO / "docs" / "ballastctl.md").read_text()
    rows = re.findall(r"^\| `([a-z ]+?)(?: -?[-\[A-Z].*?)?` \|", page, re.MULTILINE)
    assert [c for c in rows if c not in COMMANDS] == ELSEWHERE
    assert [c for c in COMMANDS if c not in rows] == []


@pytest.fixture
def cluster(start_cluster, tmp_path):
    return start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "shared"),
                         BALLAST_TIME_SCALE="10")  # fmt: skip


def test_every_command_answers_in_every_form(ctl, cluster):
    job = fresh_job()
    trainers = start(cluster, job)
    seen: dict[str, list[str]] = {}
    for n, form in enumerate(FORMS):
        for command, words in COMMANDS.items():
            if command.split()[0] in ("completion", "tune"):
                continue
            arguments = [*command.split(), *words.format(job=job, n=n).split(), "-o", form]
            if command not in ALONE:
                arguments += ["--endpoint", cluster.endpoints[1]]
            done = ctl(*arguments)
            assert done.returncode == 0, (arguments, done.stderr)
            assert done.stdout and "\x1b" not in done.stdout, arguments
            if form == "table":
                continue
            values = json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)
            paths = sorted(key_paths(values))
            if command not in ("config show", "config schema"):
                assert seen.setdefault(command, paths) == paths, (command, form)
    trainers.close()
    golden = json.loads(KEYS.read_text())
    for command, paths in seen.items():
        assert set(golden.get(command, [])) <= set(paths), f"{command}: a key has gone"
    assert seen == golden, f"write {KEYS.name}: {json.dumps(seen, indent=1, sort_keys=True)}"


def test_the_numbers_of_rounds_are_those_of_the_rounds(ctl, cluster):
    job = fresh_job()
    trainers = start(cluster, job)
    trainers.step()
    ask = ("-o", "json", "--endpoint", cluster.endpoints[0])
    rounds = json.loads(ctl("rounds", job, *ask).stdout)["rounds"]
    assert sorted((r["round"], r["server"]) for r in rounds) == [
        (r, s) for r, s in itertools.product((1, 2), (0, 1))
    ]
    assert {r["end"] for r in rounds} == {"committed"}
    # The norm of ones, and the payloads of two trainers over both servers.
    assert {round(r["grad_norm"], 3) for r in rounds} == {31.623}
    assert sum(r["pushed_bytes"] for r in rounds if r["round"] == 2) == 2 * 4000
    assert {r["last_slot"] for r in rounds if r["pushed_bytes"]} <= {0, 1}
    last = json.loads(ctl("rounds", job, "--last", "1", *ask).stdout)["rounds"]
    assert {r["round"] for r in last} == {2}
    shards = json.loads(ctl("shards", job, *ask).stdout)["shards"]
    assert sum(s["owned_extents"] for s in shards) == shards[0]["extents"]
    assert {s["tier"] for s in shards} == {"dram"}
    slots = json.loads(ctl("trainers", job, *ask).stdout)["trainers"]
    assert [t["slot"] for t in slots] == [0, 1]
    trainers.close()


def test_health_says_what_is_wrong(ctl, cluster):
    ask = ("health", "-o", "json", "--endpoint", cluster.endpoints[0])
    wait_for(lambda: ctl(*ask).returncode == 0, "the servers to reach each other")
    cluster.kill(1, 9)
    done = ctl(*ask)
    assert done.returncode == 6
    found = json.loads(done.stdout)
    assert not found["healthy"]
    assert [s["address"] for s in found["servers"] if not s["healthy"]][-1] == cluster.endpoints[1]
    assert only_words(done.stderr)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ALONE])
def test_a_server_that_is_not_there_is_code_3(ctl, command, form):
    words = COMMANDS[command].format(job="job", n=0).split()
    done = ctl(*command.split(), *words, "-o", form, "--endpoint", NOWHERE)
    assert done.returncode == 3
    assert only_words(done.stderr) and NOWHERE in done.stderr
    if done.stdout and form != "table":
        json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_there_is_code_4(ctl, cluster, form):
    for command, words in NAMED.items():
        arguments = [*command.split(), *words.split(), "-o", form]
        if command not in ALONE:
            arguments += ["--endpoint", cluster.endpoints[0]]
        done = ctl(*arguments)
        assert (done.returncode, done.stdout) == (4, ""), (arguments, done.stderr)
        assert only_words(done.stderr), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_flag_is_code_2(ctl, command):
    for wrong in (["--frobnicate"], ["-o", "yml"], ["--endpoint"]):
        done = ctl(*command.split(), *wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong
        assert only_words(done.stderr)


def test_a_name_that_exists_is_code_5(ctl, cluster):
    job = fresh_job()
    trainers = start(cluster, job)
    ask = ("--endpoint", cluster.endpoints[0])
    assert ctl("snapshot", "create", job, "one", *ask).returncode == 0
    for again in (["snapshot", "create", job, "one"], ["jobs", "delete", job],
                  ["snapshot", "restore", job, "one", "--as", job]):  # fmt: skip
        done = ctl(*again, *ask)
        assert (done.returncode, done.stdout) == (5, ""), (again, done.stderr)
    trainers.close()


def test_escapes_in_an_answer_come_out_inert(ctl, cluster):
    ask = ("--endpoint", cluster.endpoints[0])
    for arguments in (["trainers", "\x1b[31mred"], ["jobs", "show", "\x1b[2J"],
                      ["export", "\x1b]0;title\x07"], ["\x1b[31m"]):  # fmt: skip
        done = ctl(*arguments, *ask)
        assert done.returncode != 0
        assert "\x1b" not in done.stderr + done.stdout and "\x07" not in done.stderr
        assert re.search(r"\\(u001b|033|x1b)", done.stderr), done.stderr


def test_watch_is_refused_into_a_pipe(ctl):
    done = ctl("status", "--watch", "--endpoint", NOWHERE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--watch redraws a terminal" in done.stderr
    assert ctl("status", "--watch", "-o", "json", "--endpoint", NOWHERE).returncode == 2


def seen_on_a_terminal(command: list[str], until: str, **environment: str) -> str:
    """The command's output to a terminal up to the second `until`; then it is ended."""
    parent, child = pty.openpty()
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child,
                               env={"PATH": "/", "TERM": "xterm", **environment})  # fmt: skip
    os.close(child)
    text = ""
    try:
        while text.count(until) < 2:
            assert select.select([parent], [], [], HANG_S)[0], text
            text += os.read(parent, 4096).decode()
    finally:
        process.terminate()
        process.wait(HANG_S)
        os.close(parent)
    return text


@pytest.mark.parametrize("command", [["top"], ["status", "--watch", "--every", "1"]])
def test_a_terminal_is_redrawn(ctl, cluster, command):
    asked = [str(ctl.program), *command, "--endpoint", cluster.endpoints[0]]
    text = seen_on_a_terminal(asked, "\x1b[J")
    assert "no jobs" in text and "\x1b[H" in text
    plain = seen_on_a_terminal(asked, "\x1b[J", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9]+m", plain)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_sources_in_its_shell(ctl, shell, tmp_path):
    script = tmp_path / "script"
    script.write_text(ctl("completion", shell).stdout)
    command = {"bash": ["bash", "--norc", "-ec"], "zsh": ["zsh", "-fec"], "fish": ["fish", "-c"]}
    load = "autoload -Uz compinit && compinit -u; " if shell == "zsh" else ""
    done = subprocess.run([*command[shell], f"{load}source {script}"], capture_output=True,
                          text=True, check=False, timeout=HANG_S,
                          env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ballastctl snap", ["snapshot"]),
        ("ballastctl jobs ", ["list", "show", "delete", "retry"]),
        ("ballastctl jobs delete --f", ["--force"]),
        ("ballastctl status --w", ["--watch"]),
        ("ballastctl status -o ", ["table", "json", "yaml"]),
        ("ballastctl tune nvme --p", ["--path"]),
        ("ballastctl ds check --w", ["--world"]),
    ],
)
def test_bash_is_offered_what_may_follow(ctl, line, offered, tmp_path):
    script = tmp_path / "script"
    script.write_text(ctl("completion", "bash").stdout)
    words = line.split(" ")
    quoted = " ".join(f"'{w}'" for w in words)
    asked = (f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ballastctl; "
             'echo "${COMPREPLY[*]}"')  # fmt: skip
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True,
                          check=True, timeout=HANG_S)  # fmt: skip
    assert done.stdout.split() == offered


def test_a_group_has_a_help_text(ctl):
    for group in {command.split()[0] for command in COMMANDS if " " in command}:
        for flag in ("--help", "-h"):
            done = ctl(group, flag)
            assert (done.returncode, done.stderr) == (0, ""), group
            assert f"usage: ballastctl {group} COMMAND" in done.stdout
    assert "jobs delete NAME" in ctl("jobs", "--help").stdout


def test_a_disk_is_measured_in_every_form(ctl, tmp_path):
    measure = ("tune", "nvme", "--path", str(tmp_path), "--io-size", "64MiB",
               "--block-size", "1MiB", "--queue-depth", "1", "--seconds", "0.01")  # fmt: skip
    (one,) = json.loads(ctl(*measure, "-o", "json").stdout)
    (other,) = yaml.safe_load(ctl(*measure, "--output", "yaml").stdout)
    assert key_paths(one) == key_paths(other) and one["path"] == str(tmp_path)
    assert ctl(*measure, "-o", "table").stdout.startswith(str(tmp_path))


def test_an_address_with_a_scheme_is_named(ctl):
    done = ctl("status", "--endpoint", "http://127.0.0.1:7000")
    assert done.returncode == 2
    assert "an address has no scheme" in done.stderr


def test_a_server_that_another_one_names_is_not_said_to_come_from_a_flag(ctl, cluster):
    wait_for(lambda: ctl("health", "--endpoint", cluster.endpoints[0]).returncode == 0,
             "the servers to reach each other")  # fmt: skip
    cluster.kill(1, 9)
    done = ctl("health", "--endpoint", cluster.endpoints[0])
    assert f"cannot reach {cluster.endpoints[1]}" in done.stderr
    assert "as another server calls it" in done.stderr and "--endpoint" not in done.stderr


def test_the_schema_accepts_what_ballastd_accepts(ctl, tmp_path):
    schema = json.loads(ctl("config", "schema").stdout)
    shown = yaml.safe_load(ctl("config", "show").stdout)
    assert set(schema["properties"]) == set(shown)
    for section, values in shown.items():
        if isinstance(values, dict):
            assert set(schema["properties"][section]["properties"]) == set(values), section
    file = tmp_path / "ballastd.yaml"
    file.write_text("storage:\n  data_dri: /data\n")
    done = ctl("config", "check", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}:2:" in done.stderr and "data_dir" in done.stderr
