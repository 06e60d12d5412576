// Snapshots on a disk: every listed one is whole, and the leftovers of a crash are cleared away by
// the server that left them.
#include "server/snapshot/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/faults/failpoint.h"
#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "common/text/names.h"
#include "server/round/job_plan.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kRoot[] = "/snapshots";
constexpr uint64_t kId = 0xabc;

class SnapshotStoreTest : public ::testing::Test {
 protected:
  SnapshotStoreTest() : plan_(testing::MakePlan({300, 5, 1000}, 1, {0, 1})) {
    plan_.spec.durability = Durability::kPower;
    layout_ = testing::LayoutOf(plan_);
  }
  SnapshotStore Store(uint32_t server, const std::string& owner = "me") {
    return SnapshotStore(&disk_, kRoot, server, owner);
  }
  SnapshotManifest Manifest(const std::string& name = "one", uint64_t id = kId) const {
    SnapshotManifest manifest;
    manifest.id = id;
    manifest.name = name;
    manifest.job = plan_.spec.name;
    manifest.created_s = id;
    manifest.round = 7;
    manifest.prepared.round = 6;
    manifest.decision.round = 6;
    return manifest;
  }
  void WriteParts(uint64_t id = kId) {
    const Arena image = *Arena::Create(size_t{1} << 20);
    for (const uint32_t server : plan_.servers) {
      auto part = Store(server).CreatePart(id, plan_, layout_);
      ASSERT_TRUE(part.ok()) << part.status();
      for (uint32_t extent = 0; extent < layout_.extents().size(); ++extent) {
        if (plan_.owner[extent] != server) continue;
        std::fill(image.data(), image.data() + 4096, static_cast<char>(extent));
        ASSERT_TRUE((*part)->Write(extent, 7, image.data()).ok());
      }
      ASSERT_TRUE((*part)->Sync().ok());
    }
  }
  void Take(const std::string& name = "one", uint64_t id = kId) {
    ASSERT_TRUE(Store(0).Begin(id, plan_.spec.name, name, 1000).ok());
    WriteParts(id);
    ASSERT_TRUE(Store(0).Commit(Manifest(name, id)).ok());
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto all = Store(0).List();
    EXPECT_TRUE(all.ok()) << all.status();
    for (const SnapshotManifest& one : *all) names.push_back(one.name);
    return names;
  }

  MemoryDisk disk_;
  JobPlan plan_;
  Layout layout_ = testing::LayoutOf(testing::MakePlan({1}, 1, {0}));
};

