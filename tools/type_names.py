"""One word, one type: the words of docs/ARCHITECTURE.md and the names of the C++ types.

Comes from: the texts of the tree. Goes to: tools/tidy.py. Thread safety: pure functions.

Two rules for the production code:
- A word of the page's table names at most one type, be it a member of a class, and the word's row
  names that type or the file that defines it.
- Two types outside classes that are defined in different files have different names, namespaces
  or not: a reader meets `Device` without its namespace. SHARED has the exceptions.
"""

import collections
import pathlib
import re

import cpp_outline
import source_text

PAGE = pathlib.PurePosixPath("docs/ARCHITECTURE.md")
PRODUCTION = ("client/", "common/", "proto/", "server/")

_TWINS = "the public client's name for the thing that the other file names for the servers"
_KERNELS = "kernel rooms include no other kernel room, and these mean the same in each"
_MACHINES = "inputs and effects are named for their meaning, in the namespace of their machine"
# Names that several types outside classes may have, and why.
SHARED = {
    "BF16": _KERNELS,
    "CompletionTag": "gRPC's queue has no type of its own, and client and server share no room",
    "Device": "the public enum says where tensors are, and the seam is how to reach them there",
    "DurableJob": _TWINS,
    "F16": _KERNELS,
    "F32": _KERNELS,
    "FailInput": _MACHINES,
    "FailJob": _MACHINES,
    "Gpu": "the binding's class makes the public struct out of Python's arguments",
    "GroupRates": _TWINS,
    "KernelTable": _KERNELS,
}


def _rows(text):
    """Yields (word, all code spans of the row) for the table of words."""
    table = text.partition("\n## Words\n")[2].partition("\n## ")[0]
    for line in table.split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and not cells[0].startswith(("Word", "---")):
            yield cells[0], set(re.findall(r"`([^`]+)`", line))


def _type_name(word):
    """The type that a word would name: "contributor set" is ContributorSet."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[ _]", word))


def _check_words(page, places, found):
    for word, spans in _rows(page):
        name = _type_name(word)
        defined = places.get(name, [])
        if len({path for path, _, _ in defined}) > 1:
            found += [(path, line, f"{name} is a word of {PAGE} and the name of several types: "
                                   f"name this one after its own purpose")
                      for path, line, _ in defined]
        elif defined and not spans & {name, str(defined[0][0])}:
            path, line, _ = defined[0]
            found.append((path, line, f"{name} is a word of {PAGE}, and its row names neither this "
                                      f"type nor its file: is this the word's meaning?"))


def _check_names(places, found):
    for name, defined in places.items():
        outside = {path: line for path, line, nested in defined if not nested}
        if len(outside) > 1 and name not in SHARED:
            others = ", ".join(map(str, outside))
            found += [(path, line, f"{name} is the name of several types ({others}): rename one, "
                                   f"or say in tools/type_names.py why both have it")
                      for path, line in outside.items()]


def check(texts, found):
    """Adds (path, line, message) for each type whose name means something else elsewhere."""
    places = collections.defaultdict(list)
    for path, text in texts.items():
        if source_text.is_cpp(path) and str(path).startswith(PRODUCTION):
            for kind in cpp_outline.types(text):
                places[kind.name].append((path, kind.line, kind.nested))
    _check_words(texts.get(PAGE, ""), places, found)
    _check_names(places, found)
