// States of extents into files and back: the same bits, whatever lies across tiles, extents, pages
// and files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "common/faults/failpoint.h"
#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "server/durability/images/image_file.h"
#include "server/exchange/export_writer.h"
#include "server/exchange/exports.h"
#include "server/exchange/import_source.h"
#include "server/exchange/state_image.h"
#include "server/exchange/torch_file.h"
#include "server/exchange/universal.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

constexpr ExportOrigin kOrigin = {.snapshot = 0xabc, .round = 5};
constexpr char kDirectory[] = "/exports/one";

// Random tensors of all dtypes in two groups, and a random state of each extent.
class RoundTrip {
 public:
  explicit RoundTrip(uint32_t seed) : random_(seed), layout_(MakeLayout()) {
    for (uint32_t e = 0; e < layout_.extents().size(); ++e) {
      std::vector<float>& state = states_[e];
      state.resize(size_t{layout_.extents()[e].elements} * 3);
      for (float& value : state) value = std::normal_distribution<float>()(random_);
    }
    for (size_t t = 0; t < spec_.tensors.size(); ++t) steps_.push_back(random_() % 1000);
  }

  absl::Status Export(const ExportOptions& options, ExportOrigin origin = kOrigin) {
    for (const char* directory : {kDirectory, "/exports/one/optimizer"}) {
      const absl::Status made = disk_.MakeDirectory(directory);
      if (!made.ok()) return made;
    }
    const auto shards = PlanExport(spec_, origin, options);
    if (!shards.ok()) return shards.status();
    ExportSource source;
    source.layout = &layout_;
    source.arrays = StateArrayCount(spec_);
    source.read = [this](uint32_t extent, void* image) {
      std::memcpy(image, states_.at(extent).data(), states_.at(extent).size() * sizeof(float));
      return absl::OkStatus();
    };
    source.tensor_step = steps_;
    for (const ExportShard& shard : *shards) {
      const absl::Status status = WriteExport(&disk_, kDirectory, shard, source);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ImportSource>> Open() {
    return ImportSource::Open(&disk_, kDirectory, spec_, layout_, kOrigin, simd::Isa::kScalar);
  }
  void ExpectEqualStates(const ImportSource& source) {
    const size_t bytes =
        ImageFile::BufferBytes({0, layout_.extent_elements(), StateArrayCount(spec_)});
    const Arena image = *Arena::Create(bytes);
    const Arena scratch = *Arena::Create(source.scratch_bytes());
    for (const auto& [extent, state] : states_) {
      auto* const floats = reinterpret_cast<float*>(image.data());
      const absl::Status read = source.ReadExtent(extent, floats, scratch.data());
      ASSERT_TRUE(read.ok()) << read;
      ASSERT_EQ(std::memcmp(floats, state.data(), state.size() * sizeof(float)), 0) << extent;
    }
  }

  // Each file of a universal checkpoint has its values, somewhere at a whole number of 64 bytes.
  void ExpectUniversal(const std::vector<ExportShard>& shards) {
    for (const ExportShard& shard : shards) {
      for (uint32_t i = 0; i < shard.tensor_count; ++i) {
        const UniversalFolder& folder = shard.universal[i];
        for (uint32_t array = 0; array < folder.files.size(); ++array) {
          const std::string path =
              std::string(kDirectory) + "/" + folder.path + "/" + folder.files[array];
          const auto bytes = ReadWholeFile(&disk_, path, 1 << 20);
          ASSERT_TRUE(bytes.ok()) << bytes.status();
          ASSERT_EQ(bytes->size(), TorchTensorFile::FileBytes(folder.shape));
          const std::string values = ValuesOf(shard.first_tensor + i, array);
          const size_t at = bytes->find(values, bytes->find("archive/data/0"));
          ASSERT_NE(at, std::string::npos) << path;
          ASSERT_TRUE(values.empty() || at % 64 == 0) << path;
        }
      }
    }
  }
  // All that is there has the bytes that were told before.
  void ExpectOnDisk(const ExportOptions& options, uint64_t last_bytes) {
    const auto shards = PlanExport(spec_, kOrigin, options);
    EXPECT_EQ(*Exports(&disk_, "/exports", "me").BytesOnDisk("one"),
              *ExportBytes(*shards) + last_bytes);
  }
  // Equal steps for all.
  void SetSteps(uint64_t step) { steps_.assign(steps_.size(), step); }

  MemoryDisk& disk() { return disk_; }
  JobSpec& spec() { return spec_; }
  const std::vector<uint64_t>& steps() const { return steps_; }

 private:
  // The bytes of a tensor in one state array.
  std::string ValuesOf(uint32_t tensor, uint32_t array) const {
    std::string values(layout_.tensors()[tensor].elements * sizeof(float), '\0');
    for (uint32_t e = 0; e < layout_.extents().size(); ++e) {
      const Extent& extent = layout_.extents()[e];
      const ArrayPieces pieces{layout_, e, StateArrayCount(spec_), array};
      for (uint32_t r = 0; r < extent.run_count; ++r) {
        const Run& run = layout_.runs()[extent.first_run + r];
        if (run.tensor != tensor) continue;
        pieces.Gather(states_.at(e).data(), run.extent_offset, run.elements,
                      &values[run.tensor_offset * sizeof(float)]);
      }
    }
    return values;
  }

  Layout MakeLayout() {
    spec_.name = "job";
    spec_.group_count = 2;
    spec_.tile_elements = 64;
    spec_.extent_elements = 256;
    for (uint32_t t = 0; t < 12; ++t) {
      const auto dtype = static_cast<DType>(1 + random_() % 3);
      const auto rows = static_cast<int64_t>(random_() % 40);
      spec_.tensors.push_back({"t" + std::to_string(t),
                               {rows, 1 + static_cast<int64_t>(random_() % 30)},
                               dtype,
                               static_cast<uint32_t>(random_() % 2),
                               {}});
    }
    spec_.tensors.push_back({"scalar", {}, DType::kF16, 1, {}});
    return *LayoutOfSpec(spec_);
  }

  std::mt19937 random_;
  JobSpec spec_;
  MemoryDisk disk_;
  Layout layout_;
  std::map<uint32_t, std::vector<float>> states_;
  std::vector<uint64_t> steps_;
};

TEST(ExchangeRoundTrip, BringsBackEveryBit) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    RoundTrip trip(seed);
    ExportOptions options{.state = true, .shards = 1 + seed % 4};
    if (seed % 3 == 1) options.dtype = DType::kF16;
    const absl::Status exported = trip.Export(options);
    ASSERT_TRUE(exported.ok()) << exported;
    const auto source = trip.Open();
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE((*source)->has_state());
    EXPECT_EQ((*source)->tensor_step(), trip.steps());
    trip.ExpectEqualStates(**source);
  }
}

