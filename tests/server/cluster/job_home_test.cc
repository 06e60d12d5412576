// The attach and extend barriers: who may sit where, and what is refused by name.
#include "server/cluster/job_home.h"

#include <gtest/gtest.h>

#include "common/base/reason.h"

namespace ballast::server {
namespace {

AttachCall Call(uint32_t slot) {
  AttachCall call;
  call.spec.name = "job";
  call.spec.world = 2;
  call.spec.tensors = {{"a", {4}, DType::kF32, 0, {}}, {"b", {2}, DType::kF32, 0, {}}};
  call.slot = slot;
  call.incarnation = 100 + slot;
  call.tensor_crc32c = {1, 2};
  return call;
}

ExtendCall Growth(uint32_t slot) {
  ExtendCall call;
  call.slot = slot;
  call.incarnation = 100 + slot;
  call.epoch = 1;
  call.base_layout_version = 1;
  call.group_count = 2;
  call.tensors = {{"c", {8}, DType::kF32, 1, {}}};
  call.tensor_crc32c = {3};
  return call;
}

TEST(JobHomeTest, AllAttachedWhenEverySlotHasASeat) {
  JobHome home(Call(0));
  ASSERT_TRUE(home.Attach(Call(1)).ok());
  EXPECT_EQ(home.MissingSlots(), std::vector<uint32_t>{0});
  ASSERT_TRUE(home.Attach(Call(0)).ok());
  EXPECT_TRUE(home.AllAttached());
  ASSERT_EQ(home.Members().size(), 2u);
  EXPECT_EQ(home.Members()[1].incarnation, 101u);
}

TEST(JobHomeTest, RefusesMismatchesByNameAndStaysAsItWas) {
  JobHome home(Call(0));
  ASSERT_TRUE(home.Attach(Call(0)).ok());
  const auto refused = [&](auto spoil, Reason reason, const std::string& text) {
    AttachCall call = Call(1);
    spoil(&call);
    const absl::Status status = home.Attach(call);
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
    EXPECT_EQ(home.MissingSlots(), std::vector<uint32_t>{1});
  };
  refused([](AttachCall* c) { c->spec.max_grad_norm = 1; }, Reason::kSpecMismatch, "max_grad_norm");
  refused([](AttachCall* c) { c->tensor_crc32c[1] = 9; }, Reason::kInitMismatch, "\"b\"");
  refused([](AttachCall* c) { c->tensor_crc32c.pop_back(); }, Reason::kBadSpec, "digests");
  refused([](AttachCall* c) { c->slot = 2; }, Reason::kBadSpec, "outside the world");
  refused([](AttachCall* c) { c->slot = 0; }, Reason::kSlotTaken, "slot 0");
  refused(
      [](AttachCall* c) {
        c->init = InitMode::kBroadcast;
        c->tensor_crc32c.clear();
      },
      Reason::kSpecMismatch, "init modes");
}

TEST(JobHomeTest, CancelledSeatIsFreeForAnotherProcess) {
  JobHome home(Call(0));
  ASSERT_TRUE(home.Attach(Call(0)).ok());
  home.Cancel(0, 999);
  EXPECT_FALSE(home.Empty()) << "only the seat's own process can give it up";
  home.Cancel(0, 100);
  EXPECT_TRUE(home.Empty());
}

TEST(JobHomeTest, ExtensionNeedsEverySlotAndEqualContent) {
  JobHome home(Call(0));
  ASSERT_TRUE(home.Attach(Call(0)).ok());
  ASSERT_TRUE(home.Attach(Call(1)).ok());
  ASSERT_TRUE(home.Extend(Growth(0), 1).ok());
  EXPECT_FALSE(home.AllExtended());
  ExtendCall other = Growth(1);
  other.tensors[0].shape = {9};
  EXPECT_EQ(ReasonOf(home.Extend(other, 1)), Reason::kLayoutMismatch);
  other = Growth(1);
  other.tensor_crc32c = {4};
  EXPECT_EQ(ReasonOf(home.Extend(other, 1)), Reason::kInitMismatch);
  EXPECT_EQ(ReasonOf(home.Extend(Growth(1), 2)), Reason::kLayoutMismatch);
  other = Growth(1);
  other.round = 9;
  EXPECT_EQ(ReasonOf(home.Extend(other, 1)), Reason::kLayoutMismatch);
  other = Growth(1);
  other.incarnation = 5;
  EXPECT_EQ(ReasonOf(home.Extend(other, 1)), Reason::kWrongIncarnation);
  ASSERT_TRUE(home.Extend(Growth(1), 1).ok());
  ASSERT_TRUE(home.AllExtended());
  JobSpec grown = home.spec();
  grown.tensors.push_back(Growth(0).tensors[0]);
  home.EndExtension(grown);
  EXPECT_EQ(home.spec().tensors.size(), grown.tensors.size());
  EXPECT_FALSE(home.AllExtended());
}

TEST(JobHomeTest, AfterAChangeOfEpochTheNewMembersGrowTheJob) {
  JobHome home(Call(0).spec);  // As after a restart of the home: nobody has a seat.
  EXPECT_EQ(ReasonOf(home.Extend(Growth(0), 1)), Reason::kWrongIncarnation);
  home.Reseat({{0, Growth(0).incarnation}, {1, 7777}});
  EXPECT_TRUE(home.Extend(Growth(0), 1).ok());
  EXPECT_EQ(ReasonOf(home.Extend(Growth(1), 1)), Reason::kWrongIncarnation);
  // Who has left is not waited for, and has no say; nor has the process before.
  EXPECT_FALSE(home.AllExtended());
  home.Reseat({{0, Growth(0).incarnation}});
  EXPECT_TRUE(home.AllExtended());
  home.Reseat({{0, 555}});
  EXPECT_FALSE(home.AllExtended());
}

}  // namespace
}  // namespace ballast::server
