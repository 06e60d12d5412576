// WorkWatch: says on stderr how far long work of the servers is, while a call waits for its end.
// Comes from: ballastctl's commands. Goes to: the Admin service's Status of all servers.
// Thread safety: made and destroyed by one thread; works on one of its own.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "ballast/v1/admin.pb.h"
#include "common/base/sync.h"
#include "common/threads/thread_executor.h"

namespace ballast::tools {

// "12.3 GiB", "812 MB/s": for people.
std::string HumanBytes(double bytes);
std::string HumanRate(double bytes, double seconds);

class WorkWatch {
 public:
  // Watches works for which `is_ours` holds, at the server `endpoint` and its peers.
  WorkWatch(std::string endpoint, std::function<bool(const v1::Work&)> is_ours);
  // Ends the line.
  ~WorkWatch();
  WorkWatch(const WorkWatch&) = delete;
  WorkWatch& operator=(const WorkWatch&) = delete;

 private:
  struct Sum {
    std::string kind;
    uint64_t done = 0;
    uint64_t total = 0;
  };
  void Run();
  Sum Look();
  void Say(const Sum& sum);

  const std::function<bool(const v1::Work&)> is_ours_;
  const bool terminal_;
  // Of the thread.
  std::set<std::string> endpoints_;
  std::string kind_;  // reported last
  double began_s_ = 0;
  double told_s_ = 0;
  bool on_line_ = false;

  Mutex mu_;
  CondVar change_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  ThreadExecutor thread_{"watch", 1};  // last: it uses all of the above
};

}  // namespace ballast::tools
