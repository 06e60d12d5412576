"""deploy/container: what can be said of the Containerfile without building it.

No container engine runs where the tests run. So the parts of the Containerfile are read, compared
with their counterparts, and its commands run in this tree where they can. The image that build.sh
makes without an engine has tests of its own: test_packages_image.py.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import ballast
from deploy.manifests import SERVERS, Manifests, documents
from deploy.tools import DEPLOY, REPO, kubectls, run

CONTAINERFILE = DEPLOY / "container" / "Containerfile"
USER = 65532


def stages() -> tuple[list[list[str]], list[list[str]]]:
    """The instructions of the build stage and of the image, in words."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line.strip()]
    second = [i for i, words in enumerate(lines) if words[0] == "FROM"][1]
    return lines[:second], lines[second:]


def values(stage: list[list[str]], instruction: str) -> list[list[str]]:
    return [words[1:] for words in stage if words[0] == instruction]


def installed(stage: list[list[str]]) -> list[str]:
    """The Debian packages of a stage."""
    words = next(w for w in values(stage, "RUN") if w[:2] == ["apt-get", "update"])
    names = words[words.index("install") + 1:]
    return [word for word in names[:names.index("&&")] if not word.startswith("-")]


def context(folder: Path) -> None:
    """Copies to `folder` what Containerfile.dockerignore lets the builder have."""
    text = CONTAINERFILE.with_suffix(".dockerignore").read_text()
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert lines[0] == "*"
    kept = [line.removeprefix("!") for line in lines[1:] if line.startswith("!")]
    assert len(kept) == len(lines) - 1
    listed = run("git", "ls-files", "-co", "--exclude-standard", "--", *kept).stdout.splitlines()
    for name in kept:
        assert any(f.startswith(name) for f in listed), f"{name} is not there"
    for name in listed:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(REPO / name)


def closure(packages: list[str]) -> set[str]:
    """The packages and all that they depend on."""
    found: set[str] = set()
    new = set(packages)
    while new:
        done = run("dpkg-query", "-W", "-f", "${Depends}, ${Pre-Depends}\n", *sorted(new))
        assert done.returncode == 0, done.stderr
        found |= new
        new = set(re.findall(r"(?:^|,) *([a-z0-9][a-z0-9.+-]+)", done.stdout, re.M)) - found
    return found


def loaded(binary: Path) -> dict[str, Path]:
    """Name -> file of all shared libraries that a program loads."""
    said = run("ldd", binary).stdout
    assert "not found" not in said
    return {name: Path(path).resolve()
            for name, path in re.findall(r"^\s+(\S+) => (/\S+)", said, re.M)}


def owners(files: Iterable[Path]) -> set[str]:
    """The packages that the files come from, which may list them with or without /usr."""
    paths = [path for file in files for path in (str(file), str(file).removeprefix("/usr"))]
    found = re.findall(r"^([^:\s]+):\S* (\S+)$", run("dpkg-query", "-S", *paths).stdout, re.M)
    assert {Path(path).resolve() for _, path in found} == set(files)
    return {package for package, _ in found}


def needed(binary: Path) -> set[str]:
    """The packages of the libraries that a program itself names."""
    names = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", binary).stdout)
    return owners([path for name, path in loaded(binary).items() if name in names])


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> list[Path]:
    """The image's programs: the install command of the Containerfile, run on this build."""
    build, image = stages()
    command = next(w for w in values(build, "RUN") if w[:2] == ["cmake", "--install"])
    folder = tmp_path_factory.mktemp("image")
    at = command.index("--prefix") + 1
    prefix, command[at] = command[at], str(folder)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    copied = values(image, "COPY")
    assert copied == [["--from=build", f"{prefix}/bin/", "/usr/bin/"]]
    return sorted((folder / "bin").iterdir())


def test_a_linter_finds_no_fault():
    linter = Path(sys.executable).parent / "hadolint"
    assert linter.is_file(), f"no {linter}; scripts/setup.sh installs it"
    done = run(linter, "--failure-threshold", "warning", CONTAINERFILE)
    assert done.returncode == 0, done.stdout


