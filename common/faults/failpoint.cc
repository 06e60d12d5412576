#include "common/faults/failpoint.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/sync.h"
#include "common/text/names.h"

namespace ballast {
namespace {

using internal::Failpoint;

constexpr int64_t kSleepMsMax = 24 * 3600 * 1000;

enum class Action : uint8_t { kOff, kKill, kAbort, kSleep, kPause, kReturn };

struct Term {
  double percent = 100;
  uint64_t hits_left = std::numeric_limits<uint64_t>::max();
  Action action = Action::kOff;
  int64_t argument = 0;  // Milliseconds, or the code.
};

struct Point {
  Failpoint* failpoint = nullptr;
  std::vector<Term> terms;
  uint64_t times_set = 0;
  int paused = 0;  // Threads that wait here since it was set.
};

// Lives as long as the process; failpoints register themselves before main.
struct Registry {
  Mutex mu;
  CondVar changed;
  std::map<std::string, Point> points ABSL_GUARDED_BY(mu);
  uint64_t random_state ABSL_GUARDED_BY(mu) = 0;
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Parsing.

absl::Status BadTerm(absl::string_view name, absl::string_view term, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("failpoint ", name, ": term \"", term, "\" ", why));
}

std::optional<absl::StatusCode> ParseCode(absl::string_view text) {
  for (int code = 1; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const auto candidate = static_cast<absl::StatusCode>(code);
    if (text == absl::StatusCodeToString(candidate)) return candidate;
  }
  return std::nullopt;
}

// Cuts "value<mark>" off the front of `text`; false when `mark` is not in it.
bool TakeUntil(char mark, absl::string_view* text, absl::string_view* value) {
  const size_t at = text->find(mark);
  if (at == absl::string_view::npos) return false;
  *value = text->substr(0, at);
  text->remove_prefix(at + 1);
  return true;
}

// Reads "name" or "name(argument)" into `term`; otherwise says what is wrong.
absl::Status ParseAction(const Failpoint& point, absl::string_view whole, absl::string_view text,
                         Term* term) {
  const std::map<absl::string_view, Action> plain = {{"off", Action::kOff},
                                                     {"kill", Action::kKill},
                                                     {"abort", Action::kAbort},
                                                     {"pause", Action::kPause}};
  if (const auto found = plain.find(text); found != plain.end()) {
    term->action = found->second;
    return absl::OkStatus();
  }
  absl::string_view name;
  const bool has_argument = TakeUntil('(', &text, &name) && absl::ConsumeSuffix(&text, ")");
  if (has_argument && name == "sleep") {
    term->action = Action::kSleep;
    if (absl::SimpleAtoi(text, &term->argument) && term->argument >= 0 &&
        term->argument <= kSleepMsMax) {
      return absl::OkStatus();
    }
    return BadTerm(point.name(), whole, "needs 0 to 86400000 milliseconds, as in sleep(250)");
  }
  if (has_argument && name == "return") {
    const std::optional<absl::StatusCode> code = ParseCode(text);
    if (!code)
      return BadTerm(point.name(), whole, "needs a status code, as in return(UNAVAILABLE)");
    if (!point.may_return()) {
      return BadTerm(point.name(), whole, "stands where nothing can be returned");
    }
    term->action = Action::kReturn;
    term->argument = static_cast<int64_t>(*code);
    return absl::OkStatus();
  }
  return BadTerm(point.name(), whole,
                 "is no action; known are off, kill, abort, pause, sleep(milliseconds) and "
                 "return(CODE)");
}

absl::StatusOr<Term> ParseTerm(const Failpoint& point, absl::string_view whole) {
  Term term;
  absl::string_view text = whole, number;
  if (TakeUntil('%', &text, &number) &&
      !(absl::SimpleAtod(number, &term.percent) && term.percent >= 0 && term.percent <= 100)) {
    return BadTerm(point.name(), whole, "needs 0 to 100 before the %");
  }
  if (TakeUntil('*', &text, &number) && !absl::SimpleAtoi(number, &term.hits_left)) {
    return BadTerm(point.name(), whole, "needs a whole number before the *");
  }
  BALLAST_RETURN_IF_ERROR(ParseAction(point, whole, text, &term));
  return term;
}

absl::StatusOr<std::vector<Term>> ParseTerms(const Failpoint& point, absl::string_view text) {
  std::vector<Term> terms;
  for (absl::string_view piece : absl::StrSplit(text, "->")) {
    BALLAST_ASSIGN_OR_RETURN(const Term term, ParseTerm(point, absl::StripAsciiWhitespace(piece)));
    terms.push_back(term);
  }
  return terms;
}

absl::Status UnknownName(absl::string_view name, const std::vector<std::string>& names) {
  const std::string near = DidYouMean(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("this program has no failpoint \"", name, "\"",
                   near.empty() ? absl::StrCat("; it has: ", absl::StrJoin(names, ", "))
                                : absl::StrCat("; did you mean ", near, "?")));
}

// Running.

void Set(std::vector<Term> terms, Point* point) {
  point->failpoint->set_armed(std::any_of(
      terms.begin(), terms.end(), [](const Term& term) { return term.action != Action::kOff; }));
  point->terms = std::move(terms);
  point->paused = 0;
  ++point->times_set;
}

// The term that a hit takes; `off` when there is none.
Term Take(std::vector<Term>* terms, uint64_t* random_state) {
  constexpr double kTwoTo53 = 9007199254740992.0;
  for (Term& term : *terms) {
    if (term.hits_left == 0) continue;
    const double chance = static_cast<double>(NextRandom(random_state) >> 11) / kTwoTo53;
    if (chance * 100 >= term.percent) continue;
    --term.hits_left;
    return term;
  }
  return {};
}

void Pause(Registry* registry, Point* point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mu) {
  const uint64_t times_set = point->times_set;
  ++point->paused;
  registry->changed.NotifyAll();
  while (point->times_set == times_set) registry->changed.Wait(&registry->mu);
}

}  // namespace

namespace internal {

Failpoint::Failpoint(const char* name, bool may_return) : name_(name), may_return_(may_return) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  Point& point = registry.points[name];
  BALLAST_CHECK(point.failpoint == nullptr);  // One name, in both macros.
  point.failpoint = this;
}

absl::Status Failpoint::Hit() {
  Registry& registry = TheRegistry();
  Term term;
  {
    MutexLock lock(&registry.mu);
    Point& point = registry.points.find(name_)->second;
    term = Take(&point.terms, &registry.random_state);
    if (term.action == Action::kPause) Pause(&registry, &point);
  }
  switch (term.action) {
    case Action::kOff:
    case Action::kPause:
      break;
    case Action::kKill:
      raise(SIGKILL);
      break;
    case Action::kAbort:
      std::abort();
    case Action::kSleep:
      BALLAST_LOG(INFO) << "failpoint " << name_ << " sleeps " << term.argument << " ms";
      std::this_thread::sleep_for(std::chrono::milliseconds(term.argument));
      break;
    case Action::kReturn:
      return absl::Status(static_cast<absl::StatusCode>(term.argument),
                          absl::StrCat("failpoint ", name_));
  }
  return absl::OkStatus();
}

}  // namespace internal

