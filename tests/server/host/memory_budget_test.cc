// How much memory a server may plan, from files as a kernel writes them.
#include "server/host/memory_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ballast::server {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// A folder with the files of /proc and /sys that a server reads.
class MemoryBudgetTest : public ::testing::Test {
 protected:
  MemoryBudgetTest() {
    Write(
        "proc/meminfo",
        "MemTotal:        8192 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\nHugePages_Total: 0\n");
  }
  ~MemoryBudgetTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // A control group of that limit and use, in bytes.
  void Group(const std::string& path, const std::string& limit, uint64_t used,
             uint64_t inactive_file = 0) {
    const std::string folder = "sys/fs/cgroup" + path;
    Write(folder + "/memory.max", limit + "\n");
    Write(folder + "/memory.current", std::to_string(used) + "\n");
    Write(folder + "/memory.stat",
          "anon 7\nfile 9\ninactive_file " + std::to_string(inactive_file) + "\nactive_file 3\n");
  }
  MachineMemory Read() const { return ReadMachineMemory(root_); }

  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() /
      ("memory_budget_test_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
       std::to_string(getpid()));
};

TEST_F(MemoryBudgetTest, WithoutALimitItIsTheMachines) {
  EXPECT_EQ(Read().total_bytes, 8 * kMiB);
  EXPECT_EQ(Read().available_bytes, 4 * kMiB);
  Write("proc/self/cgroup", "0::/system.slice/ballastd.service\n");
  Group("/system.slice/ballastd.service", "max", kMiB);
  EXPECT_EQ(Read().total_bytes, 8 * kMiB);
  EXPECT_EQ(Read().available_bytes, 4 * kMiB);
}

TEST_F(MemoryBudgetTest, TheGroupOfTheProcessLimitsIt) {
  Write("proc/self/cgroup", "1:name=systemd:/user\n0::/system.slice/ballastd.service\n");
  Group("/user", std::to_string(2 * kMiB), 0);
  Group("/system.slice/ballastd.service", std::to_string(3 * kMiB), kMiB);
  EXPECT_EQ(Read().total_bytes, 3 * kMiB);
  EXPECT_EQ(Read().available_bytes, 2 * kMiB);
}

TEST_F(MemoryBudgetTest, AGroupAboveThatOfTheProcessLimitsItToo) {
  Write("proc/self/cgroup", "0::/pods/pod1/server\n");
  Group("/pods/pod1/server", std::to_string(6 * kMiB), kMiB);
  Group("/pods/pod1", std::to_string(5 * kMiB), 4 * kMiB);
  Group("/pods", "max", 7 * kMiB);
  EXPECT_EQ(Read().total_bytes, 5 * kMiB);
  EXPECT_EQ(Read().available_bytes, kMiB);
}

TEST_F(MemoryBudgetTest, AGroupOfVersion1LimitsIt) {
  Write("proc/self/cgroup", "12:cpu,cpuacct:/jobs\n4:memory:/docker/abc\n0::/system.slice\n");
  const std::string folder = "sys/fs/cgroup/memory";
  // No limit, as version 1 writes it.
  Write(folder + "/docker/memory.limit_in_bytes", "9223372036854771712\n");
  Write(folder + "/docker/memory.usage_in_bytes", std::to_string(8 * kMiB));
  EXPECT_EQ(Read().total_bytes, 8 * kMiB);
  EXPECT_EQ(Read().available_bytes, 4 * kMiB);
  Write(folder + "/docker/abc/memory.limit_in_bytes", std::to_string(3 * kMiB) + "\n");
  Write(folder + "/docker/abc/memory.usage_in_bytes", std::to_string(2 * kMiB) + "\n");
  Write(folder + "/docker/abc/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(kMiB) + "\n");
  EXPECT_EQ(Read().total_bytes, 3 * kMiB);
  EXPECT_EQ(Read().available_bytes, 2 * kMiB);
}

TEST_F(MemoryBudgetTest, AContainerOfVersion1SeesItsGroupAsTheRoot) {
  Write("proc/self/cgroup", "9:name=systemd:/docker/abc\n4:hugetlb,memory:/docker/abc\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(2 * kMiB) + "\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kMiB) + "\n");
  EXPECT_EQ(Read().total_bytes, 2 * kMiB);
  EXPECT_EQ(Read().available_bytes, kMiB);
}

