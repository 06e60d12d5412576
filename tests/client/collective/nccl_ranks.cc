#include "tests/client/collective/nccl_ranks.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace ballast::collective {
namespace {

struct Child {
  pid_t process;
  int out;
};

Child Fork(const std::string& plan, const std::function<std::string()>& body) {
  int ends[2];
  BALLAST_CHECK(pipe(ends) == 0);
  const pid_t process = fork();
  BALLAST_CHECK(process >= 0);
  if (process > 0) {
    close(ends[1]);
    return {process, ends[0]};
  }
  setenv("FAKE_NCCL", plan.c_str(), 1);
  const std::string said = body();
  const bool written =
      write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
  _exit(written ? 0 : 1);
}

RankEnd WaitFor(const Child& child) {
  RankEnd end;
  char some[4096];
  for (ssize_t n; (n = read(child.out, some, sizeof some)) > 0;) end.said.append(some, n);
  close(child.out);
  int status = 0;
  BALLAST_CHECK(waitpid(child.process, &status, 0) == child.process);
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return end;
}

}  // namespace

std::vector<RankEnd> RunRanks(int world, const std::string& plan,
                              const std::function<std::string(int rank)>& body) {
  std::vector<Child> children;
  for (int rank = 0; rank < world; ++rank) {
    children.push_back(Fork(plan, [&] { return body(rank); }));
  }
  std::vector<RankEnd> ends;
  for (const Child& child : children) ends.push_back(WaitFor(child));
  return ends;
}

Rank::Rank(int rank, int world)
    : rank_(static_cast<uint32_t>(rank)),
      world_(static_cast<uint32_t>(world)),
      stream_(*device_.NewStream()) {
  BALLAST_CHECK(dlopen(BALLAST_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL) != nullptr);
  comms_ = std::make_shared<NcclComms>(*NcclLibrary::Open());
}

absl::Status Rank::Connect(const nccl::UniqueId& id, uint64_t epoch,
                           std::chrono::nanoseconds timeout) {
  collective_.reset();
  NcclConfig config{.rank = rank_, .world = world_, .epoch = epoch, .timeout = timeout};
  auto made = NcclCollective::Create(comms_, &device_, stream_, id, std::move(config));
  if (made.ok()) collective_ = *std::move(made);
  return made.status();
}

std::string Rank::Train(uint64_t first, uint64_t rounds) {
  constexpr size_t kCount = 33;
  std::vector<float> bucket(world_ * kCount), share(kCount), all(bucket.size());
  for (uint64_t round = first; round < first + rounds; ++round) {
    const auto value = static_cast<float>(round);
    std::fill(bucket.begin(), bucket.end(), value);
    absl::Status status =
        collective_->ReduceScatter({round, 0}, DType::kF32, bucket.data(), share.data(), kCount);
    if (!status.ok()) return status.ToString();
    status = collective_->AllGather({round, 0}, share.data(), all.data(), kCount * sizeof(float));
    if (!status.ok()) return status.ToString();
    const float sum = value * static_cast<float>(world_);
    if (std::any_of(all.begin(), all.end(), [&](float x) { return x != sum; }))
      return absl::StrCat("wrong in round ", round);
  }
  return "well";
}

nccl::UniqueId FakeId() {
  nccl::UniqueId id{};
  static int made = 0;
  std::snprintf(id.internal, sizeof id.internal, "/dev/shm/fake-nccl-test-%d-%d", getpid(), ++made);
  return id;
}

}  // namespace ballast::collective
