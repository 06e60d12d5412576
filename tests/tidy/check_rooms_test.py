"""Tests of tools/check_rooms.py: planted edges are found at their line, permitted ones pass."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_rooms  # noqa: E402  (found only after the line above)
import python_rooms  # noqa: E402


def violations(path, text):
    """Returns [(line, message)] for one file of the given content."""
    return list(check_rooms.check_cpp(pathlib.PurePosixPath(path), text))


class RoomTable(unittest.TestCase):
    """Edges between rooms."""

    FORBIDDEN = (
        ("common/base/log.cc", '"common/io/arena.h"'),
        ("common/io/file.cc", '"common/tensor/dtype.h"'),
        ("common/tensor/layout.h", '"common/job/job_spec.h"'),
        ("common/job/job_spec.cc", '"ballast/v1/types.pb.h"'),
        ("common/metrics/metrics.h", "<prometheus/counter.h>"),
        ("proto/convert/job_convert.cc", '"server/round/round_fsm.h"'),
        ("server/simd/isa.h", '"server/optim/adamw.h"'),
        ("server/optim/adamw.cc", '"server/reduce/accumulate.h"'),
        ("server/optim/adamw.cc", '"common/io/arena.h"'),
        ("server/optim/adamw.cc", '"absl/container/inlined_vector.h"'),
        ("server/optim/adamw.cc", '"common/base/sync.h"'),
        ("server/reduce/accumulate.cc", "<mutex>"),
        ("server/reduce/accumulate.cc", '"server/optim/adamw.h"'),
        ("server/tier/dram_tier.cc", '"server/engine/round_engine.h"'),
        ("server/state/extent.cc", '"server/round/round_types.h"'),
        ("server/durability/log_writer.cc", '"server/state/extent.h"'),
        ("server/engine/round_driver.cc", '"server/rpc/data_service.h"'),
        ("server/engine/round_driver.cc", '"server/home/home_job.h"'),
        ("server/engine/round_driver.cc", "<grpcpp/grpcpp.h>"),
        ("server/engine/round_driver.cc", '"ballast/v1/data.pb.h"'),
        ("server/engine/round_driver.cc", '"google/protobuf/message.h"'),
        ("server/config/loader.cc", '"ballast/v1/control.pb.h"'),
        ("server/home/membership.cc", '"server/peer/peer_client.h"'),
        ("server/peer/peer_caller.cc", "<grpcpp/client_context.h>"),
        ("server/admin/http.cc", '"server/engine/round_engine.h"'),
        ("server/service/control_service.cc", '"server/server.h"'),
        ("server/service/control_service.cc", "<prometheus/counter.h>"),
        ("client/cpp/session/session.cc", '"server/round/round_types.h"'),
        ("client/cpp/ballast/client.h", '"common/tensor/dtype.h"'),
        ("client/python/binding/module.cc", '"ballast/v1/data.pb.h"'),
        ("client/python/binding/module.cc", '"common/job/job_spec.h"'),
        ("examples/push_pull.cc", '"common/base/sync.h"'),
        ("tools/ballastctl.cc", '"tests/support/cluster.h"'),
    )

    PERMITTED = (
        ("common/job/job_spec.cc", '"common/tensor/layout.h"'),
        ("common/base/log.cc", "<atomic>"),
        ("common/io/arena.cc", "<sys/mman.h>"),
        ("proto/convert/frame_codec.cc", "<grpcpp/support/byte_buffer.h>"),
        ("proto/convert/job_convert.cc", '"ballast/v1/types.pb.h"'),
        ("server/reduce/accumulate.cc", '"server/simd/isa.h"'),
        ("server/engine/round_driver.cc", '"server/tier/dram_tier.h"'),
        ("server/config/loader.cc", '"ballast/config/v1/server.pb.h"'),
        ("server/config/loader.cc", "<yaml-cpp/yaml.h>"),
        ("server/service/data_service.cc", '"server/directory/job_directory.h"'),
        ("server/main.cc", '"server/rpc/data_service.h"'),
        ("client/cpp/ballast/client.h", '"ballast/error.h"'),
        ("client/cpp/session/session.cc", '"ballast/v1/control.grpc.pb.h"'),
        ("client/python/binding/module.cc", "<nanobind/nanobind.h>"),
        ("examples/push_pull.cc", '"ballast/client.h"'),
        ("tests/server/round/round_fsm_test.cc", "<gtest/gtest.h>"),
    )

    def test_each_forbidden_edge_is_reported_at_its_line(self):
        for path, include in self.FORBIDDEN:
            with self.subTest(path=path, include=include):
                found = violations(path, f"// A file.\n#include <vector>\n#include {include}\n")
                self.assertEqual([line for line, _ in found], [3])

    def test_permitted_edges_pass(self):
        for path, include in self.PERMITTED:
            with self.subTest(path=path, include=include):
                self.assertEqual(violations(path, f"#include {include}\n"), [])

    def test_includes_in_comments_and_strings_do_not_count(self):
        text = '// #include "server/rpc/x.h"\n/*\n#include "server/rpc/x.h"\n*/\n' \
               'const char* a = "#include <grpcpp/grpcpp.h>";\n' \
               'const char* b = R"(\n#include <grpcpp/grpcpp.h>\n)";\n'
        self.assertEqual(violations("server/round/a.cc", text), [])

    def test_unknown_rooms_and_includes_are_errors(self):
        self.assertEqual(len(violations("server/extra/a.cc", "")), 1)
        self.assertEqual(len(violations("lib/a.cc", "")), 1)
        self.assertEqual(len(violations("common/base/a.cc", '#include "sync.h"\n')), 1)
        self.assertEqual(len(violations("common/base/a.cc", "#include <boost/any.hpp>\n")), 1)

    def test_the_table_names_only_rooms_of_the_table(self):
        known = set(check_rooms.ROOMS) | {check_rooms.WIRE, check_rooms.CONFIG}
        for name, room in check_rooms.ROOMS.items():
            self.assertLessEqual(set(room.rooms), known, name)


class Libraries(unittest.TestCase):
    """The libraries that CMake links."""

    def links(self, folder, text):
        files = {"common/base": "ballast_room(NAME base SOURCES a.cc)\n",
                 "server/durability": "ballast_room(NAME durability SOURCES log/a.cc)\n",
                 "server/engine": "ballast_room(NAME engine SOURCES a.cc)\n", folder: text}
        return [(str(path), line) for path, line, _ in check_rooms.check_libraries(
            {pathlib.PurePosixPath(name, "CMakeLists.txt"): text for name, text in files.items()})]

    def test_a_room_links_only_rooms_of_its_row(self):
        for text in ("ballast_room(NAME meta SOURCES a.cc\n  DEPS Ballast::base Ballast::engine)\n",
                     "target_link_libraries(ballast_meta PRIVATE Ballast::engine)\n",
                     "ballast_room( NAME  meta SOURCES a.cc DEPS Ballast::engine)\n",
                     "target_link_libraries (\n  ballast_meta PRIVATE Ballast::engine)\n"):
            self.assertEqual(self.links("server/meta", text), [("server/meta/CMakeLists.txt", 1)])
        allowed = "# No Ballast::engine.\nballast_room(NAME meta SOURCES a.cc DEPS Ballast::base)\n"
        self.assertEqual(self.links("server/meta", allowed), [])

    def test_a_library_may_hold_several_rooms(self):
        engine = "ballast_room(NAME extents SOURCES a.cc DEPS Ballast::durability)\n"
        self.assertEqual(self.links("server/extents", engine), [], "only its log is permitted")
        self.assertEqual(self.links("client/cpp", "ballast_room(NAME client SOURCES job/a.cc\n"
                                    "  DEPS Ballast::base Ballast::engine)\n"),
                         [("client/cpp/CMakeLists.txt", 1)])


class PureCore(unittest.TestCase):
    """Files that must not depend on threads, time, chance, the system or hash order."""

    def test_each_impure_include_or_token_is_reported(self):
        planted = (
            "#include <thread>", "#include <mutex>", "#include <atomic>", "#include <random>",
            "#include <fcntl.h>", "#include <sys/stat.h>", '#include "common/base/sync.h"',
            '#include "absl/container/flat_hash_map.h"', "std::atomic<int> a;", "Mutex mu;",
            "auto t = std::chrono::steady_clock::now();", "int a = rand();",
            "auto t = time(nullptr);", "auto t = ::time(nullptr);", "int f = open(path, 0);",
            "absl::flat_hash_map<int, int> m;", "std::unordered_map<int, int> m;",
            'auto e = std::getenv("X");')
        for path in ("server/round/round_fsm.cc", "server/home/home_job.h", "common/job/a.cc"):
            for line in planted:
                with self.subTest(path=path, line=line):
                    self.assertEqual([n for n, _ in violations(path, f"\n{line}\n")], [2])

    def test_words_that_only_look_impure_pass(self):
        text = ("// Calls time() never; a mutex is not needed.\nint64_t round_time(int a);\n"
                "fsm.open(1);\nstd::map<int, int> reopen(int a);\nint64_t timeout_ms;\n"
                'Fail("the mutex");\n')
        self.assertEqual(violations("server/round/round_fsm.cc", text), [])

    def test_other_files_of_these_rooms_may_use_threads(self):
        self.assertEqual(violations("server/engine/round_driver.cc", "#include <atomic>\n"), [])


class Python(unittest.TestCase):
    """Imports between the rooms of the Python package."""

    def planted(self, path, text):
        """Returns the lines of the violations in a module of the package."""
        return [line for line, _ in python_rooms.check(python_rooms.PACKAGE + path, text)]

    def test_an_import_outside_of_the_table_is_reported_at_its_line(self):
        for path, text in (
                ("session.py", "import os\nfrom ballast import torch\n"),
                ("session.py", "def f():\n    from ballast.torch.rounds import Rounds\n"),
                ("session.py", "\nimport ballast.launcher.servers\n"),
                ("torch/rounds.py", "\nfrom ballast import _rejoin\n"),
                ("ds_config/check.py", "\nfrom ballast.launcher import machine\n"),
                ("monitor/events.py", "\nfrom ballast.deepspeed import engine\n")):
            with self.subTest(path=path, text=text):
                self.assertEqual(self.planted(path, text), [2])

    def test_imports_of_the_table_and_of_other_packages_pass(self):
        text = "import torch\nfrom ballast.errors import BadArgument\nfrom ballast.torch import a\n"
        self.assertEqual(self.planted("torch/rounds.py", text), [])
        self.assertEqual(self.planted("deepspeed/engine.py", text), [])

    def test_a_row_names_only_rows_above_it(self):
        above = []
        for room, allowed in python_rooms.ROOMS.items():
            self.assertLessEqual(set(allowed), set(above), room)
            above.append(room)


class Tree(unittest.TestCase):
    """The walk over a tree without git."""

    def test_a_planted_violation_in_an_exported_tree_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "server/round").mkdir(parents=True)
            (root / "server/round/a.h").write_text('#include "server/rpc/b.h"\n')
            (root / "proto/ballast/v1").mkdir(parents=True)
            (root / "proto/ballast/v1/data.proto").write_text('import "server/a.proto";\n')
            (root / "build").mkdir()
            (root / "build/ignored.cc").write_text('#include "nowhere.h"\n')
            found = [(str(path), line) for path, line, _ in check_rooms.check_tree(root)]
        self.assertEqual(found, [("proto/ballast/v1/data.proto", 1), ("server/round/a.h", 1)])


if __name__ == "__main__":
    unittest.main()
