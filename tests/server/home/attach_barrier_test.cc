// The attach barrier: the seat of each process, and the refusals by name.
#include "server/home/attach_barrier.h"

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

TEST(AttachBarrierTest, AllAttachedWhenEverySlotHasASeat) {
  AttachBarrier barrier(Call(0));
  ASSERT_TRUE(barrier.Attach(Call(1)).ok());
  EXPECT_EQ(barrier.MissingSlots(), std::vector<uint32_t>{0});
  ASSERT_TRUE(barrier.Attach(Call(0)).ok());
  EXPECT_TRUE(barrier.AllAttached());
  ASSERT_EQ(barrier.Members().size(), 2u);
  EXPECT_EQ(barrier.Members()[1].incarnation, 101u);
}

TEST(AttachBarrierTest, RefusesMismatchesByNameAndStaysAsItWas) {
  AttachBarrier barrier(Call(0));
  ASSERT_TRUE(barrier.Attach(Call(0)).ok());
  const auto refused = [&](auto spoil, Reason reason, const std::string& text) {
    AttachCall call = Call(1);
    spoil(&call);
    const absl::Status status = barrier.Attach(call);
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
    EXPECT_EQ(barrier.MissingSlots(), std::vector<uint32_t>{1});
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

// The message of an older trainer lacks the field, which then reads as local gradients.
TEST(AttachBarrierTest, ATrainerThatKnowsNoReducedGradientsIsRefusedWhereTheyAre) {
  AttachCall newer = Call(0);
  newer.spec.gradients = Gradients::kReduced;
  AttachBarrier barrier(newer);
  ASSERT_TRUE(barrier.Attach(newer).ok());
  const absl::Status status = barrier.Attach(Call(1));
  EXPECT_EQ(ReasonOf(status), Reason::kSpecMismatch);
  EXPECT_NE(std::string(status.message()).find("gradients is local, the job has reduced"),
            std::string::npos)
      << status;
  EXPECT_EQ(barrier.MissingSlots(), std::vector<uint32_t>{1});
}

TEST(AttachBarrierTest, CancelledSeatIsFreeForAnotherProcess) {
  AttachBarrier barrier(Call(0));
  ASSERT_TRUE(barrier.Attach(Call(0)).ok());
  barrier.Cancel(0, 999);
  EXPECT_FALSE(barrier.Empty()) << "only the seat's own process can give it up";
  barrier.Cancel(0, 100);
  EXPECT_TRUE(barrier.Empty());
}

}  // namespace
}  // namespace ballast::server
