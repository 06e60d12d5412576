#!/usr/bin/env bash
# A program of the Python package, by the name that this file has: ballast-run, ballast-report,
# ballast-nvme-tune, ballast-zero-to-fp32; as ballast-python it is python3 with the package.
# Comes from: a user. Goes to: python3, or the Python that BALLAST_PYTHON names.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
source "$here/../environment.sh"
case ${0##*/} in
  ballast-python) exec "${BALLAST_PYTHON:-python3}" "$@" ;;
  ballast-zero-to-fp32) module=ballast.ds_checkpoint.zero_to_fp32 ;;
  *) module=${0##*/} module=ballast.${module#ballast-} module=${module//-/_} ;;
esac
exec "${BALLAST_PYTHON:-python3}" -m "$module" "$@"
