"""The version of Ballast. This line is the one place of it.

Goes to: CMakeLists.txt (so to `ballastd --version` and `ballastctl --version`), pyproject.toml, and
scripts/package_facts.sh (so to the names and labels of the packages).
"""

__version__ = "0.1.0"