TEST(ExchangeRoundTrip, AUniversalCheckpointSurvivesPowerLossOnceItIsWritten) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    RoundTrip trip(seed);
    trip.SetSteps(4);
    const ExportOptions options{.shards = 1 + seed % 3, .format = ExportFormat::kUniversal};
    const absl::Status written = trip.Export(options);
    ASSERT_TRUE(written.ok()) << written;
    for (const char* directory : {"/", "/exports"}) {
      ASSERT_TRUE(trip.disk().SyncDirectory(directory).ok());
    }
    const PolicyState policy;
    const UniversalMoment moment{trip.spec(), kOrigin.round, policy, trip.steps()};
    const absl::Status rest = WriteUniversalRest(&trip.disk(), kDirectory, moment);
    ASSERT_TRUE(rest.ok()) << rest;
    trip.ExpectOnDisk(options, Exports::LastBytes(moment));
    std::mt19937 chance(seed);
    trip.disk().Crash([&chance] { return chance(); });
    EXPECT_EQ(*ReadWholeFile(&trip.disk(), "/exports/one/latest_universal", 100), "global_step4");
    trip.ExpectUniversal(*PlanExport(trip.spec(), kOrigin, options));
  }
}

TEST(ExchangeRoundTrip, AJobOfOtherTensorsIsRefused) {
  RoundTrip trip(1);
  ASSERT_TRUE(trip.Export({.state = true}).ok());
  TensorSpec& tensor = trip.spec().tensors[3];
  tensor.shape[0] += 1;
  absl::Status status = trip.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("t3\" has shape"));
  tensor.shape[0] -= 1;
  tensor.name = "other";
  status = trip.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no tensor \"other\""));
}

