"""How a trainer proves its identity to the servers: TLS files, or a bearer token.

Comes from: arguments, and BALLAST_TLS_CA, BALLAST_TLS_CERT, BALLAST_TLS_KEY, BALLAST_TOKEN_FILE.
Goes to: the extension module, which reads the files (client/cpp/ballast/security.h). Pure
functions.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ballast.errors import BadArgument

# Arguments, which are the fields of Security, and their variables.
VARIABLES = {
    "tls_ca": "BALLAST_TLS_CA",
    "tls_cert": "BALLAST_TLS_CERT",
    "tls_key": "BALLAST_TLS_KEY",
    "token_file": "BALLAST_TOKEN_FILE",
}


@dataclasses.dataclass(frozen=True)
class Security:
    """Paths of files; "" for none. All empty: plaintext."""

    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""

    def for_core(self) -> tuple[str, str, str, str]:
        """As the extension module takes it."""
        return dataclasses.astuple(self)


def of(given: Mapping[str, Any], env: Mapping[str, str]) -> Security:
    """The files of an option's argument, or else of its variable.

    BadArgument names the missing part: half of a pair, or authorities next to anything else.
    Whether the files are good is checked where they are read.
    """
    paths, sources = {}, {}
    for name, variable in VARIABLES.items():
        value = given.get(name)
        sources[name] = name if value is not None else variable
        if value is None and not env.get(variable):
            sources[name] = f"{name} ({variable})"
        paths[name] = _path(env.get(variable, "") if value is None else value, sources[name])
    _check_pair("tls_cert", "tls_key", paths, sources)
    _check_pair("tls_key", "tls_cert", paths, sources)
    for name in ("tls_cert", "token_file"):
        if paths[name] and not paths["tls_ca"]:
            why = "; a token travels over TLS only" if name == "token_file" else ""
            raise BadArgument(
                f"{sources[name]}={paths[name]!r} without {sources['tls_ca']}{why}: name the file "
                "with the authorities of the servers there"
            )
    return Security(**paths)


def _path(value: Any, source: str) -> str:
    try:
        return os.fspath(value)
    except TypeError:
        raise BadArgument(f"{source}={value!r}: must be the path of a file") from None


def _check_pair(
    one: str, other: str, paths: Mapping[str, str], sources: Mapping[str, str]
) -> None:
    if paths[one] and not paths[other]:
        raise BadArgument(
            f"{sources[one]}={paths[one]!r} without {sources[other]}: set both, or neither"
        )
