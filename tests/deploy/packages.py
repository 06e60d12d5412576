"""The packages of scripts/package.sh, each built once per run of pytest, and roots to try them in.

Comes from: build/release. Goes to: test_packages_*.py. Several workers share one worker's packages.
A missing tool is a failure; scripts/setup.sh brings all of them.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.tools import REPO

# A build of a package, or of a root out of Debian's archive, that takes this long hangs.
_HANG_S = 500.0
KIT_HANG_S = 1500.0
# Of the machine that builds; its archive has the other ones, too.
OWN_SUITE = "bookworm"
VERSION = next(line.split('"')[1] for line in
               (REPO / "client/python/ballast/version.py").read_text().splitlines()
               if line.startswith("__version__"))


def program(name: str) -> Path:
    """The path of a tool, in .venv or on PATH."""
    path = Path(sys.executable).parent / name
    found = path if path.is_file() else shutil.which(name)
    assert found, f"no {name}; scripts/setup.sh installs it"
    return Path(found)


def run(*command: str | Path, within_s: float = _HANG_S,
        **options) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, which has to be a good one."""
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=False,
                          timeout=within_s, **options)
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{said}"
    return done


class Packages:
    """The built packages, in a folder of the whole run of pytest.

    Each method makes its answer unless it exists, and holds a lock meanwhile: workers of pytest
    share the folder. Returned paths are for reading, except for `root()`.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def wheels(self) -> Path:
        """The folder with the wheels of the Python client."""
        def make(folder: Path) -> None:
            # It compiles modules, as the kit does.
            build("wheel", KIT_HANG_S)(folder)

        return self._once("wheel", make)

    def deb(self) -> Path:
        """The package of the servers."""
        return next(self._once("deb", build("deb")).glob("*.deb"))

    def image(self) -> Path:
        """The folder with the OCI layout and the list of the image's parts."""
        return self._once("image", build("image"))

    def kits(self) -> Path:
        """The folder with kit.tar.gz and bundle.tar.gz of scripts/gpu_kit.sh, and both unpacked."""
        def make(folder: Path) -> None:
            folder.mkdir()
            for name, flags in (("kit", ()), ("bundle", ("--bundle",))):
                archive = folder / f"{name}.tar.gz"
                # It compiles the modules for the stable ABI, which a plain build leaves out.
                run(REPO / "scripts/gpu_kit.sh", "--out", archive, *flags, within_s=KIT_HANG_S)
                run("tar", "-xf", archive, "-C", folder)

        return self._once("kits", make)

    def root(self, name: str, variant: str, *packages: str, suite: str = OWN_SUITE) -> Path:
        """The root directory of a Debian as mmdebstrap makes it."""
        def make(folder: Path) -> None:
            source = Path("/etc/apt/sources.list.d/debian.sources")
            source = source if source.is_file() else Path("/etc/apt/sources.list")
            if suite != OWN_SUITE:
                source = _of_another(suite, source, folder.with_name(f"{name}-{source.name}"))
            run(program("mmdebstrap"), "--quiet", f"--variant={variant}",
                f"--include={','.join(packages)}", "--dpkgopt=force-unsafe-io",
                '--aptopt=Acquire::Retries "3"', suite, folder, source)

        return self._once(name, make)

    def venv(self, root: Path, there: list[str], python: str) -> Path:
        """A venv with nothing but pip and one of the wheels, made as /venv. `there` begins a
        command in `root`, which has `python` and Debian's python3-pip-whl."""
        def make(folder: Path) -> None:
            folder.mkdir()
            at = [*there, "--bind", folder, "/venv", "--ro-bind", self.wheels(), "/wheels"]
            (pip,) = (root / "usr/share/python-wheels").glob("pip-*.whl")
            pips = f"/{pip.parent.relative_to(root)}"
            run(*at, python, "-m", "venv", "--without-pip", "/venv")
            run(*at, "/venv/bin/python", f"{pips}/{pip.name}/pip", "install", "--no-index",
                f"--find-links={pips}", "--find-links=/wheels", "pip", "ballast")

        return self._once(f"venv-{python}", make)

    def _once(self, name: str, make: Callable[[Path], None]) -> Path:
        folder, part = self._folder / name, self._folder / f"{name}.part"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                shutil.rmtree(part, ignore_errors=True)
                make(part)
                part.rename(folder)
        return folder


def _of_another(suite: str, source: Path, copy: Path) -> Path:
    """A copy of this machine's source for its own release, which names another one's archive."""
    own = re.compile(rf"\b{OWN_SUITE}(?!-)\b")
    parts = re.split(r"\n\n+" if source.suffix == ".sources" else r"\n", source.read_text())
    # Updates and security of that release have no part here.
    ours = [re.sub(r"(?m)^Suites:.*", f"Suites: {suite}", own.sub(suite, part)) for part in parts
            if own.search(part) and not part.startswith("#")]
    copy.write_text("\n\n".join(ours) + "\n")
    return copy


def build(kind: str, within_s: float = _HANG_S) -> Callable[[Path], None]:
    """build(kind)(folder) builds that package into the folder."""
    # Packing a .deb as tightly as for users takes most of the time.
    env = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "gzip"}

    def make(folder: Path) -> None:
        run(REPO / "scripts/package.sh", "--out", folder, kind, within_s=within_s, env=env)

    return make


def inside(root: Path, *arguments: str | Path) -> list[str]:
    """The beginning of a command that runs as root in a root directory, without any network.

    `arguments` are further ones of bwrap, which have to share the network where necessary.
    """
    return [str(program("bwrap")), "--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc",
            "--unshare-all", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--die-with-parent",
            "--clearenv", "--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin",
            *map(str, arguments)]


def installed(*wanted: str) -> dict[str, Path]:
    """Name -> path of the installed files of the distributions and of all their dependencies."""
    found: dict[str, Path] = {}
    seen: set[str] = set()
    new = list(wanted)
    while new:
        name = re.match(r"[\w.-]+", new.pop())[0]
        try:
            part = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            assert name not in wanted, f"no {name}; scripts/setup.sh installs it"
            continue  # Only another system or another Python needs it.
        if part.metadata["Name"] in seen:
            continue
        seen.add(part.metadata["Name"])
        new += [text for text in part.requires or () if "extra ==" not in text]
        tops = {file.parts[0] for file in part.files or ()} - {"..", "__pycache__"}
        found |= {top: Path(part.locate_file(top)) for top in tops}
    return found
