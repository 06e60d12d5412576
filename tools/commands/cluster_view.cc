#include "tools/commands/cluster_view.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/convert/methods.h"
#include "server/status/status_rows.h"
#include "tools/ctl/admin_call.h"

namespace ballast::tools {
namespace {

using server::Seconds;

// The worse a state of a trainer is, the larger.
int Badness(const std::string& state) {
  const std::map<std::string, int> known = {{"done", 1},    {"left", 2},   {"attached", 3},
                                            {"pushing", 4}, {"absent", 5}, {"lost", 6}};
  const auto one = known.find(state);
  return one == known.end() ? 0 : one->second;
}

}  // namespace

ClusterView AskCluster(const Options& options, const v1::StatusRequest& request) {
  ClusterView view;
  std::deque<std::string> to_ask(options.endpoints.begin(), options.endpoints.end());
  std::set<std::string> asked;
  std::set<uint32_t> ids;  // one server may be known by several addresses
  for (; !to_ask.empty(); to_ask.pop_front()) {
    const std::string endpoint = to_ask.front();
    if (!asked.insert(endpoint).second) continue;
    auto reply = Ask<v1::StatusReply>(endpoint, method::kAdminStatus, request, kTimeoutS);
    if (!reply.ok()) {
      view.silent.push_back({endpoint, reply.status()});
      continue;
    }
    if (!ids.insert(reply->id()).second) continue;
    asked.insert(reply->address());
    for (const v1::PeerStatus& peer : reply->peers()) to_ask.push_back(peer.address());
    view.servers.push_back(*std::move(reply));
  }
  std::sort(view.servers.begin(), view.servers.end(),
            [](const auto& a, const auto& b) { return a.id() < b.id(); });
  return view;
}

int SayWhoIsSilent(const ClusterView& view, const Options& options) {
  int code = 0;
  for (const ClusterView::Silent& silent : view.silent) {
    code = std::max(code, Failed(silent.endpoint, options, silent.status));
  }
  return code;
}

std::vector<TrainerView> TrainersOf(const ClusterView& view, const std::string& job) {
  std::map<uint32_t, TrainerView> trainers;
  for (const v1::StatusReply& server : view.servers) {
    for (const v1::JobStatus& share : server.jobs()) {
      if (share.name() != job) continue;
      for (const v1::SlotStatus& slot : share.slots()) {
        TrainerView& trainer = trainers[slot.slot()];
        trainer.slot = slot.slot();
        if (Badness(slot.state()) >= Badness(trainer.state)) trainer.state = slot.state();
        trainer.owed_extents += slot.owed_extents();
        if (slot.owed_extents() > 0) trainer.owed_to.push_back(server.id());
      }
    }
  }
  std::vector<TrainerView> all;
  for (auto& [slot, trainer] : trainers) all.push_back(std::move(trainer));
  return all;
}

Pace PaceOf(const v1::JobStatus& job) {
  Pace pace;
  pace.rounds = static_cast<size_t>(job.rounds_size());
  if (pace.rounds == 0) return pace;
  const auto count = static_cast<double>(pace.rounds);
  double later_bytes = 0;  // of all but the first, between whose ends the time below lies
  for (int i = 0; i < job.rounds_size(); ++i) {
    const v1::FinishedRound& round = job.rounds(i);
    pace.collect_s += Seconds(round.collect_ns()) / count;
    pace.vote_s += Seconds(round.vote_ns()) / count;
    pace.step_s += Seconds(round.step_ns()) / count;
    if (i > 0) later_bytes += static_cast<double>(round.pushed_bytes());
  }
  const uint64_t first = job.rounds(0).age_ns();
  const uint64_t last = job.rounds(job.rounds_size() - 1).age_ns();
  if (first <= last) return pace;
  // A newest round older than the time of two rounds means that the pace has changed: then the
  // time since it counts, and the figures fall.
  const double mean_s = Seconds(first - last) / (count - 1);
  const double time_s = Seconds(last) > 2 * mean_s ? Seconds(first) : Seconds(first - last);
  pace.rounds_per_s = (count - 1) / time_s;
  pace.pushed_bytes_per_s = later_bytes / time_s;
  return pace;
}

}  // namespace ballast::tools