std::vector<std::string> Failpoints::Names() {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  std::vector<std::string> names;
  for (const auto& [name, point] : registry.points) names.push_back(name);
  return names;
}

absl::Status Failpoints::Configure(absl::string_view text) {
  const std::vector<std::string> names = Names();
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  std::map<Point*, std::vector<Term>> parsed;
  for (absl::string_view setting : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    absl::string_view name;
    if (!TakeUntil('=', &setting, &name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("failpoint setting \"", setting, "\" is not of the form name=action"));
    }
    name = absl::StripAsciiWhitespace(name);
    const auto point = registry.points.find(std::string(name));
    if (point == registry.points.end()) return UnknownName(name, names);
    BALLAST_ASSIGN_OR_RETURN(parsed[&point->second], ParseTerms(*point->second.failpoint, setting));
  }
  for (auto& [point, terms] : parsed) Set(std::move(terms), point);
  registry.changed.NotifyAll();
  return absl::OkStatus();
}

void Failpoints::Reset() {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  for (auto& [name, point] : registry.points) Set({}, &point);
  registry.changed.NotifyAll();
}

void Failpoints::Seed(uint64_t seed) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  registry.random_state = seed;
}

void Failpoints::WaitForPause(absl::string_view name) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  const auto point = registry.points.find(std::string(name));
  BALLAST_CHECK(point != registry.points.end());
  while (point->second.paused == 0) registry.changed.Wait(&registry.mu);
}

}  // namespace ballast