TEST(ExchangeRoundTrip, AWeightMayBeCalledAsAnothersState) {
  for (const bool state : {false, true}) {
    RoundTrip trip(4);
    const char* const names[] = {"w", "master.w", "exp_avg.w", "step.w"};
    for (size_t t = 0; t < 4; ++t) trip.spec().tensors[t].name = names[t];
    ASSERT_TRUE(trip.Export({.dtype = DType::kF32, .state = state}).ok());
    if (!state) {
      ASSERT_TRUE(trip.disk().RemoveAll("/exports/one/optimizer").ok());
    }
    const auto source = trip.Open();
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->has_state(), state);
    if (state) trip.ExpectEqualStates(**source);
  }
}

TEST(ExchangeRoundTrip, AReadThatFailsLeavesNoFile) {
  RoundTrip trip(2);
  ASSERT_TRUE(trip.disk().MakeDirectory(kDirectory).ok());
  const auto shards = PlanExport(trip.spec(), kOrigin, {});
  ASSERT_TRUE(shards.ok());
  ExportSource source;
  const Layout layout = *LayoutOfSpec(trip.spec());
  source.layout = &layout;
  source.arrays = StateArrayCount(trip.spec());
  source.read = [](uint32_t, void*) { return absl::DataLossError("this extent is damaged"); };
  const absl::Status status = WriteExport(&trip.disk(), kDirectory, shards->front(), source);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(trip.disk().List(kDirectory)->empty());
}

TEST(ExportsTest, TheFilesThatComeLastHaveTheBytesThatAreToldBefore) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    RoundTrip trip(seed);
    const ExportOptions options{.state = seed % 2 == 0, .shards = 1 + seed % 3};
    ASSERT_TRUE(trip.Export(options).ok());
    const auto shards = PlanExport(trip.spec(), kOrigin, options);
    SnapshotManifest manifest;
    manifest.job = "job";
    manifest.plan = std::string(seed, 'x');
    Exports exports(&trip.disk(), "/exports", "me");
    ASSERT_TRUE(ReplaceFile(&trip.disk(), "/exports/one/EXPORTING", "me").ok());
    ASSERT_TRUE(exports.Commit("one", *shards, manifest).ok());
    trip.ExpectOnDisk(options, *Exports::LastBytes(*shards, manifest));
  }
}

