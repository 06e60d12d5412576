#!/usr/bin/env python3
"""The parts of an image, as SPDX 2.3: the Debian packages that mmdebstrap has unpacked, and us.

Comes from: finish_root.sh, with the archives of the packages still in ROOT/var/cache/apt/archives.
Goes to: /usr/share/doc/ballast/sbom.spdx.json of the image, and a file next to it.
Thread safety: one process, nothing shared. The same packages give the same bytes.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

NAMESPACE = "https://spdx.org/spdxdocs/ballast"
FIELDS = ("Package", "Version", "Architecture", "Homepage")


def described(archive):
    """Returns the fields of a .deb file by name; a field that it lacks is left out."""
    said = subprocess.run(["dpkg-deb", "-f", str(archive), *FIELDS], check=True, text=True,
                          capture_output=True).stdout
    return dict(line.split(": ", 1) for line in said.splitlines())


def debian_package(archive):
    """Returns the SPDX package of a .deb file, with its checksum and its package URL."""
    fields = described(archive)
    name, version = fields["Package"], fields["Version"]
    url = f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch={fields['Architecture']}"
    return {
        **package(name, version, "NOASSERTION"),
        "homepage": fields.get("Homepage", "NOASSERTION"),
        "checksums": [{"algorithm": "SHA256",
                       "checksumValue": hashlib.sha256(archive.read_bytes()).hexdigest()}],
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": url}],
    }


def package(name, version, licence):
    """Returns the fields that every SPDX package has."""
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }


def document(archives, version, created):
    """Returns the SPDX document; `created` is a time in seconds since 1970."""
    ours = package("ballast-server", version, "Apache-2.0")
    parts = [debian_package(archive) for archive in sorted(archives)]
    sums = "".join(part["checksums"][0]["checksumValue"] for part in parts)
    when = datetime.datetime.fromtimestamp(created, datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"ballast-{version}",
        "documentNamespace": f"{NAMESPACE}-{version}-"
                             f"{hashlib.sha256((version + sums).encode()).hexdigest()[:16]}",
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: ballast-container-build"]},
        "packages": [ours, *parts],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
             "relatedSpdxElement": ours["SPDXID"]},
            *({"spdxElementId": ours["SPDXID"], "relationshipType": "DEPENDS_ON",
               "relatedSpdxElement": part["SPDXID"]} for part in parts),
        ],
    }


def main():
    """Prints the document for the packages of a root directory; fails where it has none."""
    root, version = sys.argv[1:]
    archives = list(pathlib.Path(root, "var/cache/apt/archives").glob("*.deb"))
    if not archives:
        sys.exit(f"sbom: no packages in {root}/var/cache/apt/archives")
    json.dump(document(archives, version, int(os.environ["SOURCE_DATE_EPOCH"])), sys.stdout,
              indent=1)
    print()


if __name__ == "__main__":
    main()
