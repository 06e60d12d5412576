"""The servers of a folder of deploy/kubernetes as processes of this machine, on loopback.

Comes from: manifests.py. Goes to: deploy.server.Server. Volumes are folders; the addresses of the
cluster become free ports.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from deploy.manifests import Manifests
from deploy.server import ON_LOOPBACK, Server
from dev_ca import dev_ca


class Pods:
    """The servers of a folder of deploy/kubernetes. Their volumes are below `folder`."""

    def __init__(self, found: Manifests, folder: Path, start):
        self.found, self._folder, self._start = found, folder, start
        self._config = folder / "ballastd.yaml"
        self.token = ""  # of the admin port; "": it wants none
        if "token_file" in found.config["admin"]:
            self._make_token()
        if "security" in found.config:
            self._make_access()
        self._config.write_text(self._mounted(found.config_text))
        self._peers = folder / "peers.json"
        self.servers = [self._run(i, ON_LOOPBACK) for i in range(found.servers["replicas"])]

    def _run(self, ordinal: int, network: tuple[str, ...]) -> Server:
        """The pod's command, with this machine's network and disk instead of the cluster's."""
        fields = [f"storage.data_dir={self.data(ordinal)}"]
        if "snapshot_dir" in self.found.config["storage"]:
            fields.append(f"storage.snapshot_dir={self._folder / 'snapshots'}")
        more = []
        if self.found.config["cluster"].get("peers"):
            fields.append("cluster.peers=[]")
            more = ["--peers-file", str(self._peers)]
        return self._start("--config", str(self._config), *network, *more,
                           *(word for field in fields for word in ("--set", field)),
                           **{name: self._mounted(value)
                              for name, value in self.found.variables(ordinal).items()})

    def _make_access(self) -> None:
        """All pairs; the lists, of which a ConfigMap brings two."""
        dev_ca(self.tls, self.found.servers["replicas"])
        for folder in ("access", "tokens"):
            (self._folder / folder).mkdir()
        for name, text in self.found.one("ConfigMap", "ballast-access")["data"].items():
            (self._folder / "access" / name).write_text(text)
        (self._folder / "tokens" / "tokens").touch(mode=0o600)

    def _make_token(self) -> None:
        self.token = "token-of-this-test"
        (self._folder / "admin").mkdir()
        secret = self._folder / "admin" / "token"
        secret.touch(mode=0o600)
        secret.write_text(self.token)

    def _mounted(self, text: str) -> str:
        """`text` with the folders of this machine for those where Secrets are mounted."""
        for volume in ("tls", "admin", "access", "tokens"):
            text = re.sub(rf"(^|\s)/{volume}/", rf"\g<1>{self._folder}/{volume}/", text)
        return text

    @property
    def tls(self) -> Path:
        """The pairs of all roles."""
        return self._folder / "tls"

    def data(self, ordinal: int) -> Path:
        return self._folder / f"data-{ordinal}"

    def introduce(self) -> None:
        """Tells the servers each other's addresses, and waits until they serve."""
        listed = [{"id": server.id, "address": server.address} for server in self.servers]
        unfinished = self._peers.with_suffix(".part")
        unfinished.write_text(json.dumps({"peers": listed}))
        os.replace(unfinished, self._peers)
        for server in self.servers:
            server.wait_until_serving()

    def stop(self) -> list[int]:
        """Ends all as the kubelet does; their exit codes."""
        grace_s = self.found.pod["terminationGracePeriodSeconds"]
        return [server.stop(within_s=grace_s) for server in self.servers]

    def start_one(self, ordinal: int) -> None:
        """Starts an ended one, on its address."""
        network = ("--listen", self.servers[ordinal].address, *ON_LOOPBACK[2:])
        self.servers[ordinal] = self._run(ordinal, network)

    def start_again(self) -> None:
        """Starts all on their addresses."""
        for ordinal in range(len(self.servers)):
            self.start_one(ordinal)
        for server in self.servers:
            server.wait_until_serving()
