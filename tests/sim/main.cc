// ballast_sim: runs seeds of the simulator and says which are red. docs/simulator.md; kUsage says
// with which options.
// Comes from: the command line. Goes to: standard output; kUsage names the exit codes.
// Thread safety: one thread.
#include <malloc.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "tests/sim/simulation.h"

namespace ballast::sim {
namespace {

// The rarest dies by one in some 1,200: docs/simulator.md.
constexpr uint64_t kMutantSeeds = 5000;
constexpr uint64_t kRunTwiceOneIn = 20;

constexpr char kUsage[] =
    R"(usage: ballast_sim [--seconds N] [--seeds A..B | --seed S | --seeds-of FILE]
                   [--trace] [--twice] [--cover] [--json]
       ballast_sim --mutant M [--seeds A..B] [--trace]
       ballast_sim --mutants [--seconds N] [--json]
       ballast_sim --list-mutants | --help

  --seconds N      seeds from 1 on, or of --seeds, for so long
  --seeds A..B     these seeds; 1..1000 without any option
  --seed S         one seed
  --seeds-of FILE  the seeds that begin its lines; '#' begins a comment
  --trace          every event
  --twice          every seed twice; the two runs must be equal
  --cover          how many seeds met which situation and which kind of fault
  --json           one line of JSON on standard output; red seeds on standard error
  --mutant M       a driver that breaks one rule, until a seed kills it; with --trace one seed
  --mutants        all of them; with --seconds after so much time of seeds
  --list-mutants   their names and what they do

Exit code: 0; 1 when something is red, a mutant survives, or with --cover something was met by no
seed; 2 for wrong options.
)";

struct Options {
  double seconds = 0;  // 0: no limit
  uint64_t first = 1;
  uint64_t last = UINT64_MAX;
  std::vector<uint64_t> listed;  // instead of first to last
  bool trace = false;
  bool json = false;
  bool all_mutants = false;
  bool list_mutants = false;
  bool twice = false;  // every seed
  bool cover = false;
  bool help = false;
  Mutant mutant = Mutant::kNone;
};

struct Totals {
  uint64_t schedules = 0;
  uint64_t red = 0;
  uint64_t refused = 0;
  uint64_t events = 0;
  uint64_t mutants = 0;
  uint64_t mutants_killed = 0;
  std::array<uint64_t, static_cast<size_t>(Cover::kCount)> met{};  // seeds that met it
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool ParseSeeds(const std::string& text, Options* options) {
  const std::vector<std::string> parts = absl::StrSplit(text, "..");
  return parts.size() == 2 && absl::SimpleAtoi(parts[0], &options->first) &&
         absl::SimpleAtoi(parts[1], &options->last) && options->first <= options->last;
}

bool ReadSeeds(const char* path, Options* options) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string text = line.substr(0, line.find('#'));
    std::istringstream words(text);
    uint64_t seed = 0;
    if (words >> seed) options->listed.push_back(seed);
  }
  return !options->listed.empty();
}

bool ParseOption(const std::string& name, const char* value, Options* options, bool* took_value) {
  *took_value = false;
  if (name == "--help") return options->help = true;
  if (name == "--trace") return options->trace = true;
  if (name == "--json") return options->json = true;
  if (name == "--mutants") return options->all_mutants = true;
  if (name == "--list-mutants") return options->list_mutants = true;
  if (name == "--twice") return options->twice = true;
  if (name == "--cover") return options->cover = true;
  *took_value = true;
  if (value == nullptr) return false;
  if (name == "--seconds") {
    return absl::SimpleAtod(value, &options->seconds) && options->seconds > 0;
  }
  if (name == "--seeds") return ParseSeeds(value, options);
  if (name == "--seeds-of") return ReadSeeds(value, options);
  if (name == "--seed") {
    const bool ok = absl::SimpleAtoi(value, &options->first);
    options->last = options->first;
    return ok;
  }
  if (name != "--mutant") return false;
  const MutantInfo* const info = FindMutant(value);
  if (info != nullptr) options->mutant = info->mutant;
  return info != nullptr;
}

const char* NameOf(Mutant mutant) {
  for (const MutantInfo& info : kMutants) {
    if (info.mutant == mutant) return info.name;
  }
  return "none";
}

// Runs one seed, some of them twice; a difference between the two is red.
Outcome RunChecked(uint64_t seed, Mutant mutant, const Options& options) {
  Outcome outcome = RunSeed(seed, mutant, options.trace);
  const bool twice = options.twice || (mutant == Mutant::kNone && Mix(seed) % kRunTwiceOneIn == 0);
  if (!twice || options.trace || !outcome.red.empty()) return outcome;
  if (RunSeed(seed, mutant, false).hash != outcome.hash) {
    outcome.red = "two runs of the same seed differ";
  }
  return outcome;
}

void ReportRed(std::FILE* to, uint64_t seed, Mutant mutant, const Outcome& outcome) {
  const std::string with =
      mutant == Mutant::kNone ? "" : absl::StrCat(" --mutant ", NameOf(mutant));
  std::fprintf(to, "RED %s\n    %s\n    repeat: ballast_sim --seed %llu --trace%s\n",
               Describe(DrawSwarm(seed)).c_str(), outcome.red.c_str(),
               static_cast<unsigned long long>(seed), with.c_str());
}

void RunOne(uint64_t seed, const Options& options, Totals* totals) {
  if (options.trace) std::printf("%s\n", Describe(DrawSwarm(seed)).c_str());
  const Outcome outcome = RunChecked(seed, options.mutant, options);
  ++totals->schedules;
  totals->events += outcome.events;
  for (size_t i = 0; i < outcome.met.size(); ++i) totals->met[i] += outcome.met[i] > 0 ? 1 : 0;
  if (!outcome.refusal.empty()) {
    ++totals->refused;
    if (options.trace) std::printf("refused: %s\n", outcome.refusal.c_str());
  }
  if (outcome.red.empty()) return;
  ++totals->red;
  if (totals->red > 20) return;
  ReportRed(options.json ? stderr : stdout, seed, options.mutant, outcome);
}

