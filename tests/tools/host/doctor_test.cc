// The findings of `ballastctl doctor`: one for each wrong fact, with a fix, and none where all is
// well.
#include "tools/host/doctor.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace ballast::tools {
namespace {

using Level = Finding::Level;

HostFacts WellHost() {
  HostFacts facts;
  facts.isa = "avx2";
  facts.limits = {.memlock_bytes = UINT64_MAX, .files = 65536};
  facts.huge_pages = "madvise";
  facts.aio_max = 1 << 20;
  facts.congestion = "cubic";
  facts.clock_in_step = true;
  facts.clock_source = "tsc";
  facts.servers = 2;
  facts.data = {
      .path = "/data", .exists = true, .direct_io = true, .free_bytes = 50, .total_bytes = 100};
  facts.snapshots = {
      .path = "/shared", .exists = true, .network = true, .free_bytes = 50, .total_bytes = 100};
  return facts;
}

TEST(Doctor, AHostThatIsWellHasNoFix) {
  for (const Finding& finding : JudgeHost(WellHost())) {
    EXPECT_EQ(finding.level, Level::kOk) << finding.check;
    EXPECT_EQ(finding.fix, "") << finding.check;
    EXPECT_NE(finding.found, "") << finding.check;
  }
}

TEST(Doctor, TheLimitsAreThoseOfTheServerThatHasTheDataDirectory) {
  const auto root =
      std::filesystem::path(::testing::TempDir()) / ("doctor_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(root / "proc/17");
  const auto write = [&root](const std::string& path, const std::string& text) {
    std::ofstream(root / path) << text;
  };
  const auto read = [&root] { return ReadLimits(root, root / "proc"); };
  write("proc/17/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 65536                files     \n"
        "Max locked memory         8388608              unlimited            bytes     \n");
  EXPECT_EQ(read().server, 0) << "nothing has the directory";
  write("lock", "17\n");
  write("proc/17/comm", "bash\n");
  EXPECT_EQ(read().server, 0) << "the number belongs to another program by now";
  write("proc/17/comm", "ballastd\n");
  EXPECT_EQ(read().server, 17);
  EXPECT_EQ(read().memlock_bytes, UINT64_MAX);
  EXPECT_EQ(read().files, 65536u);
  std::filesystem::remove_all(root);
}

TEST(Doctor, EachFactThatIsWrongIsOneFindingWithAFix) {
  const std::multimap<std::string, std::function<void(HostFacts*)>> wrong = {
      {"isa", [](HostFacts* f) { f->isa = "scalar"; }},
      {"memlock", [](HostFacts* f) { f->limits.memlock_bytes = 8 << 20; }},
      {"nofile", [](HostFacts* f) { f->limits.files = 1024; }},
      {"huge pages", [](HostFacts* f) { f->huge_pages = "never"; }},
      {"aio-max-nr", [](HostFacts* f) { f->aio_used = f->aio_max; }},
      {"aio-max-nr", [](HostFacts* f) { f->aio_max = 0; }},
      {"congestion control", [](HostFacts* f) { f->congestion = "bbr"; }},
      {"clock", [](HostFacts* f) { f->clock_in_step = false; }},
      {"data directory", [](HostFacts* f) { f->data = {}; }},
      {"data directory", [](HostFacts* f) { f->data.exists = false; }},
      {"data directory", [](HostFacts* f) { f->data.in_memory = true; }},
      {"data directory", [](HostFacts* f) { f->data.network = true; }},
      {"direct I/O", [](HostFacts* f) { f->data.direct_io = false; }},
      {"free space", [](HostFacts* f) { f->data.free_bytes = 9; }},
      {"snapshot directory", [](HostFacts* f) { f->snapshots = {}; }},
      {"snapshot directory", [](HostFacts* f) { f->snapshots.exists = false; }},
      {"snapshot directory", [](HostFacts* f) { f->snapshots.network = false; }},
  };
  for (const auto& [check, change] : wrong) {
    HostFacts facts = WellHost();
    change(&facts);
    int found = 0;
    for (const Finding& finding : JudgeHost(facts)) {
      if (finding.level == Level::kOk) continue;
      ++found;
      EXPECT_EQ(finding.check, check);
      EXPECT_NE(finding.fix, "") << check;
    }
    EXPECT_EQ(found, 1) << check;
  }
}

TEST(Doctor, OneServerMayKeepSnapshotsOnItsOwnDisk) {
  HostFacts facts = WellHost();
  facts.servers = 1;
  facts.snapshots = {};
  EXPECT_EQ(JudgeHost(facts).back().level, Level::kOk);
}

TEST(Doctor, AFullDiskIsAFailure) {
  HostFacts facts = WellHost();
  facts.data.free_bytes = 0;
  int failures = 0;
  for (const Finding& finding : JudgeHost(facts)) failures += finding.level == Level::kFail ? 1 : 0;
  EXPECT_EQ(failures, 1);
}

TEST(Doctor, ThisHostIsRead) {
  const HostFacts facts = ReadHost({});
  EXPECT_NE(facts.isa, "");
  EXPECT_GT(facts.limits.files, 0u);
  EXPECT_EQ(facts.servers, 1u);
  EXPECT_FALSE(facts.data.exists);
}

}  // namespace
}  // namespace ballast::tools
