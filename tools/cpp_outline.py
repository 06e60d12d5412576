"""Finds the functions and classes of a C++ text, with the members of each class.

Comes from: the text of one file. Goes to: tools/tidy.py and tools/measure.py.
Thread safety: pure functions.

A brace matcher, not a parser. It reads code as clang-format lays it out. Lambdas and local classes
count as part of the function around them. Preprocessor lines count as blank.
"""

import dataclasses
import functools
import re

import source_text

# Stands in a declaration for a brace initialiser, as in `int a{1};`.
_INIT = "@"
# The text before a brace decides its kind.
_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b|\bextern\s+\"")
_MEMBER_INIT = re.compile(r"\)[^)(]*(?<!:):(?!:)")
_TEMPLATE = re.compile(r"^(?:template\s*<[^{]*?>\s*)(?=\b(?:class|struct|union)\b)")
_ACCESS = ("public", "private", "protected")
_ANNOTATION = re.compile(r"\b(?:ABSL|BALLAST)_\w+(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?|"
                         r"\[\[[^\]]*\]\]|\balignas\s*\([^)]*\)")
_NO_MEMBER = re.compile(r"^(using|typedef|friend|static_assert|enum)\b"
                        r"|^(class|struct|union)\s+[\w:]+$")


@dataclasses.dataclass(frozen=True)
class Function:
    """A function body: its lines, its name as written (`Tier::Acquire`), the scopes around it."""

    first: int
    last: int
    name: str
    scopes: tuple


@dataclasses.dataclass(frozen=True)
class Type:
    """A class, struct, union or enum: its name without scopes, its line, whether in a class."""

    name: str
    line: int
    nested: bool


@dataclasses.dataclass
class CppClass:
    """A class, struct or union: its qualified name, its line, and its members.

    `methods` names each member function, but for constructors, destructors and deleted ones.
    `fields` has the declaration of each non-static data member.
    """

    name: str
    line: int
    methods: list = dataclasses.field(default_factory=list)
    fields: list = dataclasses.field(default_factory=list)


def _blank_preprocessor(code):
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                  code, flags=re.MULTILINE)


def _brace_kind(head):
    """Returns the kind of brace after the text head: 'scope', 'function', 'init' or 'other'."""
    text = _ANNOTATION.sub("", head).strip()
    if not text:
        return "other"
    # Template parameters say nothing about the text after them.
    plain = _TEMPLATE.sub("", text)
    if _SCOPE.search(plain) and not re.search(r"\)\s*(const|noexcept|override|->.*)*$", plain):
        return "enum" if re.search(r"\benum\b", plain) else "scope"
    if "(" not in _without_angles(text) or text.endswith(("=", "return")):
        return "init" if re.search(r"[\w>\]=,]$", text) else "other"
    # Foo(int a) : a_{a}, b_{1} {...}: braces right after a member's name initialise it.
    is_list = _MEMBER_INIT.search(text)
    if is_list and re.search(r"[\w>](?<!noexcept)(?<!const)(?<!override)$", text):
        return "init"
    if re.search(r"=\s*[\w:<>, ]+$", text):
        return "init"
    return "function"


def _skip_braces(code, at):
    """Returns the offset after the brace that closes the one at offset at."""
    depth = 0
    for brace in re.finditer(r"[{}]", code[at:]):
        depth += 1 if brace.group(0) == "{" else -1
        if depth == 0:
            return at + brace.end()
    return len(code)


def _without(innermost, text):
    """Removes matches of the pattern until there are none: nested brackets, from the inside out."""
    while (shorter := re.sub(innermost, "", text)) != text:
        text = shorter
    return text


def _without_angles(text):
    """Removes template arguments, those of std::function with their parentheses included."""
    return _without(r"<[^<>]*>", text.replace("->", " ").replace("<=>", "==="))


def _scope_name(head):
    """Returns the name that a namespace or class head declares; '' for one without a name."""
    text = _without_angles(_ANNOTATION.sub("", head))
    text = re.split(r"(?<!:):(?!:)", text)[0]
    words = re.findall(r"[\w:]+", re.split(r"\b(?:namespace|class|struct|union)\b", text)[-1])
    words = [word for word in words if word != "final"]
    return words[-1] if words else ""


def _plain_declaration(declaration):
    """Returns a declaration without templates, annotations and initialisers."""
    text = _without_angles(_ANNOTATION.sub("", declaration))
    return re.sub(r"\btemplate\b", "", text).strip()