TEST_F(SnapshotStoreTest, IsListedOnceItsManifestIsThere) {
  EXPECT_THAT(Names(), IsEmpty()) << "there is not even a directory";
  ASSERT_TRUE(Store(0).Begin(kId, plan_.spec.name, "one", 1000).ok());
  WriteParts();
  EXPECT_THAT(Names(), IsEmpty());
  ASSERT_TRUE(Store(0).Commit(Manifest()).ok());
  EXPECT_THAT(Names(), ElementsAre("one"));
  EXPECT_TRUE(Store(1).Verify(Manifest(), plan_).ok());
  Take("two", kId + 1);
  EXPECT_THAT(Names(), ElementsAre("one", "two"));
  ASSERT_TRUE(Store(0).Remove(kId).ok());
  EXPECT_THAT(Names(), ElementsAre("two"));
  EXPECT_EQ(Store(0).Find(plan_.spec.name, "one").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SnapshotStoreTest, EachTenantHasItsOwn) {
  Take();
  SnapshotStore theirs = Store(0).Of("acme");
  EXPECT_EQ(theirs.Directory(kId), absl::StrCat(kRoot, "/@acme/", JobIdText(kId)));
  EXPECT_EQ(Store(0).Of(kDefaultTenant).Directory(kId), Store(0).Directory(kId));
  EXPECT_THAT(*theirs.List(), IsEmpty());
  EXPECT_EQ(theirs.Find(kId).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*Store(0).Tenants(), ElementsAre(kDefaultTenant));
  // The same name and even the same number.
  ASSERT_TRUE(theirs.Begin(kId, plan_.spec.name, "one", 1000).ok());
  ASSERT_TRUE(theirs.Commit(Manifest()).ok());
  EXPECT_EQ(theirs.Find(plan_.spec.name, "one")->tenant, "acme");
  EXPECT_EQ(Store(0).Find(plan_.spec.name, "one")->tenant, kDefaultTenant);
  EXPECT_THAT(*Store(0).Tenants(), ElementsAre(kDefaultTenant, "acme"));
  // A start clears the unfinished snapshots of each tenant.
  ASSERT_TRUE(theirs.Begin(kId + 1, plan_.spec.name, "two", 1000).ok());
  ASSERT_TRUE(Store(0).Clear().ok());
  EXPECT_FALSE(disk_.List(theirs.Directory(kId + 1)).ok());
  ASSERT_TRUE(theirs.Remove(kId).ok());
  EXPECT_THAT(Names(), ElementsAre("one"));
}

TEST_F(SnapshotStoreTest, PartsTakeTheBytesThatAreToldBefore) {
  Take();
  for (const uint32_t server : plan_.servers) {
    const auto file = disk_.Open(Store(0).Directory(kId) + "/part-" + std::to_string(server), {});
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(*(*file)->Size(), SnapshotStore::PartBytes(plan_, layout_, server));
  }
}

TEST_F(SnapshotStoreTest, LeftoversOfACrashAreClearedByTheirOwnerOnly) {
  Take("whole", kId + 1);
  ASSERT_TRUE(Store(0).Begin(kId, plan_.spec.name, "half", 1000).ok());
  WriteParts();
  for (const char* other : {"another server", "another cluster's"}) {
    ASSERT_TRUE(Store(0, other).Clear().ok());
    EXPECT_TRUE(disk_.List(Store(0).Directory(kId)).ok());
  }
  ASSERT_TRUE(Store(0).Clear().ok());
  EXPECT_FALSE(disk_.List(Store(0).Directory(kId)).ok());
  EXPECT_THAT(Names(), ElementsAre("whole"));
}

TEST_F(SnapshotStoreTest, ADirectoryThatIsNotMarkedYetIsClearedByItsOwnerOnly) {
  Take();
  const std::string name = std::string(kRoot) + "/.0000000000000009.";
  for (const char* owner : {"this", "other"}) {
    ASSERT_TRUE(disk_.MakeDirectory(name + owner).ok());
    ASSERT_TRUE(ReplaceFile(&disk_, name + owner + "/TAKING.tmp", owner).ok());
  }
  ASSERT_TRUE(Store(0, "this").Clear().ok());
  EXPECT_FALSE(disk_.List(name + "this").ok());
  EXPECT_TRUE(disk_.List(name + "other").ok());
  EXPECT_THAT(Names(), ElementsAre("one"));
}

TEST_F(SnapshotStoreTest, ABeginThatFailsLeavesNothing) {
  ASSERT_TRUE(Store(0).Clear().ok());  // The root exists.
  disk_.Fail(MemoryDisk::Operation::kWrite, 1, ENOSPC);
  EXPECT_FALSE(Store(0).Begin(kId, plan_.spec.name, "one", 0).ok());
  EXPECT_THAT(*disk_.List(kRoot), IsEmpty());
}

TEST_F(SnapshotStoreTest, ARemovalThatWasBrokenOffIsFinished) {
  Take();
  ASSERT_TRUE(Failpoints::Configure("snapshot.after_remove=1*return(UNAVAILABLE)").ok());
  EXPECT_FALSE(Store(0).Remove(kId).ok());
  EXPECT_THAT(Names(), IsEmpty());
  ASSERT_TRUE(Store(0).Clear().ok());
  EXPECT_FALSE(disk_.List(Store(0).Directory(kId)).ok());
}

// The process ends before the root is flushed, so that the next one sees nothing to clear; then the
// power fails, and of the removed names some return.
TEST_F(SnapshotStoreTest, PowerLossAfterARemovalLeavesNoPartWithoutItsMark) {
  for (uint32_t kept = 0; kept < 128; ++kept) {
    Take("one", kId + kept);
    const std::string directory = Store(0).Directory(kId + kept);
    disk_.FailNext(MemoryDisk::Operation::kSync, kRoot, EIO);
    EXPECT_FALSE(Store(0).Remove(kId + kept).ok());
    ASSERT_TRUE(Store(0).Clear().ok());
    disk_.Crash([bits = uint64_t{kept}]() mutable { return std::exchange(bits, bits >> 1); });
    ASSERT_TRUE(Store(0).Clear().ok());
    EXPECT_THAT(disk_.List(directory).value_or(std::vector<std::string>()), IsEmpty()) << kept;
  }
}

// The directory itself was made by the server.
TEST_F(SnapshotStoreTest, ATakenOneSurvivesPowerLoss) {
  for (const bool cleared : {true, false}) {
    if (cleared) {
      ASSERT_TRUE(Store(0).Clear().ok());
    }
    Take(cleared ? "one" : "two", cleared ? kId : kId + 1);
    disk_.Crash([] { return 1; });
    EXPECT_THAT(Names(), Contains(cleared ? "one" : "two"));
    ASSERT_TRUE(disk_.RemoveAll(kRoot).ok());
  }
}

TEST_F(SnapshotStoreTest, PowerLossLeavesAWholeOneOrNone) {
  Take();
  disk_.Crash([] { return 1; });
  for (const std::string& name : Names()) {
    const auto manifest = Store(0).Find(plan_.spec.name, name);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const absl::Status whole = Store(0).Verify(*manifest, plan_);
    EXPECT_TRUE(whole.ok()) << whole;
  }
}

TEST_F(SnapshotStoreTest, NamesAreUniqueInAJob) {
  Take();
  const absl::Status again = Store(0).Begin(kId + 1, plan_.spec.name, "one", 1000);
  EXPECT_EQ(ReasonOf(again), Reason::kNameInUse);
  EXPECT_TRUE(Store(0).Begin(kId + 1, "another job", "one", 1000).ok());
}

TEST_F(SnapshotStoreTest, TooLittleRoomIsToldBeforeAnythingIsWritten) {
  const absl::Status status = Store(0).Begin(kId, plan_.spec.name, "one", uint64_t{1} << 50);
  EXPECT_EQ(ReasonOf(status), Reason::kOverBudget);
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes 1125899906842624 bytes"));
  EXPECT_FALSE(disk_.List(Store(0).Directory(kId)).ok());
}

TEST_F(SnapshotStoreTest, AServerThatSharesNoDirectorySaysSo) {
  const absl::Status status = Store(1).CreatePart(kId, plan_, layout_).status();
  EXPECT_EQ(ReasonOf(status), Reason::kUnsupported);
  EXPECT_THAT(std::string(status.message()), HasSubstr("storage.snapshot_dir"));
}

// A job on one server that continues from the snapshot of two.
class LentParts : public SnapshotStoreTest {
 protected:
  LentParts() : to_(plan_) {
    to_.job = 99;
    to_.servers = {3};
    for (uint32_t& owner : to_.owner) owner = 3;
    EXPECT_TRUE(disk_.MakeDirectory("job").ok());
    Take();
  }
  absl::Status Lend() { return Store(3).Lend(Manifest(), plan_, layout_, to_, "job"); }

  JobPlan to_;
};

TEST_F(LentParts, AreLinkedAndOutliveTheSnapshot) {
  ASSERT_TRUE(Lend().ok());
  EXPECT_THAT(*disk_.List("job"), ElementsAre("base", "base-0", "base-1"));
  ASSERT_TRUE(Store(0).Remove(kId).ok());
  const auto base = DecodeImageBase(*ReadWholeFile(&disk_, ImageBasePath("job"), 1 << 20));
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ(base->job, 99u);
  EXPECT_EQ(base->server, 3u);
  EXPECT_EQ(base->round, 7u);
  size_t extents = 0;
  for (const ImageBasePart& part : base->parts) {
    auto opened = ImageFile::Open(&disk_, ImageBasePartPath("job", part.server),
                                  ImageBasePartOptions(*base, part.server, true), part.shapes);
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const ImageShape& shape : part.shapes) {
      EXPECT_THAT((*opened)->Versions(shape.extent), ElementsAre(7u));
      ++extents;
    }
  }
  EXPECT_EQ(extents, layout_.extents().size());
}

