"""The GPU kit's stages speed and memory, rehearsed on the stand-in for CUDA."""

import pytest

from gpu_kit_rehearsal import rehearse, with_name

pytestmark = pytest.mark.slow


def test_the_stage_speed_measures_every_ratio_and_judges_none_of_a_rehearsal(tmp_path):
    lines = rehearse(tmp_path, "-m", "gpu_kit.speed")
    assert not [line for line in lines.values() if "least" in line]
    assert with_name(lines, "planted fault: a lost frame")[0]["state"] == "passed"
    ours = with_name(lines, "our copies as a share of bare ones")
    assert len(ours) == 15 and all(line["value"] > 0 for line in ours)
    steps = with_name(lines, "a step's bytes", "as a share")
    assert [line["wrong"] for line in steps] == [0, 0, 0]
    assert set(steps[0]["parts_ms"]) == {"push", "wait", "pull", "collect", "vote", "step"}
    assert 0 < with_name(lines, "idle time")[0]["value"] < 1
    assert len(with_name(lines, "bytes of a step", "right weights")) == 7


def test_the_stage_memory_compares_four_ways_and_notices_what_is_kept(tmp_path):
    lines = rehearse(tmp_path, "-m", "gpu_kit.memory")
    peaks = with_name(lines, "peak memory: ")
    assert len(peaks) == 5 and all(line["torch"] > 0 for line in peaks)
    assert with_name(lines, "what is left of 64 MiB")[0]["state"] == "measured"
    assert lines["memory that is kept is noticed"]["state"] == "passed"
    # All ways train the same model on the same tokens; bf16 rounds their losses.
    assert peaks[1]["loss"] == pytest.approx(peaks[3]["loss"], abs=0.05)
    assert peaks[1]["loss"] < peaks[0]["loss"], "forward and backward alone learn nothing"
