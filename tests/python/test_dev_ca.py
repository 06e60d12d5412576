"""scripts/dev-ca.sh: the files that it makes and keeps, and its refusals. Goes to: openssl."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
URIS = {
    "server-0": "spiffe://lab/server/0",
    "server-1": "spiffe://lab/server/1",
    "trainer-red": "spiffe://lab/tenant/red/trainer",
    "operator-red": "spiffe://lab/tenant/red/operator",
    "viewer-red": "spiffe://lab/tenant/red/viewer",
    "admin": "spiffe://lab/admin",
}


def dev_ca(*arguments):
    """Runs the script; its exit status and output."""
    return subprocess.run([ROOT / "scripts/dev-ca.sh", *map(str, arguments)],
                          capture_output=True, text=True, timeout=60)


def openssl(*arguments):
    """Runs openssl; its exit status and output."""
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)


@pytest.fixture(name="lab")
def made_lab(tmp_path):
    """A directory with two servers and the tenant red."""
    result = dev_ca("--domain", "lab", "--tenant", "red", "--servers", 2, "--host", "node.lab",
                    "--host", "10.0.0.7", tmp_path / "lab")
    assert result.returncode == 0, result.stderr
    return tmp_path / "lab"


def test_every_pair_has_one_name_and_a_key_of_its_owner_only(lab):
    assert {path.stem for path in lab.glob("*.pem")} == {"ca", *URIS}
    for name, uri in URIS.items():
        names = openssl("x509", "-in", lab / f"{name}.pem", "-noout", "-ext", "subjectAltName")
        assert names.stdout.count("URI:") == 1
        assert f"URI:{uri}" in names.stdout
        assert (lab / f"{name}.key").stat().st_mode & 0o777 == 0o600
    assert not list(lab.glob(".dev-ca*"))


def test_servers_are_servers_and_others_are_not(lab):
    def verify(purpose, name, *more):
        return openssl("verify", "-CAfile", lab / "ca.pem", "-purpose", purpose, *more,
                       lab / f"{name}.pem").returncode
    assert verify("sslserver", "server-1", "-verify_hostname", "node.lab") == 0
    assert verify("sslserver", "server-1", "-verify_ip", "10.0.0.7") == 0
    assert verify("sslclient", "server-1") == 0
    for name in ("trainer-red", "admin"):
        assert verify("sslclient", name) == 0
        assert verify("sslserver", name) != 0


def test_a_second_run_adds_and_overwrites_nothing(lab):
    before = {path: path.read_bytes() for path in lab.iterdir()}
    again = dev_ca("--domain", "lab", "--tenant", "blue", "--servers", 2, lab)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert openssl("verify", "-CAfile", lab / "ca.pem", lab / "trainer-blue.pem").returncode == 0


def test_no_days_is_expired(tmp_path):
    assert dev_ca("--servers", 0, "--days", 0, tmp_path).returncode == 0
    verdict = openssl("verify", "-CAfile", tmp_path / "ca.pem", tmp_path / "admin.pem")
    assert "certificate has expired" in verdict.stderr


@pytest.mark.parametrize("arguments, words", [
    ((), "name the directory"),
    (("--tenant", "a/b", "d"), "--tenant 'a/b'"),
    (("--domain", "A", "d"), "--domain 'A'"),
    (("--servers", "x", "d"), "--servers 'x'"),
    (("--color", "d"), "unknown option --color"),
    (("--days",), "--days needs a value"),
])
def test_wrong_arguments_are_named(arguments, words):
    result = dev_ca(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