void RunSeeds(const Options& options, Totals* totals) {
  for (const uint64_t seed : options.listed) RunOne(seed, options, totals);
  if (!options.listed.empty()) return;
  const double until = options.seconds > 0 ? Seconds() + options.seconds : 0;
  for (uint64_t seed = options.first; seed <= options.last; ++seed) {
    if (until > 0 && Seconds() >= until) return;
    RunOne(seed, options, totals);
    if (totals->red > 0 && options.mutant != Mutant::kNone) return;  // It is dead.
  }
}

// Returns after how many seeds a mutant dies; 0 when it survives.
uint64_t SeedsToKill(Mutant mutant, const Options& options, std::string* how) {
  const uint64_t last = std::min(options.last, options.first + kMutantSeeds - 1);
  for (uint64_t seed = options.first; seed <= last; ++seed) {
    const Outcome outcome = RunSeed(seed, mutant, false);
    // A seed that is red without the mutant says nothing about it.
    if (outcome.red.empty() || !RunSeed(seed, Mutant::kNone, false).red.empty()) continue;
    *how = outcome.red;
    return seed - options.first + 1;
  }
  return 0;
}

void RunMutant(Mutant mutant, const Options& options, Totals* totals) {
  std::string how;
  const uint64_t seeds = SeedsToKill(mutant, options, &how);
  ++totals->mutants;
  totals->mutants_killed += seeds > 0 ? 1 : 0;
  if (options.json) return;
  if (seeds > 0) {
    std::printf("%-24s killed after %5llu seeds: %.120s\n", NameOf(mutant),
                static_cast<unsigned long long>(seeds), how.c_str());
  } else {
    std::printf("%-24s SURVIVES %llu seeds\n", NameOf(mutant),
                static_cast<unsigned long long>(kMutantSeeds));
  }
}

std::string JsonCover(const Totals& totals) {
  std::string text;
  for (size_t i = 0; i < totals.met.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", "\"", CoverName(static_cast<Cover>(i)),
                    "\": ", totals.met[i]);
  }
  return absl::StrCat(", \"met\": {", text, "}");
}

// `seconds`: of the schedules, without the mutants.
void PrintTotals(const Options& options, const Totals& totals, double seconds) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  if (options.json) {
    std::printf(
        "{\"schedules\": %llu, \"red\": %llu, \"seconds\": %.3f, \"refused\": %llu, "
        "\"mutants\": %llu, \"mutants_killed\": %llu%s}\n",
        number(totals.schedules), number(totals.red), seconds, number(totals.refused),
        number(totals.mutants), number(totals.mutants_killed),
        options.cover ? JsonCover(totals).c_str() : "");
    return;
  }
  if (totals.schedules > 0) {
    std::printf("%llu schedules, %llu red, %llu refused, %llu events, %.1f s, %.0f schedules/s\n",
                number(totals.schedules), number(totals.red), number(totals.refused),
                number(totals.events), seconds, static_cast<double>(totals.schedules) / seconds);
  }
  for (size_t i = 0; i < totals.met.size() && options.cover; ++i) {
    std::printf("%-30s met by %llu seeds\n", CoverName(static_cast<Cover>(i)),
                number(totals.met[i]));
  }
}

// False after it has said which option is wrong.
bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    bool took_value = false;
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (!ParseOption(argv[i], value, options, &took_value)) {
      std::fprintf(stderr, "wrong option or value: %s\n%s", argv[i], kUsage);
      return false;
    }
    i += took_value ? 1 : 0;
  }
  const bool hunts = options->all_mutants || options->mutant != Mutant::kNone;
  if (options->seconds == 0 && options->last == UINT64_MAX && !hunts) {
    options->last = options->first + 999;
  }
  return true;
}

// Sets up this process for millions of short lives.
void PrepareProcess() {
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  SetMinLogSeverity(static_cast<LogSeverity>(3));
  // Arenas of 2 MiB are cheap when only the pages that are touched get memory.
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  // Disks come and go with every seed; their memory need not go back to the system each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 28);
  mallopt(M_TRIM_THRESHOLD, 1 << 28);
}

// Seeds, then mutants, as the options say. Returns the process's exit code.
int Run(const Options& options) {
  const double begin = Seconds();
  Totals totals;
  const bool hunts_one = options.mutant != Mutant::kNone && !options.trace;
  if (!hunts_one && (!options.all_mutants || options.seconds > 0)) RunSeeds(options, &totals);
  const double end = Seconds();
  if (hunts_one) RunMutant(options.mutant, options, &totals);
  for (const MutantInfo& info : kMutants) {
    if (options.all_mutants) RunMutant(info.mutant, options, &totals);
  }
  PrintTotals(options, totals, end - begin);
  const bool all_met = std::find(totals.met.begin(), totals.met.end(), 0u) == totals.met.end();
  const bool good = totals.mutants == totals.mutants_killed && totals.red == 0;
  return good && (all_met || !options.cover) ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) return 2;
  if (options.help) {
    std::printf("%s", kUsage);
    return 0;
  }
  if (options.list_mutants) {
    for (const MutantInfo& info : kMutants) std::printf("%-24s %s\n", info.name, info.what);
    return 0;
  }
  PrepareProcess();
  return Run(options);
}

}  // namespace
}  // namespace ballast::sim

int main(int argc, char** argv) { return ballast::sim::Main(argc, argv); }