TEST(ExportsTest, ANameIsNoPath) {
  MemoryDisk disk;
  Exports exports(&disk, "/exports", "me");
  for (const char* name : {"", "..", "a/b", "../up", ".hidden", "-x", "a\nb"}) {
    EXPECT_EQ(exports.Begin(name, 1, false).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_FALSE(disk.List("/exports").ok());
}

TEST(ExportsTest, ABeginThatFailsLeavesNothing) {
  MemoryDisk disk;
  Exports exports(&disk, "/exports", "me");
  ASSERT_TRUE(Failpoints::Configure("export.after_begin=1*return(RESOURCE_EXHAUSTED)").ok());
  EXPECT_FALSE(exports.Begin("one", 1, true).ok());
  EXPECT_TRUE(disk.List("/exports")->empty());
  EXPECT_TRUE(exports.Begin("one", 1, true).ok());
}

// The directory itself was made by the server.
TEST(ExportsTest, AFinishedOneSurvivesPowerLoss) {
  MemoryDisk disk;
  Exports exports(&disk, "/data/exports", "me");
  ASSERT_TRUE(exports.Begin("one", 1, false).ok());
  SnapshotManifest manifest;
  manifest.id = 1;
  manifest.name = "s";
  manifest.round = 5;
  manifest.prepared.round = 4;
  manifest.decision.round = 4;
  ASSERT_TRUE(exports.Commit("one", {}, manifest).ok());
  disk.Crash([] { return 1; });
  EXPECT_TRUE(ReadJobFile(&disk, "/data/exports/one").ok());
}

TEST(ExportsTest, LeftoversOfACrashAreClearedByTheirOwnerOnly) {
  MemoryDisk disk;
  Exports mine(&disk, "/exports", "me");
  Exports other(&disk, "/exports", "another");
  ASSERT_TRUE(mine.Begin("half", 1, true).ok());
  ASSERT_TRUE(mine.Begin("whole", 1, false).ok());
  SnapshotManifest manifest;
  manifest.id = 1;
  manifest.name = "s";
  manifest.round = 5;
  manifest.prepared.round = 4;
  manifest.decision.round = 4;
  ASSERT_TRUE(mine.Commit("whole", {}, manifest).ok());
  ASSERT_TRUE(other.Clear().ok());
  EXPECT_TRUE(disk.List("/exports/half").ok());
  ASSERT_TRUE(mine.Clear().ok());
  EXPECT_FALSE(disk.List("/exports/half").ok());
  EXPECT_TRUE(ReadJobFile(&disk, "/exports/whole").ok());
  EXPECT_EQ(mine.CheckNew("whole").code(), absl::StatusCode::kAlreadyExists);
}

TEST(ExportsTest, EachTenantHasItsOwn) {
  MemoryDisk disk;
  Exports root(&disk, "/exports", "me");
  Exports theirs = root.Of("acme");
  EXPECT_EQ(theirs.Directory("one"), "/exports/@acme/one");
  EXPECT_EQ(root.Of(kDefaultTenant).Directory("one"), "/exports/one");
  EXPECT_EQ(root.CheckNew("@acme").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(root.Begin("one", 1, false).ok());
  ASSERT_TRUE(theirs.Begin("one", 1, false).ok());
  ASSERT_TRUE(theirs.Remove("one").ok());
  EXPECT_TRUE(disk.List("/exports/one").ok());
  ASSERT_TRUE(theirs.Begin("two", 1, false).ok());
  ASSERT_TRUE(root.Clear().ok());
  EXPECT_FALSE(disk.List("/exports/@acme/two").ok());
}

TEST(ExchangeRoundTrip, FilesOfAnotherRoundAreRefusedWithBothRounds) {
  RoundTrip trip(3);
  ASSERT_TRUE(trip.Export({.state = true}, kOrigin).ok());
  ASSERT_TRUE(trip.Export({.state = false}, {.snapshot = kOrigin.snapshot, .round = 6}).ok());
  const absl::Status status = trip.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/exports/one/model.safetensors is of round \"6\""),
                    HasSubstr("job.ballast of round 5")));
}

TEST(ExchangeRoundTrip, FilesOfAnotherExportOfTheSameRoundAreRefused) {
  RoundTrip trip(3);
  ASSERT_TRUE(trip.Export({.state = true}).ok());
  ASSERT_TRUE(trip.Export({}, {.snapshot = kOrigin.snapshot + 1, .round = kOrigin.round}).ok());
  const absl::Status status = trip.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/exports/one/model.safetensors is of snapshot \"0000000000000abd\""),
                    HasSubstr("job.ballast of snapshot 0000000000000abc")));
}

