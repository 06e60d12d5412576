// NCCL as a library that is opened at run time, and ranks in 2 and 4 processes over the fake one:
// ranks that never come, fail, are late or are killed, and the reactions of the others.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "tests/client/collective/nccl_ranks.h"

namespace ballast::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;

// A time limit that passes only where a rank is gone for good, and one that must be enough for a
// busy machine.
constexpr auto kShort = milliseconds(300);
constexpr auto kLong = seconds(60);

// --- the library ------------------------------------------------------------------------------

nccl::Functions Functions(int (*get_version)(int*)) {
  nccl::Functions functions{};
  functions.get_version = get_version;
  return functions;
}

TEST(NcclLibrary, SaysWhatIsMissingAndWhatToDo) {
  const absl::Status status = NcclLibrary::Open("libno_nccl.so.2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("no NCCL: libno_nccl.so.2: cannot open shared object"),
            HasSubstr("needs NCCL 2.22.0 or newer"), HasSubstr("a process group of torch")));
}

TEST(NcclLibrary, RefusesALibraryWithoutTheFunctionsByTheirNames) {
  EXPECT_THAT(NcclLibrary::Open("libm.so.6").status().message(),
              AllOf(HasSubstr("libm.so.6 of version 0.0.0 lacks ncclGetVersion, "),
                    HasSubstr("NCCL 2.22.0 or newer is needed")));
}

