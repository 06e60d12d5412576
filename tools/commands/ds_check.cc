// `ballastctl ds check`: the verdict on a ds_config.json, which the Python package gives.
// Comes from: ballastctl. Goes to: `ballast.ds_config` in a Python that takes this process's place
// (docs/decisions/027-ds-config-stays-in-python.md). Thread safety: the main thread.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "tools/ctl/command.h"

namespace ballast::tools {
namespace {

const char kCheckUsage[] =
    R"(usage: ballastctl ds check FILE [--all] [-o table|json|yaml] [--world N]
                           [--arguments ARGUMENTS.json]

Says what Ballast does with each key of a DeepSpeed ds_config.json, and what to write in place of
what is refused. Needs no server, but Python 3.10: the one that BALLAST_PYTHON names, else that of
the checkout's .venv, else python3 of PATH. The package ballast need not be installed there.

  --all                       each key with its value, and where that comes from
  --world N                   number of trainers, for the batch sizes
  --arguments ARGUMENTS.json  fills "auto": what TrainingArguments.to_json_string() gives
  -o table|json|yaml          form of the output (default: table)

Exit codes: 0 nothing is refused, 1 something is, 2 wrong usage or a file that cannot be read, 4 no
Python was found, or one that cannot read the package.
)";

// The folder of the shell is no place for packages, although `python -c` looks there first. The
// first argument is the folder of the package that belongs to this program, or empty. Python 2 has
// to read this, too.
const char kProgram[] =
    R"py(import sys
if sys.path[0] == "":
    del sys.path[0]
def fail(why):
    sys.stderr.write("ballastctl: %s %s; set BALLAST_PYTHON to a Python that has the package "
                     "ballast, such as .venv/bin/python\n" % (sys.executable, why))
    sys.exit(4)
if sys.version_info < (3, 10):
    fail("is Python %d.%d, and ballast needs 3.10" % sys.version_info[:2])
beside = sys.argv.pop(1)
try:
    import ballast.ds_config
except ImportError:
    if beside:
        for name in [name for name in sys.modules if name.split(".")[0] == "ballast"]:
            del sys.modules[name]
        sys.path.insert(0, beside)
        sys.dont_write_bytecode = True
try:
    from ballast.ds_config.__main__ import main
except ImportError as error:
    fail("cannot import ballast.ds_config (%s)" % error)
sys.exit(main(sys.argv[1:], "ballastctl ds check"))
)py";

// Where this program and the package are: in a checkout, or in an installation.
struct Places {
  std::string package;  // the folder to import it from; empty: not known
  std::string python;   // empty: that of PATH
};

Places FindPlaces() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path prefix = program.parent_path().parent_path();
  const std::filesystem::path checkout = prefix.parent_path().parent_path();
  const auto has = [&error](const std::filesystem::path& file) {
    return std::filesystem::exists(file, error);
  };
  const std::filesystem::path installed = prefix / "share/ballast/python";
  if (has(installed / "ballast/ds_config")) return {installed.string(), ""};
  const std::filesystem::path source = checkout / "client/python";
  if (!has(source / "ballast/ds_config")) return {};
  const std::filesystem::path python = checkout / ".venv/bin/python";
  return {source.string(), has(python) ? python.string() : ""};
}

// Becomes Python; returns only on failure.
int Become(const std::string& python, const std::string& package,
           const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {python, "-c", kProgram, package};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  std::cerr << "ballastctl: ds check needs Python, and " << python << " cannot be started ("
            << std::strerror(errno) << "); set BALLAST_PYTHON to a Python 3.10 or newer\n";
  return kNotFound;
}

// This process becomes the Python that kCheckUsage says, so that its exit code is ballastctl's: as
// there, and 4 also for a Python too old. Returns only where no Python takes over: 0 after
// a help text, 4 without Python; an error's text is on stderr.
int DsCheckMain(const std::vector<std::string>& arguments) {
  const std::string last = arguments.empty() ? "" : arguments.back();
  if (last == "--help" || last == "-h") {
    std::cout << kCheckUsage;
    return 0;
  }
  const char* const named = std::getenv("BALLAST_PYTHON");
  const Places places = FindPlaces();
  std::string python = places.python.empty() ? "python3" : places.python;
  if (named != nullptr && named[0] != '\0') python = named;
  return Become(python, places.package, arguments);
}

}  // namespace

std::vector<Command> DsCommands() {
  return {
      {.name = "ds check",
       .words = "FILE [-o table|json|yaml] [--world N]",
       .help = "say what becomes of each key of a ds_config.json",
       .asks_servers = false,
       .run_unparsed = DsCheckMain,
       .own_flags = "--all --world --arguments"},
  };
}

}  // namespace ballast::tools
