# Sets a shell up for this copy of Ballast: its programs, its Python package, its libraries.
# Comes from: `source ENVIRONMENT` by a user, by the programs of bin/ and by run.sh.
# Goes to: PATH, PYTHONPATH, BALLAST_BALLASTD and BALLAST_BALLASTCTL; on a host whose libstdc++ is
# missing or older than that of the build, LD_LIBRARY_PATH too. BALLAST_PYTHON names the Python to
# ask; python3 by default.

ballast_root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$ballast_root/bin:$PATH
export PYTHONPATH=$ballast_root/python${PYTHONPATH:+:$PYTHONPATH}
export BALLAST_BALLASTD=$ballast_root/bin/ballastd BALLAST_BALLASTCTL=$ballast_root/bin/ballastctl

# with_gcc COMMAND...: runs it with the libraries of GCC that this copy carries.
with_gcc() {
  LD_LIBRARY_PATH=$ballast_root/lib/gcc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}

if ! "${BALLAST_PYTHON:-python3}" -c 'import ballast._core' 2>/dev/null &&
  with_gcc "${BALLAST_PYTHON:-python3}" -c 'import ballast._core' 2>/dev/null; then
  export LD_LIBRARY_PATH=$ballast_root/lib/gcc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
unset -f with_gcc
