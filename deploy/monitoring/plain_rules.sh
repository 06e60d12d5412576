#!/usr/bin/env bash
# Prints the rules of rules.yaml, which is for the Prometheus operator, as a Prometheus without it
# reads them. Goes to: up.sh, tests/deploy, and whoever runs such a Prometheus.
#   deploy/monitoring/plain_rules.sh [RUNBOOKS] >rules.yaml
# RUNBOOKS: where operations.md can be read, in runbook_url of each alert (docs/operations.md).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
runbooks=${1:-docs/operations.md}
if [[ $# -gt 1 || $runbooks == -* || $runbooks == *[\|\&\\]* ]]; then
  echo "usage: plain_rules.sh [RUNBOOKS] >rules.yaml" >&2
  exit 2
fi
echo "# Recording rules and alerts of Ballast, from deploy/monitoring/plain_rules.sh."
sed -e '1,/^spec:$/d' -e 's/^  //' -e "s|\$(RUNBOOKS)|$runbooks|" "$here/rules.yaml"
