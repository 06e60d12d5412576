#include "client/collective/local_collective.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/collective/lost.h"
#include "client/device/elements.h"
#include "common/base/status_macros.h"

namespace ballast::collective {
namespace {

template <typename Type>
void AddParts(const std::vector<const void*>& buckets, size_t first, size_t count, void* share) {
  auto* sum = static_cast<typename Type::T*>(share);
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](size_t rank) {
      return Type::Widen(static_cast<const typename Type::T*>(buckets[rank])[first + i]);
    };
    float value = at(0);
    for (size_t rank = 1; rank < buckets.size(); ++rank) {
      value = Type::Widen(Type::Round(value + at(rank)));
    }
    sum[i] = Type::Round(value);
  }
}

}  // namespace

class LocalCollective final : public Collective {
 public:
  LocalCollective(std::shared_ptr<LocalGroup> group, uint32_t rank)
      : group_(std::move(group)), rank_(rank) {}

  uint32_t rank() const override { return rank_; }
  uint32_t world() const override { return group_->world_; }

  absl::Status ReduceScatter(BucketId id, DType dtype, const void* bucket, void* share,
                             size_t count) override {
    const auto form = [&](const std::vector<const void*>& buckets) {
      const size_t first = rank_ * count;
      if (dtype == DType::kF32) AddParts<device::F32>(buckets, first, count, share);
      if (dtype == DType::kBF16) AddParts<device::BF16>(buckets, first, count, share);
      if (dtype == DType::kF16) AddParts<device::F16>(buckets, first, count, share);
    };
    const std::string where = InBucket("reduce-scatter", id);
    if (DTypeBytes(dtype) == 0) {
      return group_->EndWith(absl::InvalidArgumentError(absl::StrCat(where, ": no dtype")));
    }
    return group_->Run(
        rank_, {where, absl::StrCat(where, ", ", count, " ", DTypeName(dtype)), bucket, form});
  }

  absl::Status AllGather(BucketId id, const void* share, void* bucket, size_t bytes) override {
    const auto form = [&](const std::vector<const void*>& shares) {
      for (size_t rank = 0; rank < shares.size() && bytes > 0; ++rank) {
        std::memcpy(static_cast<std::byte*>(bucket) + rank * bytes, shares[rank], bytes);
      }
    };
    const std::string where = InBucket("all-gather", id);
    return group_->Run(rank_, {where, absl::StrCat(where, ", ", bytes, " bytes"), share, form});
  }

  void Abort(absl::Status why) override { (void)group_->EndWith(std::move(why)); }

 private:
  const std::shared_ptr<LocalGroup> group_;
  const uint32_t rank_;
};

std::shared_ptr<LocalGroup> LocalGroup::Make(uint32_t world, uint64_t epoch,
                                             std::chrono::nanoseconds timeout) {
  return std::shared_ptr<LocalGroup>(new LocalGroup(world, epoch, timeout));
}

std::unique_ptr<Collective> LocalGroup::Join(uint32_t rank) {
  return std::make_unique<LocalCollective>(shared_from_this(), rank);
}

absl::Status LocalGroup::Run(uint32_t rank, const Call& call) {
  MutexLock lock(&mutex_);
  BALLAST_RETURN_IF_ERROR(stale_);
  parts_[rank].signature = call.signature;
  parts_[rank].from = call.from;
  BALLAST_RETURN_IF_ERROR(Meet(rank, call.where));
  // A rank whose call has failed meanwhile may have freed its memory. None fails under this lock.
  BALLAST_RETURN_IF_ERROR(stale_);
  BALLAST_RETURN_IF_ERROR(CheckEqual(rank));
  std::vector<const void*> given(world_);
  for (uint32_t i = 0; i < world_; ++i) given[i] = parts_[i].from;
  call.form(given);
  return Meet(rank, call.where);
}

absl::Status LocalGroup::Meet(uint32_t rank, const std::string& where) {
  const uint64_t meeting = meetings_;
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  parts_[rank].in = true;
  if (++here_ == world_) {
    here_ = 0;
    ++meetings_;
    for (Part& part : parts_) part.in = false;
    changed_.NotifyAll();
  }
  while (meetings_ == meeting && stale_.ok()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) {
      return End(Late(Missing(), epoch_, timeout_, where));
    }
    changed_.WaitFor(&mutex_, left);
  }
  return meetings_ == meeting ? stale_ : absl::OkStatus();
}

absl::Status LocalGroup::End(absl::Status why) {
  if (stale_.ok()) stale_ = std::move(why);
  changed_.NotifyAll();
  return stale_;
}

absl::Status LocalGroup::EndWith(absl::Status why) {
  MutexLock lock(&mutex_);
  return End(std::move(why));
}

absl::Status LocalGroup::CheckEqual(uint32_t rank) {
  for (uint32_t other = 0; other < world_; ++other) {
    if (parts_[other].signature == parts_[rank].signature) continue;
    return End(absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " is in ", parts_[rank].signature, ", and rank ", other, " in ",
                     parts_[other].signature, "; all ranks make the same calls in one order")));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> LocalGroup::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (!parts_[rank].in) missing.push_back(rank);
  }
  return missing;
}

}  // namespace ballast::collective
