#!/usr/bin/env python3
"""Runs ballastd and ballastctl the way operators do: flags, files, signals and exit codes.

Comes from: ctest, which passes the paths of both programs. Goes to: child processes only.
Thread safety: one process, nothing shared.
"""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

DEADLINE_S = 60
REPO = pathlib.Path(__file__).resolve().parents[3]
BALLASTD, BALLASTCTL = "", ""


def clean_environment(**extra):
    """Returns the environment without settings of ours, proxies left out, plus `extra`."""
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith("BALLAST_") and not k.lower().endswith("_proxy")}
    scale = os.environ.get("BALLAST_TIME_SCALE")
    if scale:
        environment["BALLAST_TIME_SCALE"] = scale
    return environment | extra


def run(*arguments, **environment):
    """Runs a program to its end; returns (exit code, stdout, stderr)."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S,
                          env=clean_environment(**environment))
    return done.returncode, done.stdout, done.stderr


class ServerProcess:
    """A ballastd that ends with the test."""

    def __init__(self, folder, *arguments, mask=-1, **environment):
        self.ready_file = pathlib.Path(folder) / f"ready-{time.monotonic_ns()}.json"
        self.process = subprocess.Popen(
            [BALLASTD, "--ready-file", str(self.ready_file), *arguments], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(**environment),
            umask=mask)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ready(self):
        """Waits for the ready file and returns its content."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self.process.poll() is None:
            if self.ready_file.exists():
                return json.loads(self.ready_file.read_text())
            time.sleep(0.01)
        raise AssertionError(f"not ready: {self.process.communicate()}")

    def end(self, number=signal.SIGTERM):
        """Sends a signal and returns (exit code, stdout, stderr)."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


def get(address, page):
    """Returns (HTTP status, text) of a page of the admin port."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}{page}", timeout=DEADLINE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class FlagsTest(unittest.TestCase):
    def test_a_good_configuration_passes_the_check(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "good.yaml"
            path.write_text("storage:\n  dram_budget: 64MiB\n")
            code, out, err = run(BALLASTD, "--config", str(path), "--check-config")
            self.assertEqual((code, err), (0, ""))
            self.assertIn("valid", out)

    def test_a_bad_configuration_names_file_line_and_field(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bad.yaml"
            path.write_text("storage:\n  dram_bugdet: 64MiB\n")
            for arguments in (["--check-config"], []):  # A start ends as the check does.
                code, out, err = run(BALLASTD, f"--config={path}", *arguments)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(f"{path}:2:3", err)
                self.assertIn('did you mean "dram_budget"', err)

    def test_a_missing_file_is_an_error(self):
        code, _, err = run(BALLASTD, "--config", "no/such/file.yaml", "--check-config")
        self.assertEqual(code, 2)
        self.assertIn("no/such/file.yaml", err)

    def test_print_config_shows_values_and_where_they_come_from(self):
        code, out, _ = run(BALLASTD, "--print-config", "--dram-budget", "96MiB", "--id=3",
                           "--set", "timing.lease=20s", BALLAST_ROUNDS_WORKER_THREADS="2")
        self.assertEqual(code, 0)
        for field, value, origin in (("dram_budget", "96MiB", "--dram-budget"),
                                     ("id", "3", "--id"),
                                     ("lease", "20s", "--set timing.lease"),
                                     ("worker_threads", "2", "BALLAST_ROUNDS_WORKER_THREADS"),
                                     ("max_jobs", "64", "default")):
            self.assertRegex(out, rf"(?m)^ *{field}: {value} +# {origin}$")

    def test_what_print_config_writes_can_be_read_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "printed.yaml"
            path.write_text(run(BALLASTD, "--print-config", "--id", "3")[1])
            code, out, err = run(BALLASTD, "--config", str(path), "--print-config")
            self.assertEqual(code, 0, err)
            self.assertRegex(out, r"(?m)^ *id: 3 ")

    def test_wrong_usage_exits_with_2(self):
        for arguments, text in (
                (["--chekc-config"], "unknown flag --chekc-config (did you mean --check-config?)"),
                (["--lisen=127.0.0.1:0"], "unknown flag --lisen (did you mean --listen?)"),
                (["--datadir", "d"], "unknown flag --datadir (did you mean --data-dir?)"),
                (["--ready", "f"], "unknown flag --ready (did you mean --ready-file?)"),
                (["--job-ttl", "1m"], "(did you mean --set timing.job_ttl=VALUE?)"),
                (["--timing.lease=9s"], "(did you mean --set timing.lease=VALUE?)"),
                (["--xyzzy"], "unknown flag --xyzzy; ballastd --help lists them"),
                (["--config"], "needs a value"),
                (["--config="], "--config is empty"),
                (["--dev=yes"], "--dev takes no value"),
                (["--set", "lease"], "FIELD=VALUE"),
                (["stray"], "unknown flag stray"),
                (["--dev", "--peers-file", "f"], "leave out --peers-file")):
            code, out, err = run(BALLASTD, *arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertIn(text, err)

    def test_an_error_names_the_flag_as_it_was_typed(self):
        for flag in ("--listen", "--admin"):
            code, out, err = run(BALLASTD, f"{flag}=foo", "--check-config")
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, rf'^ballastd: {flag}: \w+\.address: .*got "foo"')
        _, _, err = run(BALLASTD, "--set", "listen.adress=foo", "--check-config")
        self.assertIn('ballastd: --set listen.adress: unknown field', err)

    def test_variables_of_clients_and_programs_pass_without_a_word(self):
        sources = [*(REPO / "client" / "python").rglob("*.py"),
                   REPO / "tools" / "ctl" / "command_line.cc",
                   REPO / "tools" / "commands" / "ds_check.cc", REPO / "bench" / "kernel_bench"]
        names = set()
        for path in sources:
            names.update(re.findall(r"\bBALLAST_[A-Z_]*[A-Z]\b", path.read_text()))
        # A number, macros, and settings of the server itself.
        names -= {"BALLAST_TIME_SCALE", "BALLAST_VERSION", "BALLAST_RETURN_IF_ERROR",
                  "BALLAST_STORAGE_MEMORY_BUDGET", "BALLAST_LISTEN_INSECURE_NETWORK",
                  "BALLAST_LIMITS_MAX_JOBS"}
        self.assertLessEqual({"BALLAST_ENDPOINTS", "BALLAST_SLOT", "BALLAST_ADMIN"}, names)
        code, out, err = run(BALLASTD, "--print-config", **dict.fromkeys(names, "x"))
        self.assertEqual((code, err), (0, ""))
        self.assertNotIn("unknown variable", out)

    def test_a_misspelt_variable_is_an_error(self):
        code, _, err = run(BALLASTD, "--check-config", BALLAST_LISTEN_ADRESS="127.0.0.1:1",
                           BALLAST_SERVICE_HOST="10.0.0.1")
        self.assertEqual(code, 2)
        self.assertIn('did you mean "BALLAST_LISTEN_ADDRESS"', err)
        self.assertNotIn("SERVICE_HOST", err)

    def test_a_bad_time_scale_is_named(self):
        code, _, err = run(BALLASTD, "--check-config", BALLAST_TIME_SCALE="fast")
        self.assertEqual(code, 2)
        self.assertIn("BALLAST_TIME_SCALE", err)

    def test_help_and_version(self):
        code, out, _ = run(BALLASTD, "--help")
        self.assertEqual(code, 0)
        self.assertIn("--ready-file", out)
        code, out, _ = run(BALLASTD, "--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^ballastd \d+\.\d+\.\d+$")

    def test_failpoints_come_in_pairs(self):
        code, out, _ = run(BALLASTD, "--list-failpoints")
        self.assertEqual(code, 0)
        names = out.split()
        self.assertIn("log.before_sync", names)
        # net.accept refuses the connection itself, and has no moment before or after.
        for name in set(names) - {"net.accept"}:
            self.assertIn("before" if ".after_" in name else "after", {
                n.split(".")[1].split("_")[0] for n in names
                if n.split(".")[0] == name.split(".")[0]
                and n.partition("_")[2] == name.partition("_")[2]})


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_the_ready_file_tells_the_bound_addresses_and_sigterm_ends_it(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with ServerProcess(self.folder) as server:
                ready = server.ready()
                self.assertEqual(ready["id"], 0)
                self.assertEqual(ready["pid"], server.process.pid)
                self.assertRegex(ready["address"], r"^127\.0\.0\.1:[1-9]\d*$")
                self.assertEqual(get(ready["admin"], "/readyz")[0], 200)
                code, _, err = server.end(number)
                self.assertEqual(code, 0, err)
        self.assertEqual([p.name for p in pathlib.Path(self.folder).iterdir()
                          if not p.name.endswith(".json")], [])

    def test_under_nohup_a_hangup_does_not_end_it(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            server = ServerProcess(self.folder)
        finally:
            signal.signal(signal.SIGHUP, before)
        with server:
            ready = server.ready()
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(get(ready["admin"], "/readyz")[0], 200)
            code, _, err = server.end()
            self.assertEqual(code, 0)
            self.assertIn("signal Terminated", err)
            self.assertNotIn("signal Hangup", err)

    def test_a_hangup_with_a_file_reads_it_again(self):
        file = pathlib.Path(self.folder) / "server.yaml"
        file.write_text("log: {format: text}\n")
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # also under nohup
        try:
            server = ServerProcess(self.folder, "--config", str(file))
        finally:
            signal.signal(signal.SIGHUP, before)
        with server:
            ready = server.ready()
            heard = []

            def reload(text, words):
                file.write_text(text)
                server.process.send_signal(signal.SIGHUP)
                while not heard or words not in heard[-1]:
                    heard.append(server.process.stderr.readline())
                    self.assertNotEqual(heard[-1], "", heard)
                self.assertEqual(get(ready["admin"], "/readyz")[0], 200)

            reload("log: {level: loud}\n", "log.level: expected one of info, warn, error")
            self.assertIn("server.yaml:1:14", heard[-1])
            self.assertIn("the configuration stays as it was", heard[-1])
            reload("log: {format: json}\n", "certificates and log settings are those of")
            self.assertEqual(json.loads(heard[-1])["severity"], "INFO")
            code, _, _ = server.end()
            self.assertEqual(code, 0)

    def test_a_ready_file_that_cannot_be_written_is_refused_at_the_start(self):
        folder = pathlib.Path(self.folder)
        for path, why in ((folder / "missing" / "ready.json", "No such file"),
                          (folder, "Is a directory")):
            data = folder / "data"
            code, out, err = run(BALLASTD, "--ready-file", str(path), "--data-dir", str(data))
            self.assertEqual((code, out), (1, ""))
            self.assertIn(f"ballastd: --ready-file: cannot write {path}: {why}", err)
            self.assertNotIn("listens", err)
            self.assertEqual(list(folder.iterdir()), [])

    def test_dev_uses_temporary_data_and_says_how_to_reach_it(self):
        temporary = pathlib.Path(self.folder) / "tmp"
        temporary.mkdir()
        with ServerProcess(self.folder, "--dev", TMPDIR=str(temporary)) as server:
            address = server.ready()["address"]
            self.assertEqual(len(list(temporary.iterdir())), 1)
            code, out, _ = server.end()
        self.assertEqual(code, 0)
        self.assertEqual(out, f"export BALLAST_ENDPOINTS={address}\n")
        self.assertEqual(list(temporary.iterdir()), [])

    def test_dev_removes_only_the_data_of_killed_servers(self):
        temporary = pathlib.Path(self.folder) / "tmp"
        temporary.mkdir()
        with ServerProcess(self.folder, "--dev", TMPDIR=str(temporary)) as killed:
            killed.ready()
            killed.end(signal.SIGKILL)
        (left,) = temporary.iterdir()
        with ServerProcess(self.folder, "--dev", TMPDIR=str(temporary)) as lives:
            lives.ready()
            (own,) = temporary.iterdir()
            self.assertNotEqual(own, left)
            with ServerProcess(self.folder, "--dev", TMPDIR=str(temporary)) as other:
                other.ready()
                self.assertEqual(other.end()[0], 0)
            self.assertEqual(list(temporary.iterdir()), [own])
            code, _, err = lives.end()
        self.assertEqual(code, 0)
        self.assertIn(f"removed {left}, left behind by a --dev server that was killed", err)

    def test_a_port_in_use_is_an_error(self):
        with ServerProcess(self.folder) as server:
            address = server.ready()["address"]
            code, _, err = run(BALLASTD, "--listen", address)
        self.assertEqual(code, 1)
        self.assertIn(address, err)

    def test_a_data_directory_belongs_to_one_server(self):
        data = pathlib.Path(self.folder) / "data"
        with ServerProcess(self.folder, "--data-dir", str(data)) as server:
            server.ready()
            pid = server.process.pid
            self.assertEqual((data / "lock").read_text(), f"{pid}\n")
            before = sorted(data.rglob("*"))
            code, out, err = run(BALLASTD, "--data-dir", str(data), "--id", "1")
            self.assertEqual((code, out), (1, ""))
            self.assertIn(f"storage.data_dir {data} is in use by process {pid};", err)
            # By another name, too.
            link = pathlib.Path(self.folder) / "link"
            link.symlink_to(data)
            code, _, err = run(BALLASTD, "--data-dir", str(link))
            self.assertEqual(code, 1)
            self.assertIn(f"in use by process {pid}", err)
            self.assertEqual(sorted(data.rglob("*")), before)
            code, _, err = server.end()
            self.assertEqual(code, 0, err)
        with ServerProcess(self.folder, "--data-dir", str(data)) as server:
            server.ready()
            server.end(signal.SIGKILL)
        with ServerProcess(self.folder, "--data-dir", str(data)) as server:
            self.assertEqual(server.ready()["pid"], server.process.pid)  # Nothing to clean up.

    def test_its_files_are_for_its_user_and_group_and_a_stricter_mask_stays(self):
        for mask, forbidden in ((0, 0o027), (0o077, 0o077)):
            data = pathlib.Path(self.folder) / f"data-{mask}"
            with ServerProcess(self.folder, "--data-dir", str(data), mask=mask) as server:
                server.ready()
                modes = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
                server.end()
            self.assertGreater(len(modes), 3)
            self.assertEqual({}, {p: oct(m) for p, m in modes.items() if m & forbidden})
            self.assertTrue(mask or all(m & 0o040 for m in modes.values()), modes)

    def test_a_data_directory_that_cannot_be_made_is_an_error(self):
        path = pathlib.Path(self.folder) / "file"
        path.write_text("")
        code, _, err = run(BALLASTD, "--data-dir", str(path / "data"))
        self.assertEqual(code, 1)
        self.assertIn(f"cannot create storage.data_dir {path}/data", err)

    def test_a_data_directory_that_must_exist_is_not_made(self):
        data = pathlib.Path(self.folder) / "data"
        known = "--set", "storage.must_exist=true", "--data-dir", str(data)

        def refused(why):
            code, _, err = run(BALLASTD, *known)
            self.assertEqual(code, 4, err)
            self.assertIn(f"storage.data_dir {data} has no records of a server ({why})", err)
            self.assertIn("storage.must_exist is set: check that the right directory is mounted",
                          err)

        refused("meta: No such file or directory")
        self.assertFalse(data.exists())
        data.mkdir()
        refused("meta: No such file or directory")
        self.assertEqual(list(data.iterdir()), [])
        (data / "meta").mkdir()
        refused("meta is empty")
        (data / "meta").rmdir()
        for arguments in (("--data-dir", str(data)), known):
            with ServerProcess(self.folder, *arguments) as server:
                server.ready()
                self.assertEqual(server.end()[0], 0)

    def test_in_a_log_of_json_the_last_words_are_json_too(self):
        file = pathlib.Path(self.folder) / "file"
        file.write_text("")
        code, out, err = run(BALLASTD, "--set", "log.format=json", "--data-dir", str(file))
        self.assertEqual((code, out), (1, ""), err)
        last = [json.loads(line) for line in err.splitlines()][-1]
        self.assertEqual((last["severity"], last["exit_code"]), ("ERROR", 1))
        self.assertIn(f"cannot create storage.data_dir {file}", str(last))

    def run_in_own_mounts(self, script, directory):
        """Of a shell that has ballastd as $0 and `directory`, on which it may mount, as $1."""
        done = run("unshare", "--mount", "sh", "-c", script, BALLASTD, str(directory))
        if "unshare" in done[2] or "mount:" in done[2]:
            self.skipTest(f"no mount namespace here: {done[2]}")
        return done

    def test_a_full_disk_is_named_with_what_is_free_and_what_is_needed(self):
        data = pathlib.Path(self.folder) / "full"
        data.mkdir()
        script = ("mount -t tmpfs -o size=4k none \"$1\" && head -c 4096 /dev/zero > \"$1/filler\" "
                  "&& exec \"$0\" --data-dir \"$1\"")
        code, _, err = self.run_in_own_mounts(script, data)
        self.assertEqual(code, 1)
        self.assertRegex(err, rf"cannot write \d+ bytes to {data}/lock: No space left on device")
        self.assertIn(f"storage.data_dir {data} has 0 bytes free, and ballastd needs 65536", err)

    def test_a_file_system_without_writes_is_an_error_of_the_disk(self):
        """Also where the directory is still to be made."""
        disk = pathlib.Path(self.folder) / "disk"
        disk.mkdir()
        script = ("mount -t tmpfs -o ro none \"$1\" && \"$0\" --data-dir \"$1\"; echo $?; "
                  "exec \"$0\" --data-dir \"$1/data\"")
        code, out, err = self.run_in_own_mounts(script, disk)
        self.assertEqual((code, out), (3, "3\n"))
        for data in (disk, disk / "data"):
            self.assertIn(f"the file system of storage.data_dir {data} is read-only: look at dmesg "
                          "for the reason, check it with fsck, and mount it again", err)

    def test_an_unknown_instruction_set_is_an_error(self):
        code, _, err = run(BALLASTD, BALLAST_ISA="sse9")
        self.assertEqual(code, 2)
        self.assertIn("sse9", err)

    def test_the_log_warns_of_a_variable_that_sets_nothing(self):
        with ServerProcess(self.folder, BALLAST_HOME="/opt/ballast") as server:
            server.ready()
            code, _, err = server.end()
        self.assertEqual(code, 0)
        self.assertRegex(err, r"(?m) WARN .*BALLAST_HOME: unknown variable, ignored$")

    def test_servers_wait_for_their_peers_file(self):
        peers_file = pathlib.Path(self.folder) / "peers.json"
        with ServerProcess(self.folder, "--id", "0", "--peers-file", str(peers_file)) as zero, \
                ServerProcess(self.folder, "--id", "1", "--peers-file", str(peers_file)) as one:
            ready = [zero.ready(), one.ready()]
            self.assertEqual([r["id"] for r in ready], [0, 1])
            status, text = get(ready[0]["admin"], "/readyz")
            self.assertEqual(status, 503)
            self.assertIn("peers file", text)
            peers = [{"id": r["id"], "address": r["address"]} for r in ready]
            peers_file.with_suffix(".tmp").write_text(json.dumps({"peers": peers}))
            peers_file.with_suffix(".tmp").rename(peers_file)
            end = time.monotonic() + DEADLINE_S
            while time.monotonic() < end:
                servers = json.loads(run(
                    BALLASTCTL, "status", "-o", "json", "--endpoint", ready[0]["address"],
                    "--endpoint", ready[1]["address"])[1])["servers"]
                if all(s["serving"] and s["peers"][0]["reachable"] for s in servers):
                    break
            self.assertEqual([s["id"] for s in servers], [0, 1])
            self.assertTrue(all(s["peers"][0]["reachable"] for s in servers), servers)
            self.assertEqual(one.end()[0], 0)
            self.assertEqual(zero.end()[0], 0)

    def test_a_bad_peers_file_ends_the_server_with_an_error(self):
        peers_file = pathlib.Path(self.folder) / "peers.json"
        peers_file.write_text('{"peers": [{"id": 5, "address": "127.0.0.1:1"}]}')
        with ServerProcess(self.folder, "--id", "0", "--peers-file", str(peers_file)) as server:
            _, err = server.process.communicate(timeout=DEADLINE_S)
            self.assertEqual(server.process.returncode, 1)
            self.assertIn("peers", err)

    def test_a_server_that_strangers_reach_says_so_on_its_status_page(self):
        for address, said in (("127.0.0.1:0", False), ("0.0.0.0:0", True)):
            with ServerProcess(self.folder, "--listen", address, "--admin=127.0.0.1:0",
                               "--set=listen.insecure_network=true",
                               "--set=listen.advertise_address=127.0.0.1:7000") as server:
                admin = server.ready()["admin"]
                text = get(admin, "/statusz?format=text")[1]
                self.assertEqual("listen.insecure_network: every process" in text, said, text)
                json.loads(get(admin, "/statusz?format=json")[1])

    def test_the_admin_port_shows_metrics_status_and_configuration(self):
        with ServerProcess(self.folder, "--dram-budget", "96MiB",
                           "--set=storage.memory_budget=128MiB") as server:
            ready = server.ready()
            self.assertIn("ballast_build_info", get(ready["admin"], "/metrics")[1])
            status = json.loads(get(ready["admin"], "/statusz?format=json")[1])["servers"][0]
            self.assertEqual(status["address"], ready["address"])
            self.assertEqual(status["memory_budget_bytes"], 128 << 20)
            self.assertIn("no jobs", get(ready["admin"], "/statusz")[1])
            self.assertIn("dram_budget: 96MiB", get(ready["admin"], "/configz")[1])
            json.loads(get(ready["admin"], "/configz?format=json")[1])


class LimitedStartTest(unittest.TestCase):
    def test_no_file_is_standard_error_and_sigxfsz_is_ignored(self):
        """As daemons and batch systems start programs: descriptors closed, `ulimit -f` set."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            for number in (0, 1, 2):
                os.close(number)
        with tempfile.TemporaryDirectory() as folder:
            ready_file = pathlib.Path(folder) / "ready.json"
            arguments = [BALLASTD, "--listen=127.0.0.1:0", f"--data-dir={folder}/data",
                         f"--ready-file={ready_file}"]
            process = subprocess.Popen(arguments, env=clean_environment(), preexec_fn=limit)
            try:
                end = time.monotonic() + DEADLINE_S
                while not ready_file.exists() and process.poll() is None:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)
                proc = pathlib.Path(f"/proc/{process.pid}")
                for number in (0, 1, 2):
                    self.assertEqual(os.readlink(proc / "fd" / str(number)), "/dev/null")
                ignored = re.search(r"SigIgn:\s*(\w+)", (proc / "status").read_text())[1]
                self.assertTrue(int(ignored, 16) >> (signal.SIGXFSZ - 1) & 1)
            finally:
                process.kill()
                process.wait()


class CtlTest(unittest.TestCase):
    def test_status_shows_the_servers_of_the_environment(self):
        with tempfile.TemporaryDirectory() as folder, ServerProcess(folder) as server:
            address = server.ready()["address"]
            code, out, err = run(BALLASTCTL, "status", BALLAST_ENDPOINTS=address)
            self.assertEqual((code, err), (0, ""))
            self.assertIn(address, out)
            code, out, _ = run(BALLASTCTL, "status", "--endpoint", address, "-o", "json")
            self.assertEqual(code, 0)
            self.assertEqual(json.loads(out)["servers"][0]["address"], address)

    def test_an_unreachable_server_exits_with_3(self):
        code, out, err = run(BALLASTCTL, "status", "--endpoint", "127.0.0.1:1")
        self.assertEqual((code, out), (3, ""))
        self.assertEqual(err, "ballastctl: cannot reach 127.0.0.1:1: connection refused; "
                              "is ballastd running there? (--endpoint)\n")
        address = "a" * 64 + ":7000"  # longer than a label may be: refused without asking the DNS
        code, _, err = run(BALLASTCTL, "status", BALLAST_ENDPOINTS=address)
        self.assertEqual(code, 3)
        self.assertEqual(err, f"ballastctl: cannot reach {address}: there is no host of that name; "
                              "is ballastd running there? (BALLAST_ENDPOINTS)\n")

    def test_a_port_that_does_not_speak_grpc_is_told_apart(self):
        with tempfile.TemporaryDirectory() as folder, ServerProcess(folder) as server:
            admin = server.ready()["admin"]
            code, _, err = run(BALLASTCTL, "status", "--endpoint", admin)
        self.assertEqual(code, 3)
        self.assertIn(f"cannot reach {admin}: it does not speak gRPC", err)

    def test_endpoints_are_separated_as_trainers_separate_them(self):
        code, _, err = run(BALLASTCTL, "status", BALLAST_ENDPOINTS="127.0.0.1:1, [::1]:1\n")
        self.assertEqual(code, 3)
        self.assertRegex(err, r"cannot reach 127\.0\.0\.1:1: .*\n.*cannot reach \[::1\]:1: ")

    def test_its_version_is_that_of_the_server(self):
        code, out, err = run(BALLASTCTL, "--version")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out, run(BALLASTD, "--version")[1].replace("ballastd", "ballastctl"))

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["explode"], ["status"], ["status", "--endpont", "x"],
                          ["status", "--endpoint"], ["status", "-o", "xml", "--endpoint", "x:1"],
                          ["status", "--endpoint", "foo"], ["status", "--endpoint", "foo:0"]):
            code, out, err = run(BALLASTCTL, *arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertTrue(err)

    def test_a_bad_endpoint_is_named_with_its_source(self):
        _, _, err = run(BALLASTCTL, "status", BALLAST_ENDPOINTS="foo")
        self.assertRegex(err, r'^ballastctl: BALLAST_ENDPOINTS: expected host:port .* "foo"')


if __name__ == "__main__":
    BALLASTCTL, BALLASTD = sys.argv.pop(), sys.argv.pop()
    unittest.main()
