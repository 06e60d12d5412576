// Named places in the code where a test can make the process die, wait or fail:
//   BALLAST_FAILPOINT("wal.after_append");          // in any function
//   BALLAST_FAILPOINT_RETURN("wal.before_sync");    // in one that returns a Status or StatusOr
// They stay in release builds: an unset failpoint costs one relaxed load.
//
// The text of a failpoint is as in fail-rs and gofail: terms joined by "->", each
//   [percent%][count*]action
// A hit takes the first term that still has a count left and whose chance comes up; a hit that
// finds none does nothing. Actions:
//   off            nothing
//   kill           SIGKILL to this process, as the kernel's out-of-memory killer would
//   abort          SIGABRT
//   sleep(250)     waits 250 milliseconds, and the log says so when it begins
//   pause          waits until the failpoint is set again
//   return(CODE)   returns a Status of this code, UNAVAILABLE for example
// "1*kill" kills at the first hit only, "3*off->kill" at the fourth, "5%kill" at one in twenty.
//
// Comes from: every room. Goes to: the process itself. Only main reads the environment
// (BALLAST_FAILPOINTS) and hands its text to Failpoints::Configure.
// Thread safety: everything here may be called from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace ballast {

// All failpoints of the process.
class Failpoints {
 public:
  // Names of every failpoint in this program, ascending, hit or not.
  static std::vector<std::string> Names();
  // Sets the failpoints of `text`, "name=terms;name2=terms", and leaves the others as they are. An
  // error, INVALID_ARGUMENT with the wrong name or term and the known ones, changes nothing.
  static absl::Status Configure(absl::string_view text);
  // Turns all off; threads that pause continue.
  static void Reset();
  // Restarts the chances of "%". They are those of seed 0 without this call.
  static void Seed(uint64_t seed);
  // Returns when a thread pauses at `name`, at once if one does.
  static void WaitForPause(absl::string_view name);
};

namespace internal {

// One failpoint; registers itself before main and lives as long as the process.
class Failpoint {
 public:
  Failpoint(const char* name, bool may_return);
  Failpoint(const Failpoint&) = delete;
  Failpoint& operator=(const Failpoint&) = delete;

  void Pass() {
    if (armed_.load(std::memory_order_relaxed)) [[unlikely]]
      Hit().IgnoreError();
  }
  absl::Status Check() {
    if (armed_.load(std::memory_order_relaxed)) [[unlikely]]
      return Hit();
    return absl::OkStatus();
  }

  const char* name() const { return name_; }
  bool may_return() const { return may_return_; }
  void set_armed(bool armed) { armed_.store(armed, std::memory_order_relaxed); }

 private:
  absl::Status Hit();

  const char* const name_;
  const bool may_return_;  // In a function that can return a Status.
  std::atomic<bool> armed_{false};
};

// A string literal as a template argument.
template <size_t kBytes>
struct FailpointName {
  constexpr FailpointName(const char (&text)[kBytes]) { std::copy_n(text, kBytes, chars); }
  char chars[kBytes];
};

// The object of a name. A static member of a template: naming it anywhere in the code registers the
// failpoint when the program starts, also when that code never runs.
template <FailpointName kName, bool kMayReturn>
struct FailpointAt {
  static inline Failpoint point{kName.chars, kMayReturn};
};

}  // namespace internal
}  // namespace ballast

// A place that can do everything but return. `name` is a literal: room, dot, place.
#define BALLAST_FAILPOINT(name) ::ballast::internal::FailpointAt<name, false>::point.Pass()

// A place that can also return an error from the enclosing function.
#define BALLAST_FAILPOINT_RETURN(name) \
  BALLAST_RETURN_IF_ERROR((::ballast::internal::FailpointAt<name, true>::point.Check()))
