"""The short form of scripts/soak.sh: each kind of trouble twice."""

from __future__ import annotations

from e2e.soak import soak


def test_a_job_keeps_its_bits_through_kills_new_certificates_and_floods(ballastd, tmp_path):
    result = soak(ballastd, tmp_path, lambda under: under.cycles == 6)
    print(result)
    assert result["rounds"] == 45