TEST_F(MemoryBudgetTest, InAContainerTheRootIsItsGroup) {
  Write("proc/self/cgroup", "0::/\n");
  Group("", std::to_string(2 * kMiB), 3 * kMiB);
  EXPECT_EQ(Read().total_bytes, 2 * kMiB);
  EXPECT_EQ(Read().available_bytes, 0u) << "more is used than is allowed";
}

TEST_F(MemoryBudgetTest, PagesOfFilesThatWereNotUsedLatelyAreFree) {
  Group("", std::to_string(3 * kMiB), 3 * kMiB, kMiB);
  EXPECT_EQ(Read().available_bytes, kMiB);
}

TEST_F(MemoryBudgetTest, TheDefaultIsFourFifthsInWholeMebibytes) {
  const MachineMemory memory{.total_bytes = 100 * kMiB, .available_bytes = 9 * kMiB};
  config::v1::ServerConfig config;
  EXPECT_EQ(BudgetsOf(config, memory).all_bytes, 7 * kMiB);
  EXPECT_EQ(BudgetsOf(config, memory).state_bytes, 7 * kMiB);
  config.mutable_storage()->set_memory_budget(5 * kMiB);
  config.mutable_storage()->set_dram_budget(2 * kMiB);
  EXPECT_EQ(BudgetsOf(config, memory).all_bytes, 5 * kMiB);
  EXPECT_EQ(BudgetsOf(config, memory).state_bytes, 2 * kMiB);
  EXPECT_EQ(BudgetsOf(config, memory).machine_bytes, 100 * kMiB);
}

TEST_F(MemoryBudgetTest, GrpcHasWhatJobsAndParsingLeaveButNoLessThanAGibibyte) {
  constexpr uint64_t kGiB = 1024 * kMiB;
  config::v1::ServerConfig config;
  EXPECT_EQ(BudgetsOf(config, {100 * kGiB, 40 * kGiB}).rpc_bytes, 8 * kGiB - 512 * kMiB)
      << "requests that are being parsed have their part";
  EXPECT_EQ(BudgetsOf(config, {100 * kGiB, 3 * kGiB}).rpc_bytes, kGiB);
  EXPECT_EQ(BudgetsOf(config, {}).rpc_bytes, kGiB) << "the kernel does not tell";
  config.mutable_storage()->set_memory_budget(50 * kGiB);
  EXPECT_EQ(BudgetsOf(config, {100 * kGiB, 40 * kGiB}).rpc_bytes, kGiB);
  config.mutable_rounds()->set_credit_bytes(100 * kMiB);
  EXPECT_EQ(BudgetsOf(config, {100 * kGiB, 40 * kGiB}).rpc_bytes, 6400 * kMiB);
  config.mutable_limits()->set_max_rpc_memory_bytes(300 * kMiB);
  EXPECT_EQ(BudgetsOf(config, {100 * kGiB, 40 * kGiB}).rpc_bytes, 300 * kMiB);
}

TEST_F(MemoryBudgetTest, GrpcHasRoomForTheLargestMessageAndForAllConnections) {
  config::v1::ServerConfig config;
  auto* const limits = config.mutable_limits();
  limits->set_max_control_message_bytes(300 * kMiB);
  EXPECT_EQ(BudgetsOf(config, {}).rpc_bytes, 1200 * kMiB);
  limits->set_max_frame_bytes(400 * kMiB);
  EXPECT_EQ(BudgetsOf(config, {}).rpc_bytes, 1600 * kMiB);
  limits->set_max_connections(64 << 10);
  EXPECT_EQ(BudgetsOf(config, {}).rpc_bytes, 2048 * kMiB);
}

TEST_F(MemoryBudgetTest, PlansRequestsAndTheServerItselfExplainMemory) {
  config::v1::ServerConfig config;
  config.mutable_limits()->set_max_parse_bytes(300 * kMiB);
  EXPECT_EQ(ExplainedBytes(config, 1000 * kMiB), 1556 * kMiB);
}

TEST_F(MemoryBudgetTest, ThisMachineSaysHowMuchItHas) {
  EXPECT_GT(ReadMachineMemory().available_bytes, 0u);
  EXPECT_GE(ReadMachineMemory().total_bytes, ReadMachineMemory().available_bytes);
}

}  // namespace
}  // namespace ballast::server
