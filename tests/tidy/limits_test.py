"""Tests of tools/limits.py and tools/cpp_outline.py: the counts, and the rows of the list."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import cpp_outline  # noqa: E402  (found only after the line above)
import limits  # noqa: E402

LIST = str(limits.LIST)
SUFFIXES = {".h", ".cc", ".py"}


def violations(files):
    """Returns [(path, line, message)] for a tree of {path: text}."""
    texts = {pathlib.PurePosixPath(path): text for path, text in files.items()}
    found = []
    limits.check(texts, limits.outlines_of(texts), SUFFIXES, found)
    return [(str(path), line, message) for path, line, message in found]


def places(files):
    """Returns [(path, line)] of all violations in a tree of {path: text}."""
    return [(path, line) for path, line, _ in violations(files)]


def shape_of(body):
    """Returns (names of methods, number of fields) of a class A with that body."""
    only = cpp_outline.outline(f"class A {{\n{body}\n}};\n")[1][0]
    return only.methods, len(only.fields)


def class_text(methods, fields, name="A"):
    """Returns a class with that many methods and fields."""
    return (f"class {name} {{\n" + "".join(f"  void F{i}();\n" for i in range(methods)) +
            "".join(f"  int f{i}_ = 0;\n" for i in range(fields)) + "};\n")


class Functions(unittest.TestCase):
    """Functions by the brace matcher."""

    def test_functions_methods_and_constructors_are_measured(self):
        cases = (
            ("void F() {\n  if (a) {\n  }\n}\n", [(1, 4)]),
            ("namespace a {\nclass B : public C<D> {\n public:\n  int f() const { return 1; }\n};\n"
             "}\n", [(4, 4)]),
            ("A::A(int b)\n    : b_(b), c_{b}, d_{} {\n  g();\n}\n", [(1, 4)]),
            ("A::A(int b) noexcept : b_(b) {\n}\nint x = 1;\n", [(1, 2)]),
            ("void F(Options o = {}, int a = {1}) {\n}\n", [(1, 2)]),
            ("template <class T>\nauto F(T a) -> decltype(a) {\n}\n", [(1, 3)]),
            ("template <class T>\nstruct S {\n  T a{};\n  void F() {\n  }\n};\n", [(4, 5)]),
            ("struct alignas(64) S {\n  int a = 0;\n};\n", []),
            ("struct S {\n  std::array<int, F(1)> a{};\n  alignas(64) int b{0};\n};\n", []),
            ("enum class E : int { kA, kB };\nint table[] = {1, 2};\n", []),
            ("constexpr std::array<int, 2> kA = {F(1),\n F(2)};\nint G() {\n}\n", [(3, 4)]),
            ('extern "C" {\nint F() {\n}\n}\n', [(2, 3)]),
            ("#define M(a) \\\n  do { a; } while (0)\nint F() {\n}\n", [(3, 4)]),
            ('int F() {\n  G("}", \'{\', 1\'000, R"x(}}})x");  // }\n}\n', [(1, 3)]),
            ("TEST(Round, Steps) {\n}\n", [(1, 2)]),
        )
        for text, expected in cases:
            with self.subTest(text=text):
                found = [(f.first, f.last) for f in cpp_outline.outline(text)[0]]
                self.assertEqual(found, expected)

    def test_a_name_is_as_it_is_written(self):
        cases = (
            ("absl::StatusOr<std::vector<int>> A::B::Get(int a) const {}", "A::B::Get"),
            ("A::A(int a) : a_(a), b_{a} {}", "A::A"),
            ("A::~A() {}", "A::~A"),
            ("template <class T>\nstd::function<void(T)> Make(T a) {}", "Make"),
            ("bool A::operator()(int a) const {}", "A::operator()"),
            ("bool operator<=>(const A& a, const A& b) {}", "operator<=>"),
            ("auto F() -> std::map<int, int> {}", "F"),
            ("TEST_F(Round, Steps) {}", "Round.Steps"),
        )
        for text, expected in cases:
            with self.subTest(text=text):
                self.assertEqual([f.name for f in cpp_outline.outline(text)[0]], [expected])

    def test_a_function_above_the_limit_is_reported_at_its_first_line(self):
        body = "  g();\n" * (limits.FUNCTION_LINES_MAX - 2)
        self.assertEqual(places({"a.h": "void F() {\n" + body + "}\n"}), [])
        self.assertEqual(places({"a.h": "\nvoid F() {\n" + body + "  g();\n}\n"}), [("a.h", 2)])
        python = "def f():\n" + "    g()\n" * (limits.FUNCTION_LINES_MAX - 1)
        self.assertEqual(places({"a.py": python}), [])
        self.assertEqual(places({"a.py": python + "    g()\n"}), [("a.py", 1)])
        documented = python.replace(":\n", ':\n    """Says\n\n    why.\n    """\n', 1)
        self.assertEqual(places({"a.py": documented}), [])


class Members(unittest.TestCase):
    """Methods and fields of a class."""

    def test_methods_are_member_functions_of_any_kind(self):
        for declaration, name in (
                ("void F();", "F"),
                ("virtual absl::StatusOr<int> F(std::function<void(int)> done) const = 0;", "F"),
                ("static int F() { return 1; }", "F"),
                ("template <class T>\nT F(T a = {});", "F"),
                ("void F() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);", "F"),
                ("[[nodiscard]] const std::map<int, int>& map() const;", "map"),
                ("A& operator=(A&& other) noexcept;", "operator="),
                ("explicit operator bool() const;", "operator bool"),
                ("void (*F())(int);", None)):
            with self.subTest(declaration=declaration):
                methods, fields = shape_of(declaration)
                self.assertEqual((methods, fields), ([name], 0) if name else ([], 1))

    def test_constructors_destructors_and_deleted_functions_do_not_count(self):
        self.assertEqual(shape_of("A();\nexplicit A(int a) : a_(a), b_{a} {}\n~A() override;\n"
                                  "A(const A&) = delete;\nA& operator=(const A&) = delete;"),
                         ([], 0))

    def test_fields_are_data_members_that_are_not_static(self):
        for declaration, count in (
                ("int a_ = F(1, 2);", 1),
                ("int a = 0, b = 0;", 2),
                ("std::function<void(int, int)> done_;", 1),
                ("std::map<int, std::vector<int>> map_ ABSL_GUARDED_BY(mu_);", 1),
                ("std::atomic<int> a_{0};", 1),
                ("const std::array<int, 2> a_ = {1, 2};", 1),
                ("std::function<int(int)> f_ = [](int a) { return a; };", 1),
                ("int (*table_)(int, int);", 1),
                ("int a[1 << 2];", 1),
                ("struct {\n int x;\n} point_;", 1),
                ("static int a;", 0),
                ("static constexpr int kA = 1;", 0),
                ("using B = int;\ntypedef int C;\nfriend class D;\nclass E;", 0),
                ("enum F { kF, kG };", 0),
                ("static_assert(sizeof(int) == 4);", 0)):
            with self.subTest(declaration=declaration):
                self.assertEqual(shape_of(declaration), ([], count))

    def test_a_nested_class_counts_for_itself(self):
        found = cpp_outline.outline("namespace n {\nclass A {\n public:\n  struct B {\n    int b;\n"
                                    "    void F();\n  };\n  B b_;\n};\n}\n")[1]
        self.assertEqual([(c.name, c.line, c.methods, len(c.fields)) for c in found],
                         [("n::A", 2, [], 1), ("n::A::B", 4, ["F"], 1)])

    def test_the_name_of_a_class_is_what_stands_before_its_bases(self):
        for head, name in (("class A final : public n::B<int>", "A"), ("struct A::B", "A::B"),
                           ("class ABSL_LOCKABLE A", "A"), ("struct alignas(64) A", "A"),
                           ("template <class T>\nclass A", "A"),
                           ("template <>\nstruct A<int>", "A"), ("union A", "A")):
            with self.subTest(head=head):
                found = cpp_outline.outline(head + " {\n};\n")[1]
                self.assertEqual([c.name for c in found], [name])


class Classes(unittest.TestCase):
    """Limits of classes."""

    def test_a_class_at_the_limits_passes_and_one_beyond_is_reported(self):
        most = (limits.METHODS_MAX, limits.FIELDS_MAX)
        self.assertEqual(places({"a.h": class_text(*most)}), [])
        self.assertEqual(places({"a.h": "\n" + class_text(most[0] + 1, 0)}), [("a.h", 2)])
        self.assertEqual(places({"a.h": class_text(0, most[1] + 1)}), [("a.h", 1)])

    def test_a_class_stands_in_at_most_two_source_files(self):
        header = "namespace n {\n" + class_text(3, 0) + "}\n"
        files = {"a.h": header} | {
            f"a{i}.cc": f"namespace n {{\nvoid A::F{i}() {{}}\n}}\n" for i in range(3)}
        self.assertEqual(places(files), [("a.h", 2)])
        other = {**files, "a2.cc": "namespace m {\nvoid A::F2() {}\n}\n"}
        self.assertEqual(places(other), [])

    def test_classes_of_one_name_in_different_source_files_are_different(self):
        text = "namespace {\nclass A {\n void F();\n};\nvoid A::F() {}\n}\n"
        self.assertEqual(places({f"a{i}.cc": text for i in range(3)}), [])


class List(unittest.TestCase):
    """Rows of subjects that exceed the limits."""

    LARGE = class_text(50, 30)

    def test_a_row_allows_what_it_says_and_no_more(self):
        row = "# why\nclass A 50 30 0  # since ever\n"
        self.assertEqual(places({LIST: row, "a.h": self.LARGE}), [])
        self.assertEqual(places({LIST: row, "a.h": class_text(51, 30)}), [("a.h", 1)])
        self.assertEqual(places({LIST: row, "a.h": class_text(50, 31)}), [("a.h", 1)])
        self.assertEqual(places({LIST: row, "a.h": class_text(30, 30)}), [])

    def test_a_row_whose_class_is_within_the_limits_or_gone_is_to_be_removed(self):
        found = violations({LIST: "class A 50 30 0\nclass B 50 30 0\n", "a.h": class_text(45, 25)})
        self.assertEqual([(path, line) for path, line, _ in found], [(LIST, 1), (LIST, 2)])
        self.assertTrue(all("remove the row" in message for _, _, message in found))

    def test_a_row_of_a_class_in_a_source_file_names_the_file(self):
        self.assertEqual(places({"a.cc": self.LARGE, LIST: "class a.cc:A 50 30 0\n"}), [])

    def test_functions_and_files_have_rows_too(self):
        body = "  g();\n" * limits.FILE_LINES_MAX
        lines = limits.FILE_LINES_MAX + 2
        text = "void F() {\n" + body + "}\n"
        rows = f"function a.h F {lines}\nfile a.h {lines}\n"
        self.assertEqual(len(places({"a.h": text})), 2)
        self.assertEqual(places({"a.h": text, LIST: rows}), [])
        self.assertEqual(len(places({"a.h": "\n" + text, LIST: rows})), 1)
        self.assertEqual(places({"a.h": "int a;\n", LIST: rows}), [(LIST, 1), (LIST, 2)])

    def test_files_of_tests_may_be_longer(self):
        text = "\n" * limits.TEST_FILE_LINES_MAX
        self.assertEqual(places({"tests/a.h": text, "bench/a.h": text}), [])
        self.assertEqual(places({"a.h": text}), [("a.h", limits.FILE_LINES_MAX + 1)])
        self.assertEqual(places({"tests/a.h": text + "\n"}),
                         [("tests/a.h", limits.TEST_FILE_LINES_MAX + 1)])

    def test_a_folder_has_its_limit_without_its_subfolders(self):
        files = {f"a/{i}.cc": "int a;\n" for i in range(limits.FOLDER_FILES_MAX)}
        self.assertEqual(places({**files, "a/b/c.h": "int a;\n", "a/d.py": "\n"}), [])
        full = {**files, "a/c.h": "int a;\n"}
        self.assertEqual(places(full), [("a", 1)])
        self.assertEqual(places({**full, LIST: "folder a 31\n"}), [])
        self.assertEqual(places({**files, LIST: "folder a 31\n"}), [(LIST, 1)])

    def test_what_is_no_row_is_reported(self):
        self.assertEqual(places({LIST: "class A 1 2\nclasses A 1 2 3\nfile a.h x\n=======\n"}),
                         [(LIST, 1), (LIST, 2), (LIST, 3), (LIST, 4)])


if __name__ == "__main__":
    unittest.main()
