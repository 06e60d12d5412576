#include "tests/fuzz/fuzz_loop.h"

#include <algorithm>
#include <utility>

namespace ballast::fuzz {
namespace {

constexpr size_t kPoolMax = 256;

}  // namespace

FuzzLoop::FuzzLoop(const FuzzTarget* target, const std::vector<std::string>& corpus, uint64_t seed)
    : target_(target), pool_(target->Seeds()), seeds_(pool_.size()), random_(seed) {
  pool_.insert(pool_.end(), corpus.begin(), corpus.end());
}

void FuzzLoop::Replay(const Cuts& longest) {
  for (size_t i = 0; i < pool_.size(); ++i) {
    const size_t most = i < seeds_ ? longest.of_seeds : longest.of_corpus;
    const size_t cuts = std::min(most, pool_[i].size());
    for (size_t bytes = 0; bytes < cuts; ++bytes) RunOnce(pool_[i].substr(0, bytes));
    RunOnce(pool_[i]);
  }
}

void FuzzLoop::Run(int runs) {
  const size_t given = pool_.size();
  for (int i = 0; i < runs; ++i) {
    // Half of the inputs are near to a good one, the others further away.
    const size_t from = random_.OneIn(2) ? random_.Below(given) : random_.Below(pool_.size());
    std::string input = target_->Mutate(pool_[from], &random_);
    RunOnce(input);
    if (!random_.OneIn(8)) continue;
    if (pool_.size() < given + kPoolMax) {
      pool_.push_back(std::move(input));
    } else {
      pool_[given + random_.Below(kPoolMax)] = std::move(input);
    }
  }
}

void FuzzLoop::RunOnce(std::string input) {
  ++runs_;
  input_ = std::move(input);
  target_->Run(input_);
}

}  // namespace ballast::fuzz
