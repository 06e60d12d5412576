#include "server/host/supervision.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/text/inert.h"
#include "common/text/names.h"
#include "server/host/notify_socket.h"

namespace ballast::server {
namespace {

// Two signs of life per watchdog time; without a watchdog, the interval for checks of the replay.
constexpr int kBeatsPerWatchdog = 2;
constexpr std::chrono::seconds kBeatMax(5);
// How long the supervisor waits for further progress of a replay.
constexpr absl::string_view kExtend = "EXTEND_TIMEOUT_USEC=120000000\n";

// systemd drops a message above 4 KiB, and a status should be shorter than a page of text.
constexpr size_t kCauseBytesMax = 1000;

std::string Value(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

absl::StatusOr<int64_t> NumberOf(const std::map<std::string, std::string>& environment,
                                 const char* name) {
  const std::string text = Value(environment, name);
  int64_t number = 0;
  if (text.empty()) return 0;
  if (absl::SimpleAtoi(text, &number) && number > 0) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", Quoted(text),
                   ", but must be a number from 1 on; unset it, or let ", "the supervisor set it"));
}

std::chrono::nanoseconds IntervalOf(std::chrono::microseconds watchdog) {
  const std::chrono::nanoseconds longest = kBeatMax;
  if (watchdog.count() == 0) return longest;
  return std::min<std::chrono::nanoseconds>(longest, watchdog / kBeatsPerWatchdog);
}

// `message` as one line without terminal control characters, shortened if it is long.
std::string OneLine(absl::string_view message) {
  std::string line = Inert(absl::StrReplaceAll(message, {{"\n", "; "}}));
  if (line.size() <= kCauseBytesMax) return line;
  size_t cut = kCauseBytesMax;
  while (cut > 0 && (line[cut] & 0xC0) == 0x80) --cut;  // not inside a UTF-8 sequence
  return absl::StrCat(line.substr(0, cut), "...");
}

}  // namespace

void SayFailedStart(const SupervisionOptions& options, const absl::Status& why, int exit_code) {
  if (!options.say) return;
  options.say(absl::StrCat("STATUS=failed to start, exit code ", exit_code, ": ",
                           OneLine(why.message()), "\n"));
}

absl::StatusOr<SupervisionOptions> ReadSupervision(
    const std::map<std::string, std::string>& environment, int64_t self) {
  SupervisionOptions options;
  const std::string name = Value(environment, "NOTIFY_SOCKET");
  if (name.empty()) return options;
  BALLAST_ASSIGN_OR_RETURN(const int64_t watchdog, NumberOf(environment, "WATCHDOG_USEC"));
  BALLAST_ASSIGN_OR_RETURN(const int64_t watched, NumberOf(environment, "WATCHDOG_PID"));
  BALLAST_ASSIGN_OR_RETURN(std::shared_ptr<const NotifySocket> socket, NotifySocket::Open(name));
  if (watched == 0 || watched == self) options.watchdog = std::chrono::microseconds(watchdog);
  // Shared, because std::function copies its captures.
  const auto unheard = std::make_shared<std::atomic<bool>>(false);
  options.say = [socket, unheard](absl::string_view lines) {
    const absl::Status sent = socket->Send(lines);
    if (!sent.ok() && !unheard->exchange(true)) BALLAST_LOG(WARN) << sent.message();
  };
  return options;
}

std::shared_ptr<Supervision> Supervision::Start(SupervisionOptions options, Executor* executor) {
  const std::shared_ptr<Supervision> made(new Supervision(std::move(options), executor));
  made->Post([](Supervision*) { return "STATUS=starting\n"; });
  if (made->options_.say) made->Later();
  return made;
}

Supervision::Supervision(SupervisionOptions options, Executor* executor)
    : options_(std::move(options)), interval_(IntervalOf(options_.watchdog)), strand_(executor) {}

// All messages come from the strand, so a late beat never contradicts a newer message.
void Supervision::Replaying() {
  Post([](Supervision* self) {
    self->replaying_ = true;
    return "STATUS=replaying\n";
  });
}

void Supervision::Serving() {
  Post([](Supervision* self) {
    self->replaying_ = false;
    self->served_ = true;
    return "READY=1\nSTATUS=serving\n";
  });
}

void Supervision::Stopping() {
  Post([](Supervision* self) {
    self->replaying_ = false;
    return self->served_ ? "STOPPING=1\nSTATUS=stopping\n" : "STATUS=stopping\n";
  });
}

void Supervision::Post(const char* (*turn)(Supervision*)) {
  if (!options_.say) return;
  strand_.Post([self = shared_from_this(), turn] { self->options_.say(turn(self.get())); });
}

void Supervision::Later() {
  strand_.PostAfter(interval_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Beat();
  });
}

void Supervision::Beat() {
  std::string lines;
  if (options_.watchdog.count() > 0) lines = "WATCHDOG=1\n";
  const uint64_t extents = replayed_extents_;
  if (replaying_ && extents != seen_extents_) {
    seen_extents_ = extents;
    absl::StrAppend(&lines, kExtend, "STATUS=replaying, ", extents, " extents read\n");
  }
  if (!lines.empty()) options_.say(lines);
  Later();
}

}  // namespace ballast::server
