"""A stand-in for ssh: runs the command here, with the environment that a login gives.

`ssh [options] -- HOST COMMAND`. As with ssh, a signal to it cuts the connection and does not reach
the command, whose standard input then ends. A host "dead-..." cannot be reached. FAKE_SSH_TRACE
names a file that gets a line per call: host and options. FAKE_SSH_HOST is set for the command.
"""

import os
import subprocess
import sys


def main():
    cut = sys.argv.index("--")
    host, command = sys.argv[cut + 1 :]
    with open(os.environ["FAKE_SSH_TRACE"], "a") as f:
        f.write(f"{host} {' '.join(sys.argv[1:cut])}\n")
    if host.startswith("dead-"):
        print(f"ssh: connect to host {host} port 22: No route to host", file=sys.stderr)
        return 255
    kept = ("PATH", "HOME", "PYTHONPATH", "TMPDIR")
    env = {k: os.environ[k] for k in kept if k in os.environ}
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        env={**env, "FAKE_SSH_HOST": host},
        start_new_session=True,
    )
    if os.fork() == 0:  # the half that carries the input
        while data := os.read(0, 65536):
            os.write(child.stdin.fileno(), data)
        os._exit(0)
    child.stdin.close()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
