"""ballast-report: the shape of ds_report, and a reason for each missing part."""

import json
import subprocess
import sys

import pytest

from ballast import report
from ballast.launcher import machine
from ballast.launcher.machine import Op


def test_it_has_the_rows_of_this_machine():
    done = subprocess.run([sys.executable, "-m", "ballast.report"], capture_output=True, text=True,
                          check=False, timeout=120)  # fmt: skip
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "op name .................. installed .. compatible" in lines
    assert "core ..................... [OKAY] .... [OKAY]" in lines
    assert "gds ...................... [NO] ...... [NO]" in lines
    (why,) = [line for line in lines if line.startswith(" [WARNING]  gds: ")]
    assert "no GPUDirect Storage" in why
    assert any(line.startswith("async_io ..") for line in lines)
    for fact in ("torch version", "ballast version", "libaio", "kernel", "instruction set",
                 "memlock limit"):  # fmt: skip
        (line,) = [line for line in lines if line.startswith(f"{fact} ..")]
        assert line.split(".. ")[1].strip()
    assert done.returncode == (1 if "\nasync_io ................. [NO]" in done.stdout else 0)


def test_programs_get_json(capsys, monkeypatch):
    ops = [Op("core", True, True), Op("gds", False, False, "none", ours=False)]
    monkeypatch.setattr(machine, "ops", lambda: ops)
    monkeypatch.setattr(machine, "facts", lambda: [("kernel", "6")])
    assert report.main(["-o", "json"]) == 0  # gds is not Ballast's to have
    said = json.loads(capsys.readouterr().out)
    assert said["ops"][1] == {
        "name": "gds", "installed": False, "compatible": False, "why": "none", "ours": False,
    }  # fmt: skip
    assert said["facts"] == {"kernel": "6"}
    ops[0] = Op("core", False, True, "it is not built")
    assert report.main([]) == 1
    assert " [WARNING]  core: it is not built" in capsys.readouterr().out
    assert report.main(["--hide_errors_and_warnings"]) == 1
    assert "not built" not in capsys.readouterr().out
    report.main(["--hide_operator_status"])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Ballast general environment info:",
        "kernel ........................... 6",
    ]


def test_what_is_missing_has_a_reason(monkeypatch, tmp_path):
    def find(module):
        return None if module == "ballast._core" else spec(module)

    spec = machine.importlib.util.find_spec
    monkeypatch.setattr(machine.importlib.util, "find_spec", find)
    core = machine._core()
    assert not core.installed and "ballast._core is not in this installation; build" in core.why
    monkeypatch.setenv("BALLAST_BALLASTD", str(tmp_path / "none"))
    server = machine._server()
    assert not server.installed and "none is not an executable file" in server.why
    broken = tmp_path / "ballastd"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BALLAST_BALLASTD", str(broken))
    server = machine._server()
    assert (server.installed, server.compatible) == (True, False)
    assert "ballastd --version fails" in server.why


def test_a_server_is_asked_for_its_version_once(monkeypatch, tmp_path):
    counting = tmp_path / "ballastd"
    counting.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\necho ballastd 1.2.3\n")
    counting.chmod(0o755)
    monkeypatch.setenv("BALLAST_BALLASTD", str(counting))
    assert machine._server().compatible
    assert machine._server_version() == f"ballastd 1.2.3 [{counting}]"
    assert (tmp_path / "asked").read_text() == "x\n"


class Library:
    def __init__(self, result):
        self.io_setup = lambda count, context: result
        self.io_destroy = lambda context: 0


def test_asynchronous_requests_need_the_library_and_the_kernel(monkeypatch):
    def absent(name, use_errno):
        raise OSError(name)

    monkeypatch.setattr(machine.ctypes, "CDLL", absent)
    assert "there is no libaio.so.1; install the package libaio1" in machine._async_io().why
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name, use_errno: Library(-11))
    op = machine._async_io()
    assert not op.compatible
    assert "io_setup: Resource temporarily unavailable); raise fs.aio-max-nr" in op.why
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name, use_errno: Library(0))
    assert machine._async_io().compatible


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("sse2", "scalar"),
        ("avx avx2 fma", "scalar"),
        ("avx avx2 fma f16c avx512f", "avx2"),
        ("avx avx2 fma f16c avx512f avx512bw avx512dq avx512vl", "avx512"),
        (None, "scalar"),
    ],
)
def test_the_instruction_set_is_the_one_that_the_server_takes(tmp_path, flags, name):
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"model name\t: x\nflags\t\t: fpu {flags} rdrand\n")
    assert machine.instruction_set(file) == name
