"""Where this reader and DeepSpeed 0.19.8 differ on legality or on which value counts, and why.

Comes from: tests that give both the same 10,000 configurations; a difference without an entry here
fails them. Goes to: ballast.ds_config.page. What Ballast cannot do is no difference of this kind:
the row of its key says so.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Difference:
    """name: for tests. what: which keys and values. deepspeed, reader: how each treats them."""

    name: str
    what: str
    deepspeed: str
    reader: str


DIFFERENCES = (
    Difference(
        "unknown",
        "unknown names outside zero_optimization, fp16, bf16 and the other checked sections",
        "ignores them",
        "refuses them everywhere: a misspelt name changes the training without a word",
    ),
    Difference(
        "note",
        "names that begin with `_`, and `comment`, `comments`, `description`",
        "refuses them in checked sections, and ignores them elsewhere",
        "takes them as notes everywhere",
    ),
    Difference(
        "auto",
        '"auto" that nothing fills',
        "takes the default in checked sections, and carries the text on elsewhere until it breaks",
        "leaves it to Trainer, or refuses it where no argument fills it and the value matters or "
        "DeepSpeed would break; `ballast.deepspeed` refuses both",
    ),
    Difference(
        "unchecked",
        "values of a wrong type or range in sections that DeepSpeed does not check",
        "carries them on; they break later, or count as true",
        "refuses them by the row's kind",
    ),
    Difference(
        "coerced",
        '1, 0, "true" and their like for true and false, true for 1, "1" for 1',
        "turns them into the type that the key has",
        "refuses them: the file should say what is meant",
    ),
    Difference(
        "narrow",
        "numbers outside the range of the row's kind, texts outside its choices",
        "takes each integer or text in a few keys of checked sections",
        "refuses what no run can use, such as -1 bits or 10^20 elements",
    ),
    Difference(
        "schedule",
        "negative rates and ratios, a momentum that is not in [0, 1), lists of two lengths, "
        "cycle_momentum with an optimizer that has no betas",
        "makes the schedule; the rate or the momentum turns out wrong while it trains",
        "refuses them before the job starts",
    ),
    Difference(
        "scale",
        "a first loss scale above 2^126 or below min_loss_scale, hysteresis below 1",
        "begins with it; each round then overflows, or the scale never moves",
        "refuses it before the job starts",
    ),
    Difference(
        "typeless",
        "params of an optimizer or a scheduler without its type",
        "ignores them",
        "refuses them",
    ),
    Difference(
        "twice",
        "a section under both of its names, such as bf16 and bfloat16",
        "reads the first name and ignores the second",
        "refuses the second name",
    ),
    Difference(
        "removed",
        "sections that 0.19.7 and 0.19.8 have dropped, while they are off",
        "refuses the name",
        "accepts them and says which version refuses them: nothing is lost by an off section",
    ),
    Difference(
        "null",
        "null for pipeline, torch_autocast.dtype, and sections in data_efficiency",
        "breaks on it",
        "takes it as absence, as for other keys that have no default",
    ),
    Difference(
        "beside",
        "pairs of which DeepSpeed refuses the second half, such as 16-bit masters without a stage",
        "refuses the pair",
        "refuses the first key by itself: Ballast does not do what it asks for",
    ),
    Difference(
        "tool names",
        "aio.thread_count and aio.num_threads, which DeepSpeed's disk tuner prints",
        "ignores them",
        "reads them as intra_op_parallelism",
    ),
    Difference(
        "one or list",
        "a text for a list of zero_optimization.leaf_module, or a name twice in it",
        "makes it a list of different names",
        "keeps what is written; nothing depends on it",
    ),
    Difference(
        "overlap_comm",
        "zero_optimization.overlap_comm without a value",
        "fills in true for stage 3 and false below",
        "leaves it open: the key has no effect",
    ),
    Difference(
        "path",
        "an empty nvme_path",
        'reads "" as the present folder',
        "keeps what is written; a trainer names no path of a server",
    ),
)
