# What all packages say of themselves. Source it in the root of the repository.
# Comes from: client/python/ballast/version.py and git. Goes to: the build scripts of the packages.

BALLAST_VERSION=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' client/python/ballast/version.py)
# The commit, with "-dirty" after it where files differ from it; "unknown" without git.
BALLAST_REVISION=$(git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null ||
  echo unknown)
# The time that all files in packages get, in seconds since 1970: the same sources, the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export BALLAST_VERSION BALLAST_REVISION SOURCE_DATE_EPOCH
readonly BUILD=build/release
umask 022