TEST(ExchangeRoundTrip, FilesThatDoNotSayTheirRoundAreTaken) {
  RoundTrip trip(3);
  ASSERT_TRUE(trip.Export({}).ok());
  const std::string path = std::string(kDirectory) + "/model.safetensors";
  std::string file = *ReadWholeFile(&trip.disk(), path, size_t{1} << 30);
  for (const std::string key : {"ballast.round", "ballast.snapshot"}) {
    file.replace(file.find(key), key.size(), std::string(key.size(), 'x'));
  }
  ASSERT_TRUE(ReplaceFile(&trip.disk(), path, file).ok());
  ASSERT_TRUE(trip.disk().RemoveAll("/exports/one/optimizer").ok());
  EXPECT_TRUE(trip.Open().ok()) << trip.Open().status();
}

TEST(ExchangeRoundTrip, ExportsEndWhenTheyAreToldToAndLeaveNoFile) {
  RoundTrip trip(2);
  ASSERT_TRUE(trip.disk().MakeDirectory(kDirectory).ok());
  const auto shards = PlanExport(trip.spec(), kOrigin, {});
  ASSERT_TRUE(shards.ok());
  const Layout layout = *LayoutOfSpec(trip.spec());
  ExportSource source;
  source.layout = &layout;
  source.arrays = StateArrayCount(trip.spec());
  source.read = [](uint32_t, void* image) {
    std::memset(image, 0, 4096);
    return absl::OkStatus();
  };
  std::atomic<int> extents{0};
  source.go_on = [&] {
    return ++extents > 2 ? absl::UnavailableError("the server stops") : absl::OkStatus();
  };
  const absl::Status status = WriteExport(&trip.disk(), kDirectory, shards->front(), source);
  EXPECT_EQ(status.message(), "the server stops");
  EXPECT_TRUE(trip.disk().List(kDirectory)->empty());
}

TEST(ExportsTest, ADirectoryHasItsMarkBeforeAnybodySeesItsName) {
  MemoryDisk disk;
  Exports exports(&disk, "/exports", "me");
  // The leftovers of a kill before the mark.
  ASSERT_TRUE(disk.MakeDirectory("/exports/.one.me").ok());
  ASSERT_TRUE(disk.MakeDirectory("/exports/.two.another").ok());
  ASSERT_TRUE(Failpoints::Configure("export.before_mark=pause").ok());
  std::thread begin([&] { EXPECT_TRUE(exports.Begin("one", 1, true).ok()); });
  Failpoints::WaitForPause("export.before_mark");
  EXPECT_FALSE(disk.List("/exports/one").ok());
  Failpoints::Reset();
  begin.join();
  EXPECT_TRUE(ReadWholeFile(&disk, "/exports/one/EXPORTING", 64).ok());
  ASSERT_TRUE(disk.MakeDirectory("/exports/.three.me").ok());
  ASSERT_TRUE(exports.Clear().ok());
  EXPECT_THAT(*disk.List("/exports"), ::testing::ElementsAre(".two.another"));
}

TEST(ExportsTest, AnExportAndItsSnapshotHaveToFitTogether) {
  MemoryDisk disk;
  disk.SetCapacity(1 << 20);
  const Exports exports(&disk, "/exports", "me");
  EXPECT_TRUE(exports.CheckRoom(600 << 10, 400 << 10, "/snapshots").ok());
  EXPECT_TRUE(exports.CheckRoom(0, 1 << 20, "/snapshots").ok());
  for (const auto& [bytes, before] : {std::pair{600 << 10, 500 << 10}, {1, 2 << 20}}) {
    const absl::Status status = exports.CheckRoom(bytes, before, "/snapshots");
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::to_string(bytes) + " bytes"), HasSubstr("in /exports"),
                      HasSubstr(std::to_string(before) + " bytes"), HasSubstr("in /snapshots"),
                      HasSubstr("1048576 are free"), HasSubstr("--snapshot")));
  }
}

}  // namespace
}  // namespace ballast::server