def function_name(declaration):
    """Returns the name of the function that a text up to its body or semicolon declares, or ''.

    TEST(Round, Steps) declares Round.Steps.
    """
    text = _plain_declaration(declaration)
    test = re.match(r"(?:TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)", text)
    if test:
        return ".".join(test.groups())
    operator = re.search(r"((?:\w+::)*operator\b\s*(?:\(\s*\)|[^\s(]+|\s\w+))\s*\(", text)
    if operator:
        return re.sub(r"\s+", " ", operator.group(1)).replace("===", "<=>")
    named = re.match(r"[^=@(]*?((?:\w+::)*~?\w+)\s*\((?!\s*\*)", text)
    return named.group(1) if named else ""


def add_member(declaration, owner):
    """Adds the names of a declaration in the body of the class `owner` to its members."""
    text = _plain_declaration(declaration)
    if not text or _NO_MEMBER.search(text):
        return
    name = function_name(declaration)
    if name:
        before = text[:text.find(name)].strip()
        is_constructor = not before.replace("explicit", "").replace("constexpr", "").strip()
        if is_constructor and not name.startswith("operator"):
            return  # Or a macro.
        if not name.startswith("~") and not re.search(r"=\s*delete\b", text):
            owner.methods.append(name)
        return
    if re.search(r"\bstatic\b", text):
        return
    names = _without(r"\([^()]*\)", text).count(",") + 1
    owner.fields += [" ".join(declaration.split())] * names


class _Scan:
    """One pass over the code of a file; `head` is the declaration being read."""

    def __init__(self, code):
        self.code = code
        self.functions, self.classes, self.types = [], [], []
        self._scopes = []  # (name, CppClass or None), from the outside in.
        self._line, self._line_at = 1, 0
        self._restart(0)
        for token in re.finditer(r"[(){};:]", code):
            if token.start() >= self._at:
                self._read(token.group(0), token.start())

    def _restart(self, at):
        self._head, self._head_start, self._parens, self._at = "", at, 0, at

    def _line_of(self, offset):
        """The line of an offset; cheap where offsets ascend."""
        if offset < self._line_at:
            self._line, self._line_at = 1, 0
        self._line += self.code.count("\n", self._line_at, offset)
        self._line_at = offset
        return self._line

    def _start(self):
        return self._head_start + len(self._head) - len(self._head.lstrip())

    def _owner(self):
        return self._scopes[-1][1] if self._scopes else None

    def _names(self):
        """The named scopes around; extern "C" and unnamed namespaces add nothing to a name."""
        return tuple(name for name, _ in self._scopes if name)

    def _read(self, char, at):
        self._head += self.code[self._at:at]
        self._at = at + 1
        if char == "{":
            self._open(at)
        elif char in ";}" and self._parens <= 0:
            if char == ";" and self._owner():
                add_member(self._head, self._owner())
            if char == "}" and self._scopes:
                self._scopes.pop()
            self._restart(at + 1)
        elif char == ":" and self._head.strip() in _ACCESS:
            self._restart(at + 1)
        else:
            self._parens += {"(": 1, ")": -1}.get(char, 0)
            self._head += char

    def _open(self, at):
        kind = "init" if self._parens > 0 else _brace_kind(self._head)
        if kind == "scope":
            self._open_scope(at)
            return
        end = _skip_braces(self.code, at)
        if kind == "init":
            self._head += _INIT
            self._at = end
            return
        if kind == "function":
            self._add_function(end)
        if kind == "enum":
            self._add_type(re.split(r"(?<!:):(?!:)", self._head)[0].split()[-1])
        self._restart(end)

    def _open_scope(self, at):
        name, owner = _scope_name(self._head), None
        if re.search(r"\b(class|struct|union)\b", _TEMPLATE.sub("", self._head.strip())):
            owner = CppClass("::".join((*self._names(), name)), self._line_of(self._start()))
            self.classes.append(owner)
            self._add_type(name)
        self._scopes.append((name, owner))
        self._restart(at + 1)

    def _add_type(self, name):
        nested = "::" in name or any(owner for _, owner in self._scopes)
        self.types.append(Type(name.split("::")[-1], self._line_of(self._start()), nested))

    def _add_function(self, end):
        if self._owner():
            add_member(self._head, self._owner())
        first = self._line_of(self._start())
        self.functions.append(Function(first, self._line_of(end - 1), function_name(self._head),
                                       self._names()))


@functools.cache  # Two rules read each file.
def _scan(text):
    return _Scan(_blank_preprocessor(source_text.split_cpp(text)[0]))


def outline(text):
    """Returns (functions, classes) of a C++ text, in the order of the text."""
    scan = _scan(text)
    return scan.functions, scan.classes


def types(text):
    """Returns the types that a C++ text defines, in the order of the text."""
    return _scan(text).types
