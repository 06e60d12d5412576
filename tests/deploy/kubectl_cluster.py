"""The cluster for the walk of docs/operations.md: a stand-in for kubectl that checks its arguments
against the manifests and runs the pods' commands on this machine.

Comes from: the manifests, which the real `kubectl kustomize` renders. Goes to: pods.py. Scheduling,
volumes, policies and the API server are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.manifests import KUBERNETES, Manifests, documents
from deploy.pods import Pods
from deploy.tools import REPO, kubectls, run


class KubectlCluster:
    """`start`: of conftest's start_server. `binary`: a server; ballastctl is next to it, as in the
    image. texts: addresses of the page -> of this machine; port-forward adds to it."""

    def __init__(self, folder: Path, start: Callable, binary: Path, texts: dict[str, str]):
        self._folder, self._start, self._binary, self._texts = folder, start, binary, texts
        self._pods: Pods | None = None

    def kubectl(self, words: list[str]) -> tuple[int, str]:
        if words[1] == "apply":
            return self._apply(*words[2:])
        assert words[1] == "-n" and self._pods, f"{words}: apply comes first, and all else has -n"
        namespace = self._pods.found.one("Namespace")["metadata"]["name"]
        if words[2] != namespace:
            return 1, f'Error from server (NotFound): namespaces "{words[2]}" not found'
        verbs = {"rollout": self._rollout, "get": self._get, "logs": self._logs,
                 "exec": self._exec, "port-forward": self._forward, "delete": self._delete}
        assert words[3] in verbs, words
        return verbs[words[3]](*words[4:])

    def _apply(self, flag: str, folder: str) -> tuple[int, str]:
        assert flag == "-k"
        inside = (REPO / folder).relative_to(KUBERNETES)
        found = Manifests(documents(kubectls()["new"], str(inside)))
        self._pods = Pods(found, self._folder, self._start)
        self._pods.introduce()
        made = (f"{d['kind'].lower()}/{d['metadata']['name']} created" for d in found.documents)
        return 0, "\n".join(made)

    def _rollout(self, verb: str, what: str) -> tuple[int, str]:
        kind, name = what.split("/")
        assert kind == "statefulset"
        self._pods.found.one("StatefulSet", name)
        count = len(self._pods.servers)
        if verb == "restart":
            for ordinal in reversed(range(count)):  # As the controller does, one at a time.
                self._end(ordinal)
                self._begin(ordinal)
            return 0, f"statefulset.apps/{name} restarted"
        assert verb == "status"
        for server in self._pods.servers:
            server.wait_until_serving()
        return 0, f"partitioned roll out complete: {count} new pods have been updated..."

    def _get(self, what: str) -> tuple[int, str]:
        assert what == "pods"
        ready = ["1/1" if server.get("/readyz")[0] == 200 else "0/1"
                 for server in self._pods.servers]
        return 0, "\n".join(f"{self._pods.found.pod_name(i)}  {text}  Running"
                            for i, text in enumerate(ready))

    def _logs(self, pod: str) -> tuple[int, str]:
        return 0, self._pods.servers[self._ordinal(pod)].log()

    def _exec(self, pod: str, dashes: str, program: str, *arguments: str) -> tuple[int, str]:
        """A program of the image, on the pod's loopback."""
        assert (dashes, program) == ("--", "ballastctl"), "the image has no other program"
        port = self._port("grpc")
        address = self._pods.servers[self._ordinal(pod)].address
        inside = [a.replace(f"127.0.0.1:{port}", address) for a in arguments]
        done = run(self._binary.with_name("ballastctl"), *inside, env={})
        return done.returncode, done.stdout + done.stderr

    def _forward(self, pod: str, port: str) -> tuple[int, str]:
        assert int(port) == self._port("metrics"), "only pages are for port-forward"
        self._texts[f"127.0.0.1:{port}"] = self._pods.servers[self._ordinal(pod)].admin
        return 0, ""

    def _delete(self, what: str, pod: str) -> tuple[int, str]:
        """The controller makes the pod again."""
        assert what == "pod"
        ordinal = self._ordinal(pod)
        self._end(ordinal)
        self._begin(ordinal)
        return 0, f'pod "{pod}" deleted'

    def _ordinal(self, pod: str) -> int:
        names = [self._pods.found.pod_name(i) for i in range(len(self._pods.servers))]
        assert pod in names, f"{pod} is none of {names}"
        return names.index(pod)

    def _port(self, name: str) -> int:
        ports = {p["name"]: p["containerPort"] for p in self._pods.found.container["ports"]}
        return ports[name]

    def _end(self, ordinal: int) -> None:
        grace_s = self._pods.found.pod["terminationGracePeriodSeconds"]
        assert self._pods.servers[ordinal].stop(within_s=grace_s) == 0

    def _begin(self, ordinal: int) -> None:
        self._pods.start_one(ordinal)
        self._pods.servers[ordinal].wait_until_serving()
