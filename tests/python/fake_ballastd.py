"""A stand-in for ballastd: its flags and files, no service. FAKE_BALLASTD says how it misbehaves.

FAKE_BALLASTD is a comma-separated list: "fail" (exit 3 at start), "die" (exit 5 once the peers file
exists), "die-once" (the same, but not again on the same data directory), "misused" (exit 2 then),
"lost" (exit 4 then), "stubborn" (ignore SIGTERM), "mute" (never ready). FAKE_BALLASTD_TRACE names a
file that gets one line per event.
"""

import argparse
import json
import os
import signal
import socket
import sys
import time

HABITS = os.environ.get("FAKE_BALLASTD", "").split(",")


def trace(text):
    if "FAKE_BALLASTD_TRACE" in os.environ:
        with open(os.environ["FAKE_BALLASTD_TRACE"], "a") as f:
            f.write(text + "\n")


def parse():
    parser = argparse.ArgumentParser()
    for flag in ("listen", "id", "peers-file", "ready-file", "data-dir"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--dram-budget", default="-")
    parser.add_argument("--set", default="storage.memory_budget=-")
    return parser.parse_args()


def obey_sigterm(flags):
    def on_term(*_):
        trace(f"term {flags.id}")
        if "stubborn" not in HABITS:
            sys.exit(0)

    signal.signal(signal.SIGTERM, on_term)


def await_peers(flags, address):
    """Says that it is ready, unless it is mute, and waits for the others."""
    if "mute" not in HABITS:
        ready = {"id": int(flags.id), "address": address, "admin": address, "pid": os.getpid()}
        with open(flags.ready_file + ".tmp", "w") as f:
            json.dump(ready, f)
        os.replace(flags.ready_file + ".tmp", flags.ready_file)
    while not os.path.exists(flags.peers_file):
        time.sleep(0.01)
    with open(flags.peers_file) as f:
        peers = json.load(f)["peers"]
    assert {"id": int(flags.id), "address": address} in peers
    trace(f"peers {flags.id} {len(peers)} {address}")


def misbehave(flags):
    """Ends the process in the way of its habits, if any of them does."""
    died = os.path.join(flags.data_dir, "died")
    if "die" in HABITS or ("die-once" in HABITS and not os.path.exists(died)):
        open(died, "w").close()
        print("out of luck", file=sys.stderr)
        sys.exit(5)
    if "misused" in HABITS:
        sys.exit(2)
    if "lost" in HABITS:
        print("its state is gone", file=sys.stderr)
        sys.exit(4)


def main():
    flags = parse()
    if "fail" in HABITS:
        print("line one\nstorage.data_dir: no such disk", file=sys.stderr)
        sys.exit(3)
    obey_sigterm(flags)
    trace(f"start {flags.id} {os.getpid()} {flags.set.partition('=')[2]} {flags.dram_budget}")
    host, _, port = flags.listen.rpartition(":")
    listener = socket.create_server((host, int(port)))
    await_peers(flags, f"{host}:{listener.getsockname()[1]}")
    misbehave(flags)
    while True:
        time.sleep(0.05)


main()
