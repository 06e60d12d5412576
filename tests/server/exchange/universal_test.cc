// Universal checkpoints: names, refusals, and files byte by byte. That torch and DeepSpeed read
// them is shown in tests/e2e/test_universal.py.
#include "server/exchange/universal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/io/memory_disk.h"
#include "server/exchange/stored_zip.h"
#include "server/exchange/torch_file.h"
#include "server/exchange/torch_pickle.h"
#include "zlib.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobSpec Spec(OptimizerKind kind, const std::vector<std::string>& names) {
  JobSpec spec;
  spec.name = "job";
  spec.optimizer = kind;
  for (const std::string& name : names) spec.tensors.push_back({.name = name, .shape = {2, 3}});
  return spec;
}

absl::StatusOr<std::vector<ExportShard>> Plan(const JobSpec& spec, bool torch_optimizer = false) {
  return PlanExport(spec, {.snapshot = 1, .round = 8},
                    {.format = ExportFormat::kUniversal, .torch_optimizer = torch_optimizer});
}

TEST(Universal, HasAFolderPerTensorWithDeepSpeedsNames) {
  const auto shards = Plan(Spec(OptimizerKind::kAdamW, {"a.weight", "b"}));
  ASSERT_TRUE(shards.ok()) << shards.status();
  ASSERT_EQ(shards->size(), 1);
  ASSERT_EQ((*shards)[0].universal.size(), 2);
  const UniversalFolder& folder = (*shards)[0].universal[0];
  EXPECT_EQ(folder.path, "global_step7/zero/a.weight");
  EXPECT_THAT(folder.files, ElementsAre("fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"));
  EXPECT_FALSE(folder.step_is_tensor);
}

TEST(Universal, CallsArraysAsTheOptimizerThatLoadsThem) {
  const JobSpec adagrad = Spec(OptimizerKind::kAdagrad, {"a"});
  EXPECT_THAT((*Plan(adagrad))[0].universal[0].files, ElementsAre("fp32.pt", "exp_avg_sq.pt"));
  EXPECT_THAT((*Plan(adagrad, true))[0].universal[0].files, ElementsAre("fp32.pt", "sum.pt"));
  EXPECT_TRUE((*Plan(adagrad, true))[0].universal[0].step_is_tensor);
  EXPECT_THAT((*Plan(Spec(OptimizerKind::kLion, {"a"})))[0].universal[0].files,
              ElementsAre("fp32.pt", "exp_avg.pt"));
  EXPECT_TRUE((*Plan(Spec(OptimizerKind::kSgd, {"a"})))[0].universal[0].step_is_tensor);
}

TEST(Universal, RefusesWhatDeepSpeedHasNot) {
  const absl::Status delta = Plan(Spec(OptimizerKind::kApplyDelta, {"a"})).status();
  EXPECT_EQ(ReasonOf(delta), Reason::kUnsupported);
  JobSpec amsgrad = Spec(OptimizerKind::kAdam, {"a"});
  amsgrad.options = {1, 0};
  EXPECT_THAT(std::string(Plan(amsgrad).status().message()), HasSubstr("--torch-optimizer"));
  EXPECT_EQ((*Plan(amsgrad, true))[0].universal[0].files.back(), "max_exp_avg_sq.pt");
}

TEST(Universal, RefusesNamesThatAreNoFolders) {
  for (const std::string& name : {std::string(".."), std::string("a/b"), std::string(300, 'x')}) {
    const absl::Status status = Plan(Spec(OptimizerKind::kAdamW, {"a", name})).status();
    EXPECT_EQ(ReasonOf(status), Reason::kBadSpec) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be a folder"));
  }
}

TEST(Universal, RefusesUnequalStepsWithinAGroupOnly) {
  JobSpec spec = Spec(OptimizerKind::kAdamW, {"a", "b", "c"});
  spec.group_count = 2;
  spec.tensors[2].group = 1;
  EXPECT_TRUE(CheckUniversalSteps(spec, {5, 5, 7}).ok());
  const absl::Status status = CheckUniversalSteps(spec, {5, 6, 7});
  EXPECT_EQ(ReasonOf(status), Reason::kUnsupported);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"a\" has taken 5 steps and \"b\" 6"));
}

// The file that torch 2.13 loads as the number 5.
TEST(TorchFile, HasTheseBytes) {
  TorchPickle pickle;
  pickle.Int(5);
  const std::string file = EncodeTorchFile(pickle.Finish(), {});
  EXPECT_EQ(absl::BytesToHexString(file.substr(0, 54)),
            "504b0304140000080000000021002fe0731b08000000080000001000"
            "0000617263686976652f646174612e706b6c80024a050000002e");
  EXPECT_EQ(file.substr(file.size() - 22, 4), "PK\5\6");
}

TEST(TorchFile, TakesValuesInAnyOrder) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/d").ok());
  const std::vector<float> values = {1, -2, 3.5, 0, 5, 6};
  auto file = TorchTensorFile::Create(&disk, "/d/a.pt", {3, 2});
  ASSERT_TRUE(file.ok()) << file.status();
  const auto write = [&](uint64_t begin, uint64_t count) {
    return (*file)->Write(begin, reinterpret_cast<const char*>(&values[begin]), count);
  };
  EXPECT_FALSE(*write(4, 2));
  EXPECT_EQ((*file)->Finish().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(*write(0, 1));
  EXPECT_TRUE(*write(1, 3));
  ASSERT_TRUE((*file)->Finish().ok());

  const std::string bytes = *ReadWholeFile(&disk, "/d/a.pt", 1 << 20);
  EXPECT_EQ(bytes.size(), TorchTensorFile::FileBytes({3, 2}));
  const std::string data(reinterpret_cast<const char*>(values.data()), 24);
  const size_t at = bytes.find(data);
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(at % 64, 0);
  const auto crc =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
  const std::string sum(reinterpret_cast<const char*>(&crc), sizeof(crc));
  EXPECT_NE(bytes.find(sum), bytes.rfind(sum)) << "in the header and in the directory";
}

TEST(TorchFile, IsCompleteWithoutElements) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/d").ok());
  EXPECT_TRUE((*TorchTensorFile::Create(&disk, "/d/a.pt", {0, 2}))->Finish().ok());
}

TEST(StoredZip, HasLargeSizesFrom4GiBOn) {
  const uint64_t large = uint64_t{5} << 30;
  StoredZip zip({{"small", "x"}}, "large", large, 64);
  const std::string tail = zip.Tail();
  EXPECT_EQ(zip.data_offset() % 64, 0);
  EXPECT_EQ(zip.archive_bytes(), zip.data_offset() + large + tail.size());
  const auto number = [&tail](size_t at) {
    uint64_t value = 0;
    std::memcpy(&value, &tail[at], sizeof(value));
    return value;
  };
  const size_t end = tail.find("PK\6\6");
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(number(end + 48), zip.data_offset() + large) << "where the directory begins";
  EXPECT_EQ(number(end + 40), end) << "its bytes";
  EXPECT_EQ(number(tail.find("PK\6\7") + 8), zip.data_offset() + large + end);
  EXPECT_EQ(number(end - 8), large);
  EXPECT_EQ(StoredZip({}, "large", 100, 64).Tail().find("PK\6\6"), std::string::npos);
}

}  // namespace
}  // namespace ballast::server
