// The votes of all fake servers of a job: a round is decided when every one of them has voted.
// Comes from: fake_server.h. Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace ballast::client {

class RoundTable {
 public:
  // Server `id`, of `servers`, has every gradient of the round on its disk in `epoch`. Returns
  // whether the round is decided. Votes of different epochs do not add up.
  bool Vote(uint32_t id, size_t servers, uint32_t epoch, uint64_t round) {
    std::lock_guard<std::mutex> lock(mu_);
    if (decided_.count(round) > 0) return true;
    std::set<uint32_t>& votes = votes_[{epoch, round}];
    votes.insert(id);
    if (votes.size() < servers) return false;
    decided_.insert(round);
    return true;
  }
  bool Decided(uint64_t round) const {
    std::lock_guard<std::mutex> lock(mu_);
    return decided_.count(round) > 0;
  }
  // The newest round that is decided; 0: none.
  uint64_t Newest() const {
    std::lock_guard<std::mutex> lock(mu_);
    return decided_.empty() ? 0 : *decided_.rbegin();
  }
  // The job and its servers are gone.
  void Clear() {
    std::lock_guard<std::mutex> lock(mu_);
    votes_.clear();
    decided_.clear();
  }

 private:
  mutable std::mutex mu_;
  std::map<std::pair<uint32_t, uint64_t>, std::set<uint32_t>> votes_;  // by epoch and round
  std::set<uint64_t> decided_;
};

}  // namespace ballast::client
