// The settings of a job and the enums of ballast/types.h against their messages.
#include "proto/convert/job_convert.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/types/enum_names.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// The numbers of E are those of the wire's enum, and without `prefix` its names are E's texts.
template <NamedEnum E>
void ExpectTheWires(const google::protobuf::EnumDescriptor* wire, const std::string& prefix) {
  size_t known = 0;
  for (int i = 0; i < wire->value_count(); ++i) {
    const auto* const value = wire->value(i);
    if (absl::EndsWith(value->name(), "_UNSPECIFIED")) continue;
    ++known;
    const std::optional<E> ours = FromNumber<E>(value->number());
    ASSERT_TRUE(ours.has_value()) << value->name();
    const std::string name = absl::AsciiStrToLower(value->name().substr(prefix.size()));
    EXPECT_EQ(NameOf(*ours), absl::StrReplaceAll(name, {{"_", "-"}})) << value->name();
    EXPECT_EQ(FromName<E>(NameOf(*ours)), ours);
  }
  EXPECT_EQ(known, kEnumNames<E>.size()) << wire->name();
}

TEST(JobConvertTest, EnumsHaveTheNumbersAndTheNamesOfTheWire) {
  ExpectTheWires<InitMode>(v1::InitMode_descriptor(), "INIT_MODE_");
  ExpectTheWires<Durability>(v1::Durability_descriptor(), "DURABILITY_");
  ExpectTheWires<Device>(v1::Device_descriptor(), "DEVICE_");
  ExpectTheWires<NonfinitePolicy>(v1::NonfinitePolicy_descriptor(), "NONFINITE_POLICY_");
  ExpectTheWires<Gradients>(v1::Gradients_descriptor(), "GRADIENTS_");
  ExpectTheWires<Resume>(v1::Resume_descriptor(), "RESUME_");
  ExpectTheWires<PolicyProfile>(v1::PolicyProfile_descriptor(), "POLICY_PROFILE_");
  EXPECT_EQ(static_cast<int>(DType::kF32), v1::DTYPE_F32);
  EXPECT_EQ(static_cast<int>(DType::kBF16), v1::DTYPE_BF16);
  EXPECT_EQ(static_cast<int>(DType::kF16), v1::DTYPE_F16);
  // Its texts are words of a message about a rank.
  EXPECT_EQ(static_cast<int>(CollectivePhase::kReduceScatter), v1::COLLECTIVE_PHASE_REDUCE_SCATTER);
  EXPECT_EQ(static_cast<int>(CollectivePhase::kPull), v1::COLLECTIVE_PHASE_PULL);
  EXPECT_EQ(static_cast<int>(kEnumNames<CollectivePhase>.back().value), v1::CollectivePhase_MAX);
}

TEST(JobConvertTest, TextsOfAnEnumListAllItsNames) {
  EXPECT_EQ(NumberedNames<Durability>(), "power (1), process (2) and none (3)");
  EXPECT_EQ(QuotedNames<Durability>(), "'power', 'process' or 'none'");
  EXPECT_EQ(QuotedNames<NonfinitePolicy>(), "'skip' or 'halt'");
  EXPECT_EQ(FromName<Durability>("Power"), std::nullopt);
  EXPECT_EQ(FromNumber<Durability>(0), std::nullopt);
  EXPECT_EQ(FromNumber<Durability>(256 + 1), std::nullopt);
}

TEST(JobConvertTest, EachSettingSurvivesTheWire) {
  JobSpec spec;
  static_cast<JobSettings&>(spec) = {.world = 3,
                                     .variable_world = true,
                                     .max_grad_norm = 1.5,
                                     .loss_scale = 8,
                                     .nonfinite = NonfinitePolicy::kHalt,
                                     .max_consecutive_skips = 7,
                                     .gradients = Gradients::kScattered,
                                     .tile_elements = 64,
                                     .extent_elements = 128,
                                     .durability = Durability::kProcess,
                                     .device = Device::kNvme};
  v1::JobSpec message;
  ToProto(spec, &message);
  const auto back = JobSpecFromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  // A new setting does not compile here until it has its line above and below.
  const auto& [world, variable, norm, scale, nonfinite, skips, gradients, tile, extent, durability,
               device] = static_cast<const JobSettings&>(*back);
  EXPECT_EQ(world, 3u);
  EXPECT_TRUE(variable);
  EXPECT_EQ(norm, 1.5);
  EXPECT_EQ(scale, 8);
  EXPECT_EQ(nonfinite, NonfinitePolicy::kHalt);
  EXPECT_EQ(skips, 7u);
  EXPECT_EQ(gradients, Gradients::kScattered);
  EXPECT_EQ(tile, 64u);
  EXPECT_EQ(extent, 128u);
  EXPECT_EQ(durability, Durability::kProcess);
  EXPECT_EQ(device, Device::kNvme);
}

}  // namespace
}  // namespace ballast
