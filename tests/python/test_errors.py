"""ballast.errors: the class follows from the reason, and nothing is lost on the way."""

import copy
import re
from pathlib import Path

import pytest

import ballast
from ballast import errors

TYPES = Path(__file__).resolve().parents[2] / "proto" / "ballast" / "v1" / "types.proto"
# Answers to one frame, redirections: the C++ client deals with these itself. And to operators.
INTERNAL = set(
    "UNSPECIFIED DUPLICATE CONFLICT STALE_EPOCH FUTURE_EPOCH ROUND_CLOSED FUTURE_ROUND "
    "OUT_OF_WINDOW WRONG_OWNER WRONG_DTYPE BAD_FRAME BAD_CHECKSUM "
    "NOT_CONTRIBUTOR NOT_BEGUN NOT_HOME WRONG_VERSION JOB_BUSY".split()
)


def test_every_reason_that_reaches_users_has_its_own_class():
    reasons = set(re.findall(r"^\s+REASON_([A-Z_]+) = \d+;", TYPES.read_text(), re.M))
    classes = {getattr(ballast, n).default_reason for n in errors.__all__}
    assert reasons - INTERNAL == classes - {"UNSPECIFIED"}


def test_from_status_carries_all_fields():
    error = errors.from_status("UNAVAILABLE", "TRAINER_LOST", "slot 1 is gone", "job", 7, 1, -1)
    assert type(error) is ballast.TrainerLost
    assert (error.code, error.reason, error.job) == ("UNAVAILABLE", "TRAINER_LOST", "job")
    assert (error.round, error.slot, error.server) == (7, 1, -1)
    assert str(error) == "slot 1 is gone [TRAINER_LOST]"


def test_an_unknown_reason_gives_the_base_class_with_its_name():
    error = errors.from_status("INTERNAL", "SOMETHING_NEW", "text", "", 0, -1, -1)
    assert type(error) is ballast.BallastError
    assert error.reason == "SOMETHING_NEW"


def test_errors_survive_copying_between_processes():
    error = errors.from_status("UNAVAILABLE", "SERVER_LOST", "text", "job", 3, -1, 2)
    again = copy.copy(error)  # what pickling uses: __reduce_ex__
    assert type(again) is ballast.ServerLost
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    "kind, builtin",
    [
        (ballast.BadArgument, ValueError),
        (ballast.BadHyperparam, ValueError),
        (ballast.Unsupported, NotImplementedError),
        (ballast.AttachTimeout, TimeoutError),
        (ballast.Unreachable, ConnectionError),
        (ballast.TrainerLost, RuntimeError),
    ],
)
def test_errors_are_also_what_python_calls_them(kind, builtin):
    assert issubclass(kind, builtin)
    assert issubclass(kind, ballast.BallastError)