TEST(NcclLibrary, RefusesAnOlderVersionWithBothNumbers) {
  const auto old = Functions([](int* version) { return *version = 22105, nccl::kSuccess; });
  const absl::Status status = NcclLibrary::Over(old, "/lib/libnccl.so.2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("NCCL is 2.21.5 (/lib/libnccl.so.2), and 2.22.0 or newer is needed"));
  const auto least = Functions([](int* version) { return *version = 22200, nccl::kSuccess; });
  EXPECT_TRUE(NcclLibrary::Over(least, "").ok());
}

TEST(NcclLibrary, ReadsVersionsOfBothForms) {
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
  EXPECT_EQ(NcclVersionText(23007), "2.30.7");
}

// --- processes --------------------------------------------------------------------------------

// Each rank connects and trains `rounds` rounds.
std::vector<RankEnd> Train(int world, const std::string& plan, uint64_t rounds,
                           std::chrono::nanoseconds timeout) {
  const nccl::UniqueId id = FakeId();
  return RunRanks(world, plan, [&](int number) {
    Rank rank(number, world);
    const absl::Status status = rank.Connect(id, 12, timeout);
    return status.ok() ? rank.Train(1, rounds) : status.ToString();
  });
}

class NcclProcesses : public testing::TestWithParam<int> {};

TEST_P(NcclProcesses, SumAndShare) {
  EXPECT_THAT(Train(GetParam(), "", 20, kLong), Each(Field(&RankEnd::said, "well")));
}

TEST_P(NcclProcesses, WaitForALateRank) {
  EXPECT_THAT(
      Train(GetParam(), "1:init:1:slow,0:reduce_scatter:2:slow,1:all_gather:3:slow", 4, kLong),
      Each(Field(&RankEnd::said, "well")));
}

TEST_P(NcclProcesses, OfWhichOneNeverComesEndTheInitInTime) {
  for (const RankEnd& end : Train(GetParam(), "1:init:1:never", 1, kShort)) {
    EXPECT_EQ(end.said,
              "UNAVAILABLE: a rank of epoch 12 did not arrive within 0.3 s (in the init of the "
              "communicator)");
  }
}

TEST_P(NcclProcesses, OfWhichOneIsKilledInAnyCallEndWithTheNamedError) {
  const struct {
    const char* plan;
    const char* where;
  } kills[] = {{"notice,1:init:1:die", "(in the init of the communicator; NCCL 2.22.3 says: "},
               {"notice,1:reduce_scatter:3:die", "(in reduce-scatter of bucket 0 of round 3; NCCL"},
               {"notice,1:all_gather:2:die", "(in all-gather of bucket 0 of round 2; NCCL"}};
  for (const auto& kill : kills) {
    const std::vector<RankEnd> ends = Train(GetParam(), kill.plan, 5, seconds(2));
    for (int rank = 0; rank < GetParam(); ++rank) {
      if (rank == 1) {
        EXPECT_EQ(ends[rank].signal, SIGKILL);
        continue;
      }
      // A process that comes when the killed one is gone already finds nothing to wait for.
      EXPECT_THAT(ends[rank].said,
                  testing::ContainsRegex("a rank of epoch 12 (is gone|did not arrive within)"))
          << kill.plan;
      if (std::string(kill.plan).find("init") != std::string::npos) continue;
      EXPECT_THAT(ends[rank].said, HasSubstr(kill.where)) << rank;
    }
  }
}

TEST_P(NcclProcesses, OfWhichOneFailsAllEnd) {
  for (const RankEnd& end : Train(GetParam(), "notice,0:reduce_scatter:2:fail", 5, seconds(2))) {
    EXPECT_THAT(end.said,
                AllOf(HasSubstr("UNAVAILABLE: a rank of epoch 12 is gone"), HasSubstr("round 2")));
  }
}

// The ranks that are left, and a new process in the place of the killed one, go on in the next
// epoch with an id of its own.
TEST_P(NcclProcesses, GoOnInTheNextEpochWithANewId) {
  const int world = GetParam();
  const nccl::UniqueId first = FakeId(), second = FakeId();
  const auto ends = RunRanks(world + 1, "notice,1:reduce_scatter:3:die", [&](int number) {
    const bool replaces = number == world;
    Rank rank(replaces ? 1 : number, world);
    if (!replaces) {
      if (!rank.Connect(first, 12, kLong).ok()) return std::string("no first epoch");
      if (rank.Train(1, 5) == "well") return std::string("nothing was lost");
    }
    const absl::Status status = rank.Connect(second, 13, kLong);
    // The replacement counts its calls anew, and the plan holds for it, too: two rounds.
    return status.ok() ? rank.Train(3, 2) : status.ToString();
  });
  for (int rank = 0; rank <= world; ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(ends[rank].said, "well") << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(World, NcclProcesses, testing::Values(2, 4),
                         testing::PrintToStringParamName());

TEST(Nccl, TwoProcessesOfOneRankAreRefused) {
  const nccl::UniqueId id = FakeId();
  const auto ends = RunRanks(1, "", [&](int) {
    Rank rank(0, 2);
    if (!rank.comms()->Begin(id, 0, 2).ok()) return std::string("the first was refused");
    return rank.Connect(id, 1, kLong).ToString();
  });
  EXPECT_THAT(
      ends[0].said,
      AllOf(HasSubstr("FAILED_PRECONDITION: init of the communicator: NCCL 2.22.3 says: "),
            HasSubstr("two processes have the same rank; give each rank a GPU of its own")));
}

TEST(Nccl, ARankOutsideTheWorldAndNoTimeAreRefused) {
  const auto ends = RunRanks(1, "", [&](int) {
    Rank outside(2, 2), hasty(0, 2);
    return outside.Connect(FakeId(), 1, kLong).ToString() + "\n" +
           hasty.Connect(FakeId(), 1, seconds(0)).ToString();
  });
  EXPECT_EQ(ends[0].said,
            "INVALID_ARGUMENT: rank 2 of a communicator of 2; ranks count from 0\n"
            "INVALID_ARGUMENT: a communicator with a timeout of 0 ns; give at least 1 ms");
}

// Two jobs in each of two processes. Rank 1 never comes to a call of either job, so a kernel hangs
// in both; to free one communicator before the other is marked would be for ever.
TEST(Nccl, AllCommunicatorsAreMarkedBeforeTheFirstIsFreed) {
  const nccl::UniqueId ids[] = {FakeId(), FakeId()};
  const auto ends = RunRanks(2, "1:reduce_scatter:1:never", [&](int number) {
    Rank rank(number, 2);
    device::HostDevice devices[2];
    std::unique_ptr<NcclCollective> jobs[2];
    std::vector<std::thread> threads;
    std::string said[2];
    for (int job = 0; job < 2; ++job) {
      NcclConfig config{.rank = static_cast<uint32_t>(number),
                        .world = 2,
                        .epoch = 12,
                        .timeout = job == 0 ? std::chrono::nanoseconds(kShort) : kLong};
      jobs[job] = *NcclCollective::Create(rank.comms(), &devices[job], *devices[job].NewStream(),
                                          ids[job], config);
    }
    for (int job = 0; job < 2; ++job) {
      threads.emplace_back([&, job] {
        const std::vector<float> bucket(2, 1.0f);
        float share = 0;
        said[job] =
            jobs[job]->ReduceScatter({5, 0}, DType::kF32, bucket.data(), &share, 1).ToString();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto deadlocks = reinterpret_cast<int (*)()>(
        dlsym(dlopen(BALLAST_FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD), "fake_nccl_deadlocks"));
    return said[0] + "\n" + said[1] + "\n" + std::to_string(deadlocks());
  });
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.said,
                AllOf(HasSubstr("UNAVAILABLE: a rank of epoch 12 did not arrive within 0.3 s"),
                      HasSubstr("\nABORTED: another communicator of this process failed"),
                      testing::EndsWith("\n0")));
  }
}

TEST(Nccl, TheCallersLookEndsACall) {
  const nccl::UniqueId id = FakeId();
  const auto ends = RunRanks(2, "1:all_gather:1:never", [&](int number) {
    Rank rank(number, 2);
    device::HostDevice device;
    NcclConfig config{
        .rank = static_cast<uint32_t>(number), .world = 2, .epoch = 12, .timeout = kLong};
    config.look = [] { return absl::CancelledError("interrupted"); };
    auto made = NcclCollective::Create(rank.comms(), &device, *device.NewStream(), id, config);
    if (!made.ok()) return made.status().ToString();
    char bucket[2], share = 1;
    return (*made)->AllGather({1, 0}, &share, bucket, 1).ToString();
  });
  EXPECT_THAT(ends, Each(Field(&RankEnd::said, "CANCELLED: interrupted")));
}

TEST(Nccl, RanksOfTheRollCallAreNamed) {
  const nccl::UniqueId id = FakeId();
  const auto ends = RunRanks(4, "3:init:1:never", [&](int number) {
    Rank rank(number, 4);
    device::HostDevice device;
    NcclConfig config{
        .rank = static_cast<uint32_t>(number), .world = 4, .epoch = 12, .timeout = kShort};
    config.roll_call = [](const std::string& where) {
      return where == "the init of the communicator" ? std::vector<uint32_t>{3}
                                                     : std::vector<uint32_t>{};
    };
    return NcclCollective::Create(rank.comms(), &device, *device.NewStream(), id, config)
        .status()
        .ToString();
  });
  EXPECT_THAT(ends, Each(Field(&RankEnd::said,
                               "UNAVAILABLE: rank 3 of epoch 12 did not arrive within 0.3 s (in "
                               "the init of the communicator)")));
}

}  // namespace
}  // namespace ballast::collective