def test_the_build_installs_packages_that_setup_installs():
    listed = re.search(r"readonly PACKAGES=\(([^)]*)\)", (REPO / "scripts/setup.sh").read_text())
    assert set(installed(stages()[0])) <= set(listed[1].split())


def test_the_context_is_enough_to_configure(tmp_path):
    """And holds nothing hidden, so no history and no secret of the folder."""
    context(tmp_path)
    assert not [p for p in tmp_path.rglob(".*")]
    command = next(w for w in values(stages()[0], "RUN") if w[:2] == ["cmake", "--preset"])
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_image_has_both_programs(programs):
    assert [path.name for path in programs] == ["ballastctl", "ballastd"]
    assert run(programs[1], "--version", env={}).stdout.startswith("ballastd ")


def test_the_image_has_all_libraries_and_no_more(programs):
    packages = installed(stages()[1])
    have = closure(packages)
    for program in programs:
        assert owners(loaded(program).values()) <= have
    assert set(packages) <= set().union(*map(needed, programs))


def test_a_library_that_lacks_is_found(programs):
    fewer = [name for name in installed(stages()[1]) if not name.startswith("librocksdb")]
    assert "librocksdb7.8" in owners(loaded(programs[1]).values()) - closure(fewer)


def test_the_image_runs_as_user_nobody():
    _, image = stages()
    assert values(image, "USER") == [[f"{USER}:{USER}"]]
    words = [word for line in values(image, "RUN") for word in line]
    assert " ".join(words).endswith(f"install -d -o {USER} -g {USER} /data")


def test_the_image_has_no_setting_of_its_own():
    """No variable, no file from elsewhere: configuration and secrets come when it runs."""
    for stage in stages():
        assert not values(stage, "ENV") and not values(stage, "ADD")
        assert {arg[0].partition("=")[0] for arg in values(stage, "ARG")} <= {"VERSION", "REVISION"}


def test_the_version_is_that_of_the_server(programs):
    version = run(programs[1], "--version", env={}).stdout.split()[1]
    assert [f"VERSION={version}"] in values(stages()[1], "ARG")
    assert f"-t ballast:{version} " in CONTAINERFILE.read_text()


def test_all_versions_are_that_of_the_server(ballastd):
    """Its one place is version.py; pages and manifests that name an image name this one."""
    said = run(ballastd, "--version", env={}).stdout.split()[1]
    assert said == ballast.__version__
    texts = [path for path in DEPLOY.rglob("*") if path.suffix in (".md", ".yaml", "")]
    named = re.compile(r"\bballast(?:-server_|[:-])(\d+\.\d+\.\d+)")
    found = {(path.name, version) for path in texts if path.is_file()
             for version in named.findall(path.read_text())}
    assert len(found) >= 3
    assert {version for _, version in found} == {said}


@pytest.mark.parametrize("folder", SERVERS)
def test_the_image_fits_the_manifests(folder):
    _, image = stages()
    pods = Manifests(documents(kubectls()["new"], folder))
    assert pods.pod["securityContext"]["runAsUser"] == USER
    assert "command" not in pods.container  # Its arguments are those of the entry point.
    assert values(image, "ENTRYPOINT") == [["[/usr/bin/ballastd]"]]
    ports = [str(port["containerPort"]) for port in pods.container["ports"]]
    assert values(image, "EXPOSE") == [ports]


def test_the_server_accepts_the_arguments_of_the_example(ballastd):
    """`docker run` in deploy/README.md: the words after the name of the image."""
    text = (DEPLOY / "README.md").read_text().replace("\\\n", " ")
    words = shlex.split(re.search(r"^docker run .*$", text, re.M)[0])
    arguments = words[words.index("ballast:0.1.0") + 1:]
    done = run(ballastd, *arguments, "--check-config", env={})
    assert (done.returncode, done.stderr) == (0, "")
