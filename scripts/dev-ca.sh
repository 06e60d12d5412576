#!/usr/bin/env bash
# Makes certificates for tests and for a first cluster; see --help. The script lies in the Python
# package, because `ballast-run --tls` uses it where there is no checkout.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/../client/python/ballast/launcher/dev-ca.sh" "$@"
