"""Words and turns that a native reader stumbles over, in comments, docstrings and pages.

Comes from: the texts of the tree. Goes to: tools/tidy.py. Thread safety: pure functions.
"""

import io
import re
import tokenize

import source_text

# In comments and docstrings of PLAIN_FOLDERS: docs/style.md, "Comments".
NOT_PLAIN = re.compile(
    r"(?<![`\w])(who|whoever|nobody|somebody|(go|goes|going|went|gone) on|is told|so long)\b",
    re.IGNORECASE)
PLAIN_FOLDERS = ("client/", "common/", "examples/", "proto/", "server/")
# In all comments, docstrings and pages.
TRANSLATED = (
    (re.compile(r"(?<![`\w])behind(?![`\w:])", re.IGNORECASE), "write after, or followed by"),
    (re.compile(r"(?<![`\w])besides?(?![`\w:])", re.IGNORECASE),
     "write next to, or in addition to"),
    (re.compile(r"\bof before\b", re.IGNORECASE), "write the old, or the earlier"),
    (re.compile(r"\b(?:is|are) there(?=[.,;:)])", re.IGNORECASE), "write exists, or is complete"),
)
# A relative clause in place of a noun: fine after these verbs only, and in headings.
WHAT = re.compile(
    r"(?:(?<![`\w])(?P<verb>\w+)\s+)?(?<![`\w])what\s+(?:it|they|the|an?|is|are|was|has|this|that|"
    r"its|one|each|every|he|you|we|no|[a-z]+s)\b", re.IGNORECASE)
VERBS = frozenset("say says said saying show shows showed shown see sees saw seen know knows knew "
                  "known ask asks asked".split())


def comments_of(path, text):
    """Yields (line, comment or docstring) of a C++, .proto or Python file."""
    if source_text.is_cpp(path) or path.suffix == ".proto":
        yield from enumerate(source_text.split_cpp(text)[1].split("\n"), 1)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or '"""' in token.string:
                yield from enumerate(token.string.split("\n"), token.start[0])


def _page_lines(text):
    """Yields (line, text) of a page without its blocks of code."""
    fenced = re.sub(r"```.*?```", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.DOTALL)
    yield from enumerate(fenced.split("\n"), 1)


def _free_relatives(line, before):
    """Yields each "what ..." of a line without a verb of saying in front, there or at the end of
    the line before."""
    for match in WHAT.finditer(line):
        verb = match.group("verb")
        if verb is None and not line[:match.start()].strip(" /#*"):
            verb = (re.findall(r"\w+", before) or [""])[-1]
        if (verb or "").lower() not in VERBS:
            yield match


def check(path, text, found):
    """Adds (path, line, message) for each turn that has a plainer form."""
    page = path.suffix == ".md"
    # Their sentences are those of tables in code, where a check has no comment to look at.
    generated = page and "<!-- Generated" in text[:300]
    plain = not page and str(path).startswith(PLAIN_FOLDERS)
    before = ""
    for number, line in _page_lines(text) if page else comments_of(path, text):
        previous, before = before, line
        if not line.strip():
            continue
        if plain:
            found += [(path, number, f"'{m.group(0)}' is not plain: name what acts (docs/style.md)")
                      for m in NOT_PLAIN.finditer(line)]
        found += [(path, number, f"'{m.group(0)}' reads as translated: {instead}")
                  for pattern, instead in TRANSLATED for m in pattern.finditer(line)]
        if not generated and not (page and line.startswith("#")):
            found += [(path, number, f"'{m.group(0)}': name the thing with a noun")
                      for m in _free_relatives(line, previous)]
