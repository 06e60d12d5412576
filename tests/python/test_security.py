"""Where a trainer finds the files of TLS, and the message when some are missing."""

import pytest

from ballast import BadArgument, security
from ballast.security import Security

ENV = {"BALLAST_TLS_CA": "/ca", "BALLAST_TLS_CERT": "/cert", "BALLAST_TLS_KEY": "/key"}


def test_arguments_win_over_variables():
    found = security.of({"tls_cert": "c", "tls_key": "k"}, ENV)
    assert found == Security("/ca", "c", "k")
    assert security.of({"tls_ca": None}, {}) == Security()
    assert security.of({}, {"BALLAST_TLS_CA": "/ca", "BALLAST_TOKEN_FILE": "/t"}) == Security(
        tls_ca="/ca", token_file="/t"
    )


@pytest.mark.parametrize("given, env, words", [
    ({"tls_ca": "a", "tls_cert": "c"}, {}, r"tls_cert='c' without tls_key \(BALLAST_TLS_KEY\)"),
    ({}, {"BALLAST_TLS_CA": "a", "BALLAST_TLS_KEY": "k"}, "BALLAST_TLS_KEY='k' without tls_cert"),
    ({"tls_cert": "c", "tls_key": "k"}, {}, r"tls_cert='c' without tls_ca \(BALLAST_TLS_CA\)"),
    ({"token_file": "t"}, {}, "token_file='t' without tls_ca.*; a token travels over TLS only"),
    ({"tls_ca": 5}, {}, "tls_ca=5: must be the path of a file"),
])
def test_what_is_missing_is_named(given, env, words):
    with pytest.raises(BadArgument, match=words):
        security.of(given, env)
