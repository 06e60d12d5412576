// Supervision and NotifySocket: the messages to a supervisor's socket, the allowed values of the
// variables, and an executor that hangs.
#include "server/host/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/sync.h"
#include "common/base/utf8.h"
#include "common/threads/thread_executor.h"
#include "server/host/notify_socket.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

constexpr std::chrono::milliseconds kWatchdog(10);
// So many beats of a healthy executor are proof that another one would have had its own.
constexpr size_t kManyBeats = 20;

bool WaitFor(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A server's messages, in order.
class Ear {
 public:
  SupervisionOptions Options() {
    SupervisionOptions options;
    options.watchdog = kWatchdog;
    options.say = [this](absl::string_view lines) {
      MutexLock lock(&mu_);
      heard_.emplace_back(lines);
    };
    return options;
  }
  std::vector<std::string> heard() const {
    MutexLock lock(&mu_);
    return heard_;
  }
  size_t Count(absl::string_view text) const {
    size_t count = 0;
    for (const std::string& lines : heard()) count += absl::StrContains(lines, text) ? 1 : 0;
    return count;
  }
  bool Await(absl::string_view text, size_t count = 1) const {
    return WaitFor([&] { return Count(text) >= count; });
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
};

TEST(Supervision, SaysWhatTheServerDoesInOrder) {
  Ear ear;
  ThreadExecutor executor("round", 2);
  const auto supervision = Supervision::Start(ear.Options(), &executor);
  supervision->Replaying();
  supervision->Serving();
  supervision->Stopping();
  executor.Shutdown();
  std::vector<std::string> words = ear.heard();
  std::erase(words, "WATCHDOG=1\n");
  EXPECT_THAT(words,
              testing::ElementsAre("STATUS=starting\n", "STATUS=replaying\n",
                                   "READY=1\nSTATUS=serving\n", "STOPPING=1\nSTATUS=stopping\n"));
}

TEST(Supervision, AServerThatNeverServedDoesNotSayThatItStops) {
  Ear ear;
  ThreadExecutor executor("round", 2);
  const auto supervision = Supervision::Start(ear.Options(), &executor);
  supervision->Replaying();
  supervision->Stopping();
  executor.Shutdown();
  EXPECT_EQ(ear.Count("STATUS=stopping\n"), 1u);
  EXPECT_EQ(ear.Count("STOPPING"), 0u);
}

TEST(Supervision, AReplayAsksForTimeOnlyWhileItMakesProgress) {
  Ear ear;
  ThreadExecutor executor("round", 1);
  const auto supervision = Supervision::Start(ear.Options(), &executor);
  supervision->Replaying();
  ASSERT_TRUE(ear.Await("WATCHDOG=1", 3));
  EXPECT_EQ(ear.Count("EXTEND_TIMEOUT_USEC"), 0u);
  supervision->replayed_extents()->fetch_add(7);
  ASSERT_TRUE(ear.Await("EXTEND_TIMEOUT_USEC=120000000\nSTATUS=replaying, 7 extents read\n"));
  ASSERT_TRUE(ear.Await("WATCHDOG=1", ear.Count("WATCHDOG=1") + 3));
  EXPECT_EQ(ear.Count("EXTEND_TIMEOUT_USEC"), 1u);
  supervision->Serving();
  ASSERT_TRUE(ear.Await("READY=1"));
  supervision->replayed_extents()->fetch_add(1);  // A job that rested: the server has started.
  ASSERT_TRUE(ear.Await("WATCHDOG=1", ear.Count("WATCHDOG=1") + 3));
  EXPECT_EQ(ear.Count("EXTEND_TIMEOUT_USEC"), 1u);
  executor.Shutdown();
}

TEST(Supervision, AnExecutorThatHangsGivesNoSignOfLife) {
  Ear ear, healthy_ear;
  ThreadExecutor executor("round", 2), healthy("healthy", 1);
  const auto supervision = Supervision::Start(ear.Options(), &executor);
  const auto control = Supervision::Start(healthy_ear.Options(), &healthy);
  ASSERT_TRUE(ear.Await("WATCHDOG=1", 2));
  std::atomic<int> hanging{0};
  std::atomic<bool> hang{true};
  for (int i = 0; i < 2; ++i) {
    executor.Post([&] {
      ++hanging;
      hang.wait(true);
    });
  }
  ASSERT_TRUE(WaitFor([&] { return hanging == 2; }));
  const size_t beats = ear.Count("WATCHDOG=1");
  EXPECT_TRUE(healthy_ear.Await("WATCHDOG=1", healthy_ear.Count("WATCHDOG=1") + kManyBeats));
  EXPECT_EQ(ear.Count("WATCHDOG=1"), beats);
  hang = false;
  hang.notify_all();
  EXPECT_TRUE(ear.Await("WATCHDOG=1", beats + 1));
  executor.Shutdown();
  healthy.Shutdown();
}

TEST(Supervision, WithoutASupervisorNothingIsSaid) {
  const auto options = ReadSupervision({{"WATCHDOG_USEC", "1000"}}, getpid());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->say);
  ThreadExecutor executor("round", 1);
  const auto supervision = Supervision::Start(*options, &executor);
  supervision->Serving();
  executor.Shutdown();
}

// --- a failed start -----------------------------------------------------------------------------

// What SayFailedStart() says of `message`.
std::string SaidOf(const std::string& message) {
  std::string said;
  SupervisionOptions options;
  options.say = [&said](absl::string_view lines) { absl::StrAppend(&said, lines); };
  SayFailedStart(options, absl::DataLossError(message), 4);
  return said;
}

TEST(SayFailedStart, NamesTheExitCodeAndTheCause) {
  EXPECT_EQ(SaidOf("the disk is empty"),
            "STATUS=failed to start, exit code 4: the disk is empty\n");
  SayFailedStart({}, absl::DataLossError("no supervisor listens"), 4);
}

TEST(SayFailedStart, ACauseCannotSayAnythingElse) {
  EXPECT_EQ(SaidOf("two fields:\nREADY=1\x1b[2J\xff"),
            "STATUS=failed to start, exit code 4: two fields:; READY=1\\u001b[2J\\xff\n");
}

TEST(SayFailedStart, ALongCauseIsCutBetweenTwoCharacters) {
  for (const char* before : {"", "a"}) {
    std::string message = before;
    for (int i = 0; i < 4000; ++i) message += "\u00e9";
    const std::string said = SaidOf(message);
    EXPECT_LT(said.size(), 1100u);
    EXPECT_TRUE(IsUtf8(said));
    EXPECT_TRUE(absl::EndsWith(said, "\u00e9...\n")) << said;
  }
}

// --- the variables ------------------------------------------------------------------------------

TEST(ReadSupervision, TheWatchdogIsForTheProcessThatItNames) {
  const int64_t self = getpid();
  const Variables base = {{"NOTIFY_SOCKET", "@nothing"}, {"WATCHDOG_USEC", "30000000"}};
  const auto watchdog = [&](const Variables& more) {
    Variables all = base;
    all.insert(more.begin(), more.end());
    const auto read = ReadSupervision(all, self);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->watchdog : std::chrono::microseconds(-1);
  };
  EXPECT_EQ(watchdog({}), std::chrono::seconds(30));
  EXPECT_EQ(watchdog({{"WATCHDOG_PID", absl::StrCat(self)}}), std::chrono::seconds(30));
  EXPECT_EQ(watchdog({{"WATCHDOG_PID", absl::StrCat(self + 1)}}).count(), 0);
}

TEST(ReadSupervision, AWrongVariableIsNamedWithWhatIsRight) {
  const std::vector<std::pair<Variables, std::string>> wrong = {
      {{{"NOTIFY_SOCKET", "run/notify"}}, "NOTIFY_SOCKET is \"run/notify\", but must be a path"},
      {{{"NOTIFY_SOCKET", "@"}}, "NOTIFY_SOCKET is \"@\""},
      {{{"NOTIFY_SOCKET", "vsock:2:1"}}, "NOTIFY_SOCKET is \"vsock:2:1\""},
      {{{"NOTIFY_SOCKET", "/" + std::string(107, 'a')}}, "has 108 bytes, the limit is 107"},
      {{{"NOTIFY_SOCKET", "/x"}, {"WATCHDOG_USEC", "soon"}}, "WATCHDOG_USEC is \"soon\""},
      {{{"NOTIFY_SOCKET", "/x"}, {"WATCHDOG_USEC", "0"}}, "must be a number from 1 on"},
      {{{"NOTIFY_SOCKET", "/x"}, {"WATCHDOG_PID", "-7"}}, "WATCHDOG_PID is \"-7\""}};
  for (const auto& [variables, text] : wrong) {
    const absl::Status status = ReadSupervision(variables, getpid()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

// --- the socket ---------------------------------------------------------------------------------

// A supervisor's socket, bound to a name of either form.
class Listener {
 public:
  explicit Listener(const std::string& name) : name_(name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), length), 0) << name;
  }
  ~Listener() {
    close(socket_);
    if (name_[0] == '/') unlink(name_.c_str());
  }
  std::string Next() {
    char bytes[1024];
    const ssize_t got = recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
    return got < 0 ? "" : std::string(bytes, static_cast<size_t>(got));
  }

 private:
  const std::string name_;
  const int socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
};

class NotifySocketTest : public testing::TestWithParam<std::string> {};

TEST_P(NotifySocketTest, AMessageArrivesAsItIs) {
  const std::string name = absl::StrCat(GetParam(), getpid());
  Listener listener(name);
  const auto socket = NotifySocket::Open(name);
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_TRUE((*socket)->Send("READY=1\nSTATUS=serving\n").ok());
  EXPECT_EQ(listener.Next(), "READY=1\nSTATUS=serving\n");
}

INSTANTIATE_TEST_SUITE_P(BothForms, NotifySocketTest,
                         testing::Values(testing::TempDir() + "notify-", "@ballast-notify-"));

TEST(NotifySocket, ASupervisorThatDoesNotListenIsNamed) {
  const std::string name = absl::StrCat("@ballast-nowhere-", getpid());
  const absl::Status status = (*NotifySocket::Open(name))->Send("READY=1\n");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", name, "\"")));
}

TEST(NotifySocket, ASupervisorThatDoesNotReadCostsAMessageAndNotTheServer) {
  const std::string name = absl::StrCat("@ballast-deaf-", getpid());
  Listener listener(name);
  const auto socket = NotifySocket::Open(name);
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) status = (*socket)->Send("WATCHDOG=1\n");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(listener.Next(), "WATCHDOG=1\n");
  EXPECT_TRUE((*socket)->Send("WATCHDOG=1\n").ok());
}

}  // namespace
}  // namespace ballast::server
