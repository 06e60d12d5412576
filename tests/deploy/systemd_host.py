"""The host with systemd for the walks of docs/operations.md: a stand-in for systemctl and
journalctl that reads the unit and treats the server accordingly.

Comes from: the unit below `root`, which the walk installs there. Goes to: the server that ExecStart
names, below `root` too. Systemd's other work (users, hardening, limits) is not here.
"""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from deploy.supervisor import Supervisor

_HANG_S = 60.0


class SystemdHost:
    """`root` stands for /. `flags`: network and peers of a server on this machine. on_started gets
    the host after each start. close() kills the server."""

    def __init__(self, root: Path, flags: list[str], on_started: Callable = lambda host: None):
        self.root, self._flags, self._on_started = root, flags, on_started
        for folder in ("etc/systemd/system", "usr/lib", "var/lib/ballast", "run"):
            (root / folder).mkdir(parents=True)
        self._supervisor = Supervisor(watchdog_s=60)
        self._unit: dict[str, str] = {}
        self._process: subprocess.Popen | None = None
        self._state = "inactive"
        self._restarts = 0
        self.address = self.admin = "127.0.0.1:0"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._supervisor.__exit__()

    # --- the page's commands

    def systemctl(self, words: list[str]) -> tuple[int, str]:
        verbs = {"daemon-reload": self._reload, "enable": self._enable, "start": self.start,
                 "stop": self._stop, "restart": self._restart, "kill": self._kill,
                 "show": self._show}
        flags = [word for word in words[1:] if word.startswith("-")]
        verb, *names = (word for word in words[1:] if not word.startswith("-"))
        assert verb in verbs, words
        assert names == ([] if verb == "daemon-reload" else ["ballastd"]), words
        return verbs[verb](*flags)

    def journalctl(self, words: list[str]) -> tuple[int, str]:
        assert words[1:3] == ["--unit", "ballastd"], words
        return 0, "".join(self._log().splitlines(keepends=True)[-int(words[4]):])

    def _reload(self) -> tuple[int, str]:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str
        assert parser.read(self.root / "etc/systemd/system/ballastd.service"), "no unit"
        assert parser["Install"]["WantedBy"] == "multi-user.target"
        self._unit = dict(parser["Service"])
        assert self._unit["Type"] == "notify" and self._unit["Restart"] == "on-failure"
        return 0, ""

    def _enable(self, *flags: str) -> tuple[int, str]:
        return self.start() if "--now" in flags else (0, "")

    def start(self) -> tuple[int, str]:
        """Returns when the server has said that it is ready, or has ended."""
        self.begin()
        return self.await_ready()

    def _stop(self) -> tuple[int, str]:
        self._end(signal.SIGTERM)
        self._state = "inactive" if self._process.returncode == 0 else "failed"
        return 0, ""

    def _restart(self) -> tuple[int, str]:
        if self._state == "active":
            self._stop()
        return self.start()

    def _kill(self, *flags: str) -> tuple[int, str]:
        """With the unit's reaction."""
        assert flags == ("--signal=KILL",)
        self.crash()
        self._restarts += 1
        return self.start()

    def _show(self, *flags: str) -> tuple[int, str]:
        (name,) = (flag.removeprefix("--property=") for flag in flags)
        status = [line for line in self._supervisor.words() if line.startswith("STATUS=")]
        code = self._process.returncode if self._process else None
        known = {"StatusText": status[-1].removeprefix("STATUS=") if status else "",
                 "NRestarts": self._restarts, "ActiveState": self._state,
                 "ExecMainStatus": code or 0}
        return 0, f"{name}={known[name]}\n"

    # --- events of the server

    def begin(self) -> None:
        """Starts the program of the unit with its variables; does not wait."""
        program, *arguments = self._unit["ExecStart"].split()
        moved = [str(self._moved(a)) if a.startswith("/") else a for a in arguments]
        self._ready_file.unlink(missing_ok=True)
        self._heard = self._supervisor.listen().count("READY=1")
        network = ["--listen", self.address, "--admin", "127.0.0.1:0", "--data-dir",
                   str(self._moved("/var/lib/ballast")), "--ready-file", str(self._ready_file)]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._moved(program), *moved, *network, *self._flags], env=self._variables(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root)

    def await_address(self) -> str:
        """Of a started server, once it listens."""
        deadline = time.monotonic() + _HANG_S
        while not self._ready_file.exists():
            assert time.monotonic() < deadline, self._log()
            time.sleep(0.02)
        return json.loads(self._ready_file.read_text())["address"]

    def await_ready(self) -> tuple[int, str]:
        """1 when it has ended instead; whether it is started again is in the unit."""
        while self._supervisor.listen(0.05).count("READY=1") == self._heard:
            if self._process.poll() is None:
                continue
            self._state = "failed"
            code = str(self._process.returncode)
            assert code in self._unit["RestartPreventExitStatus"].split(), self._log()
            return 1, f"Job for ballastd.service failed: exit code {code}"
        facts = json.loads(self._ready_file.read_text())
        self.address, self.admin, self._state = facts["address"], facts["admin"], "active"
        self._on_started(self)
        return 0, ""

    def crash(self) -> None:
        self._end(signal.SIGKILL)

    @property
    def _ready_file(self) -> Path:
        return self.root / "run" / "ready.json"

    def _moved(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _log(self) -> str:
        return (self.root / "log").read_text()

    def _end(self, signum: int) -> None:
        self._process.send_signal(signum)
        self._process.wait(_HANG_S)

    def _variables(self) -> dict[str, str]:
        file = self._moved(self._unit["EnvironmentFile"].removeprefix("-"))
        lines = [self._unit["Environment"], *file.read_text().splitlines()]
        given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        watchdog = str(int(self._unit["WatchdogSec"]) * 1_000_000)
        return {"PATH": os.environ["PATH"], **given, **self._supervisor.variables,
                "WATCHDOG_USEC": watchdog}
