"""Every block of commands or configuration on a page runs somewhere, or the table says why not.

Comes from: the pages. Goes to: `ctest -L tidy` (tidy_selftest). Blocks of Python have their own
table, and run there: tests/e2e/test_pages.py. Thread safety: one process, nothing shared.

A row is (page, how the block begins, its runner). The runner is a path, or "not: " and the reason.
"*" stands for all blocks of a page.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?:sh|bash|yaml|json)\n(.*?)^```", re.MULTILINE | re.DOTALL)

WALKS = "tests/deploy/test_walks.py"
CLUSTER = f"not: needs a cluster; {WALKS} gives such commands of operations.md to a stand-in"
MIGRATING = "tests/e2e/test_migrating.py"
TABLE = (
    # The commands of the first page: set-up, quickstart, ballast-run, ballastd, install.
    ("README.md", "*", "tests/e2e/test_quickstart.py tests/python/test_run.py tests/install"),
    ("CONTRIBUTING.md", "./scripts/setup.sh", ".ci/run"),
    ("CONTRIBUTING.md", "cmake --build --preset release --target",
     "not: parts of what .ci/run does, and runs that take an hour"),
    ("deploy/README.md", "./scripts/setup.sh", "tests/deploy/test_packages_wheel.py"),
    ("deploy/README.md", "scripts/gpu_kit.sh", "tests/deploy/test_gpu_kit.py"),
    ("deploy/README.md", "tar -xf ballast-0.1.0", "tests/deploy/test_gpu_kit.py"),
    ("deploy/README.md", "apt-get install ./build", "tests/deploy/test_packages_deb.py"),
    ("deploy/README.md", "./scripts/package.sh image",
     "tests/deploy/test_packages_image.py tests/deploy/test_container.py"),
    ("deploy/README.md", "kubectl apply -k deploy/kubernetes/base", CLUSTER),
    ("deploy/README.md", "env:", "not: two lines of a user's own pod"),
    ("deploy/README.md", "apiVersion: v1", "tests/deploy/test_kubernetes.py"),
    ("deploy/README.md", "# own/kustomization.yaml", "tests/deploy/test_monitoring.py"),
    ("deploy/README.md", "kubectl -n ballast exec ballast-0", CLUSTER),
    ("deploy/README.md", "kubectl -n ballast delete pvc",
     "not: needs volumes of a cluster; tests/e2e/test_forks.py restores a snapshot likewise"),
    ("deploy/README.md", "deploy/monitoring/up.sh", "tests/deploy/test_up.py"),
    ("deploy/README.md", "kubectl -n ballast create secret", "not: needs a cluster"),
    ("deploy/README.md", "kubectl create namespace ballast", "not: needs a cluster"),
    ("deploy/README.md", "token=$(kubectl",
     "not: needs a cluster; tests/deploy/test_kubernetes_servers.py asks with such a token"),
    ("deploy/README.md", "kubectl -n ballast exec deploy/ballast-operator",
     "tests/deploy/test_kubernetes_servers.py"),
    ("docs/ballastctl.md", "source <(ballastctl", "tests/e2e/test_ballastctl_table.py"),
    ("docs/deepnvme.md", "ballast-nvme-tune", "tests/python/aio/test_nvme_tune.py"),
    ("docs/deepspeed.md", "ballast-run --servers 2 --nproc 4 train.py --deepspeed_config",
     "tests/python/hf_trainer/test_examples.py"),
    ("docs/deepspeed.md", '"ballast": {"endpoints"', "not: a part of a configuration; "
     "tests/python/ds_config/test_ds_values.py reads such a section"),
    ("docs/formats/safetensors.md", "cmake --preset fuzz", "tests/fuzz/fuzz_test.cmake"),
    ("docs/fuzzing.md", "tests/fuzz/fuzz.sh",
     "not: takes minutes of Clang; fuzz_targets_test has the same targets"),
    ("docs/fuzzing.md", "tests/fuzz/corpus.py", "tests/fuzz/fuzz_test.cmake"),  # unpack
    ("docs/gpu.md", "tar xzf ballast-gpu-kit", "tests/deploy/test_gpu_kit.py"),
    ("docs/huggingface.md", "ballast-run --servers 2", "tests/python/hf_trainer/test_examples.py"),
    ("docs/kill-storm.md", "./scripts/kill_storm.sh",
     "not: minutes each; tests/fault/CMakeLists.txt has storms of a minute by the same program"),
    ("docs/launching.md", "ballast-run --servers 2", "tests/python/test_run.py"),
    ("docs/launching.md", "srun -n 8",
     "not: needs Slurm; tests/python/test_config.py has the variables of its tasks"),
    ("docs/launching.md", "cat > hosts",
     "not: two machines; tests/python/test_run_ssh.py has them on loopback"),
    ("docs/migrating-from-zero-offload.md", "git clone",
     "not: a clone of its own; tests/e2e/test_migrating.py looks for what the lines name"),
    ("docs/migrating-from-zero-offload.md", "mkdir -p ~/migrate", MIGRATING),
    ("docs/migrating-from-zero-offload.md", "sed -i", MIGRATING),
    ("docs/migrating-from-zero-offload.md", "ballast-run --servers 2 --nproc 2", MIGRATING),
    ("docs/migrating-from-zero-offload.md", "cat checkpoints/latest", MIGRATING),
    ("docs/migrating-from-zero-offload.md", "rm servers/run", MIGRATING),
    ("docs/monitors.md", "{", "not: names accounts of services; tests/python/monitor has each"),
    ("docs/nccl.md", "cmake --preset release -DBALLAST_NCCL_INCLUDE",
     "not: needs NVIDIA's nccl.h, which no free package has"),
    ("docs/numerics.md", "ctest --test-dir", ".ci/run"),
    ("docs/nvme.md", "./scripts/quickstart.sh --tier nvme",
     "not: takes a minute; tests/e2e/test_nvme.py trains with such budgets"),
    ("docs/operations.md", "cmake --install", WALKS),
    ("docs/operations.md", "export BALLAST_ENDPOINTS=127.0.0.1", WALKS),
    ("docs/operations.md", "systemctl kill", WALKS),
    ("docs/operations.md", "kubectl apply", WALKS),
    ("docs/operations.md", "kubectl -n ballast delete", WALKS),
    ("docs/operations.md", "export BALLAST_ENDPOINTS=10.0.0.11", WALKS),
    ("docs/operations.md", "BALLAST_JOB=gpt", WALKS),
    ("docs/operations.md", "ballastctl health", WALKS),
    ("docs/operations.md", "systemctl show", WALKS),
    ("docs/quotas.md", "# security.quotas_file",
     "not: an example; tests/server/quota reads such files"),
    ("docs/reference/ds-config.md", "python -m ballast.ds_config",
     "tests/python/ds_config/test_ds_check.py"),
    ("docs/security.md", "security:",
     "not: paths of a host; tests/e2e/test_handshakes.py gives servers such files"),
    ("docs/security.md", "export BALLAST_TLS_CA",
     "not: paths of a host; tests/python/test_security.py sets these variables"),
    ("docs/simulator.md", "build/release/bin/ballast_sim",
     "not: runs by hand; tests/sim/CMakeLists.txt has shorter ones with the same options"),
)


def begins_of(text):
    """Returns the first line of each block of a page that the table is about."""
    return [body.split("\n", 1)[0] for body in BLOCK.findall(text)]


def rows_of(page, begin):
    return [row for row in TABLE if row[0] == page and (row[1] == "*" or begin.startswith(row[1]))]


class Blocks(unittest.TestCase):
    """The table and the pages."""

    def setUp(self):
        folders = ("docs", "deploy", "client/python", "bench", "examples")
        pages = [p for folder in folders for p in (ROOT / folder).rglob("*.md")]
        self.found = [
            (str(page.relative_to(ROOT)), begin)
            for page in sorted([*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
            for begin in begins_of(page.read_text(encoding="utf-8"))
        ]

    def test_every_block_has_one_row(self):
        self.assertGreater(len(self.found), 40)
        for page, begin in self.found:
            self.assertEqual(len(rows_of(page, begin)), 1, (page, begin))

    def test_every_row_has_its_block(self):
        used = {id(row) for page, begin in self.found for row in rows_of(page, begin)}
        self.assertEqual([row[:2] for row in TABLE if id(row) not in used], [])

    def test_what_runs_a_block_exists(self):
        for page, begin, runs in TABLE:
            words = re.findall(r"(?:tests|\.ci)/[\w/.]*\w", runs)
            self.assertTrue(words or runs.startswith("not: "), (page, begin))
            for path in words:
                self.assertTrue((ROOT / path).exists(), path)

    def test_a_page_that_a_test_follows_is_named_in_it(self):
        for test, page in ((MIGRATING, "migrating-from-zero-offload.md"),
                           ("tests/deploy/walk.py", "operations.md")):
            self.assertIn(page, (ROOT / test).read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