TEST_F(LentParts, LeaveNothingWhereTheyCannotBeLinked) {
  disk_.Fail(MemoryDisk::Operation::kLink, 2, EXDEV);
  const absl::Status lent = Lend();
  EXPECT_EQ(lent.code(), absl::StatusCode::kUnimplemented) << lent;
  EXPECT_THAT(std::string(lent.message()), HasSubstr("job/base-1"));
  EXPECT_THAT(*disk_.List("job"), IsEmpty());
}

TEST_F(LentParts, AreRefusedWhenOneIsDamagedOrMissing) {
  const std::string part = Store(0).Directory(kId) + "/part-1";
  ASSERT_TRUE(disk_.FlipBit(part, kPageBytes + 33, 1).ok());
  EXPECT_EQ(ReasonOf(Lend()), Reason::kStateLost);
  ASSERT_TRUE(disk_.Remove(part).ok());
  EXPECT_EQ(ReasonOf(Lend()), Reason::kStateLost);
  EXPECT_THAT(*disk_.List("job"), IsEmpty());
}

TEST_F(SnapshotStoreTest, DamageIsNamedWhereverItIs) {
  Take();
  const std::string part = Store(0).Directory(kId) + "/part-1";
  ASSERT_TRUE(disk_.FlipBit(part, 3 * kPageBytes, 1).ok());
  absl::Status status = Store(0).Verify(Manifest(), plan_);
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  ASSERT_TRUE(disk_.Remove(part).ok());
  status = Store(0).Verify(Manifest(), plan_);
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  ASSERT_TRUE(disk_.FlipBit(Store(0).Directory(kId) + "/MANIFEST", 30, 1).ok());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(ReasonOf(Store(0).Find(kId).status()), Reason::kStateLost);
}

TEST_F(SnapshotStoreTest, ATemporaryOneHasNoOwnerAndEndsWithItsTaker) {
  const std::string name(kPassingSnapshotName);
  Take();
  Take(name, kId + 1);
  Take(name, kId + 2);  // Two exports at a time.
  EXPECT_THAT(Names(), ElementsAre("one"));
  EXPECT_EQ(Store(0).Find(plan_.spec.name, name).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Store(0).Find(kId + 1)->name, name);
  ASSERT_TRUE(Store(1, "another").Clear().ok());
  EXPECT_TRUE(Store(0).Find(kId + 1).ok());
  ASSERT_TRUE(Store(0).Clear().ok());
  EXPECT_EQ(disk_.List(kRoot)->size(), 1u);
  EXPECT_THAT(Names(), ElementsAre("one"));
}

TEST_F(SnapshotStoreTest, ANamedOneSurvivesACrashThatKeptItsMark) {
  Take();
  const std::string mark = Store(0).Directory(kId) + "/TAKING";
  ASSERT_TRUE(ReplaceFile(&disk_, mark, "me").ok());
  ASSERT_TRUE(Store(0).Clear().ok());
  EXPECT_THAT(Names(), ElementsAre("one"));
}

TEST_F(SnapshotStoreTest, VerifyingEndsWhenItIsToldTo) {
  Take();
  int asked = 0;
  const absl::Status status = Store(0).Verify(Manifest(), plan_, [&] {
    return ++asked == 2 ? absl::CancelledError("no more") : absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "no more");
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace ballast::server
