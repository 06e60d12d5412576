// Tests of server/durability/records/records.h: bytes of version 1, and refusal of everything else.
#include "server/durability/records/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/durability/records/policy_bytes.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

PreparedRecord SmallPrepared() {
  PreparedRecord record{.epoch = 2, .round = 41};
  record.vote = {.server = 3,
                 .norms = {{.extent = 5, .sumsq = 0.75}},
                 .nonfinite = 1,
                 .contributor_digest = 0xdeadbeef,
                 .scalars = {{.group = 1, .step = 40, .bits = {0x3f800000}}},
                 .first_nonfinite = {NonfiniteKind::kGradient, 5, 9, 1, 0x7fc00000}};
  record.present = {true, false, true};
  record.policy = {.loss_scale = 1024, .opt_step = 39, .consecutive_skips = 1};
  record.tensor_step = {40, 41};
  return record;
}

DecisionRecord SmallDecision() {
  DecisionRecord record{.epoch = 2, .round = 41};
  record.decision = {.applied = true,
                     .grad_norm = 2,
                     .clip_coef = 0.5,
                     .grad_scale = {0.25f},
                     .scalars = {{.group = 1, .step = 40, .bits = {0x3f800000}}},
                     .policy = {.loss_scale = 1024, .opt_step = 40}};
  return record;
}

// As docs/formats/log.md shows them.
const char kPreparedHex[] =
    "01000000"          // version
    "02000000"          // epoch
    "2900000000000000"  // round
    "03000000"          // server
    "efbeadde"          // contributor digest
    "0100000000000000"  // non-finite elements
    "01000000"
    "05000000"
    "09000000"
    "01000000"
    "0000c07f"  // the first: a NaN of slot 1 in extent 5, element 9
    "01000000"
    "05000000"
    "000000000000e83f"  // one norm: extent 5, 0.75
    "01000000"          // one set of scalars
    "01000000"
    "2800000000000000"
    "01000000"
    "0000803f"  // group 1, step 40, 1.0f
    "03000000"
    "05"  // three tensors, first and third present
    "02000000"
    "2800000000000000"
    "2900000000000000"  // two steps
    "01000000"
    "18000000"  // policy of version 1, 24 bytes
    "0000000000009040"
    "2700000000000000"
    "0100000000000000";
const char kDecisionHex[] =
    "01000000"          // version
    "02000000"          // epoch
    "2900000000000000"  // round
    "01000000"          // applied
    "0000000000000040"  // norm 2
    "000000000000e03f"  // clip 0.5
    "0000000000000000"  // non-finite elements
    "0000000000000000000000000000000000000000"
    "01000000"
    "0000803e"  // one factor, 0.25f
    "01000000"  // one set of scalars
    "01000000"
    "2800000000000000"
    "01000000"
    "0000803f"
    "01000000"
    "18000000"  // policy of version 1, 24 bytes
    "0000000000009040"
    "2800000000000000"
    "0000000000000000";

// Version 2 of PREPARED: version 1, followed by user states.
const char kUserStatesHex[] =
    "02000000"  // two slots
    "00000000"
    "02000000"
    "6869"  // slot 0: "hi"
    "07000000"
    "01000000"
    "00";  // slot 7: a zero

PreparedRecord PreparedWithStates() {
  PreparedRecord record = SmallPrepared();
  record.user_state = {{0, "hi"}, {7, std::string(1, '\0')}};
  return record;
}

TEST(Records, BytesOfPreparedVersionTwoStayAsTheyAre) {
  const std::string hex = absl::BytesToHexString(EncodePrepared(PreparedWithStates()));
  EXPECT_EQ(hex, absl::StrCat("02", std::string(kPreparedHex).substr(2), kUserStatesHex));
}

TEST(Records, ImpossibleUserStatesAreDataLoss) {
  const std::string good = EncodePrepared(PreparedWithStates());
  const size_t states = EncodePrepared(SmallPrepared()).size();
  std::string bad = good;
  bad[states + 14] = 0;  // Slot 0 twice.
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(bad).status()));
  bad = good;
  bad[states + 18] = 0;  // An empty state, and a byte too many.
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(bad).status()));
  bad = good.substr(0, states) + std::string(4, '\0');  // None: that would be version 1.
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(bad).status()));
}

// Version 3 of PREPARED and version 2 of DECISION are those of uploads.
TEST(Records, BytesOfUploadsStayAsTheyAre) {
  PreparedRecord prepared = PreparedWithStates();
  prepared.upload = UploadPlane::kWeights;
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(prepared)),
            absl::StrCat("03", std::string(kPreparedHex).substr(2), kUserStatesHex));
  prepared.user_state.clear();
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(prepared)),
            absl::StrCat("03", std::string(kPreparedHex).substr(2), "00000000"));
  DecisionRecord decision = SmallDecision();
  decision.decision.upload = UploadPlane::kWeights;
  std::string hex = kDecisionHex;
  hex.replace(0, 2, "02").replace(32, 2, "03");
  EXPECT_EQ(absl::BytesToHexString(EncodeDecision(decision)), hex);
}

// Version 4 of PREPARED and version 3 of DECISION are those of planes of the state.
TEST(Records, BytesOfStatePlanesStayAsTheyAre) {
  PreparedRecord prepared = SmallPrepared();
  prepared.upload = StatePlaneOf(1, /*low=*/true);
  const std::string hex = absl::StrCat("04", std::string(kPreparedHex).substr(2), "00000000");
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(prepared)),
            absl::StrCat(hex, "05000000", "00000000"));
  prepared.upload = StatePlaneOf(2);
  prepared.steps = StepCounts{{3, 0x100}, 9};
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(prepared)),
            absl::StrCat(hex, "06000000",  // the plane
                         "01000000",       // step counts:
                         "0900000000000000", "02000000", "0300000000000000", "0001000000000000"));
  prepared.steps->schedule_index = 0x107;
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(prepared)),
            absl::StrCat(hex, "06000000",
                         "02000000",  // a position of the schedule, and step counts:
                         "0701000000000000", "0900000000000000", "02000000", "0300000000000000",
                         "0001000000000000"));
  DecisionRecord decision = SmallDecision();
  decision.decision.upload = StatePlaneOf(2);
  std::string decided = kDecisionHex;
  decided.replace(0, 2, "03").replace(32, 2, "04");
  EXPECT_EQ(absl::BytesToHexString(EncodeDecision(decision)), decided + "06000000");
}

TEST(Records, PlanesThatDoNotExistAreDataLoss) {
  PreparedRecord prepared = SmallPrepared();
  prepared.upload = UploadPlane::kMaster;
  for (const char plane : {0, 1, 10}) {
    std::string bad = EncodePrepared(prepared);
    bad[bad.size() - 8] = plane;
    EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(bad).status())) << int{plane};
  }
  std::string bad = EncodePrepared(prepared);
  bad[bad.size() - 4] = 3;  // Neither with step counts nor without.
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(bad).status()));
  prepared.steps = StepCounts{{3, 4}, 4, -2};  // No position is below -1.
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(EncodePrepared(prepared)).status()));
}

TEST(Records, UploadsOfOtherVersionsAreDataLoss) {
  DecisionRecord decision = SmallDecision();
  std::string bad = EncodeDecision(decision);
  bad[16] = 3;  // Version 1 has no uploads,
  EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(bad).status()));
  decision.decision.upload = UploadPlane::kWeights;
  bad = EncodeDecision(decision);
  bad[16] = 1;  // and version 2 nothing else.
  EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(bad).status()));
}

TEST(Records, BytesOfVersionOneStayAsTheyAre) {
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(SmallPrepared())), kPreparedHex);
  EXPECT_EQ(absl::BytesToHexString(EncodeDecision(SmallDecision())), kDecisionHex);
}

std::vector<ScalarSet> RandomScalars(std::mt19937_64* random) {
  std::vector<ScalarSet> sets((*random)() % 3);
  for (ScalarSet& set : sets) {
    set.group = static_cast<uint32_t>((*random)());
    set.step = (*random)();
    set.bits.resize((*random)() % 4);
    for (uint32_t& bits : set.bits) bits = static_cast<uint32_t>((*random)());
  }
  return sets;
}

Nonfinite RandomPlace(std::mt19937_64* random) {
  return {.kind = static_cast<NonfiniteKind>((*random)() % 4),
          .extent = static_cast<uint32_t>((*random)()),
          .element = static_cast<uint32_t>((*random)()),
          .slot = static_cast<uint32_t>((*random)()),
          .value_bits = static_cast<uint32_t>((*random)())};
}

std::vector<GroupRates> RandomRates(std::mt19937_64* random) {
  std::vector<GroupRates> rates((*random)() % 3);
  for (GroupRates& group : rates) {
    group = {std::bit_cast<double>((*random)()), std::bit_cast<double>((*random)()), 0.5};
  }
  return rates;
}

PolicyState RandomPolicy(std::mt19937_64* random) {
  PolicyState policy{.loss_scale = std::bit_cast<double>((*random)()),
                     .opt_step = (*random)(),
                     .consecutive_skips = (*random)()};
  if ((*random)() % 2 == 0) return policy;
  policy.version = 2;
  policy.loss_scale = 0.5 + static_cast<double>((*random)() % 1000);
  policy.scaler_iteration = static_cast<int64_t>((*random)() >> 1);
  policy.last_overflow = policy.scaler_iteration / 2 - 1;
  policy.hysteresis_left = 1 + static_cast<int64_t>((*random)() >> 2);
  policy.skipped = (*random)();
  policy.schedule_index = static_cast<int64_t>((*random)() >> 1) - 1;
  policy.rates = RandomRates(random);
  return policy;
}

UploadPlane RandomPlane(std::mt19937_64* random) {
  return (*random)() % 2 == 0 ? UploadPlane::kNone
                              : static_cast<UploadPlane>(1 + (*random)() % kUploadPlaneMax);
}

PreparedRecord RandomPrepared(std::mt19937_64* random) {
  PreparedRecord record{.epoch = static_cast<uint32_t>((*random)()), .round = (*random)()};
  record.vote.server = static_cast<uint32_t>((*random)());
  record.vote.contributor_digest = static_cast<uint32_t>((*random)());
  record.vote.nonfinite = (*random)();
  record.vote.first_nonfinite = RandomPlace(random);
  record.vote.norms.resize((*random)() % 5);
  for (ExtentNorm& norm : record.vote.norms) {
    norm = {.extent = static_cast<uint32_t>((*random)()),
            .sumsq = std::bit_cast<double>((*random)())};
  }
  record.vote.scalars = RandomScalars(random);
  record.vote.rates = RandomRates(random);
  for (size_t i = (*random)() % 20; i > 0; --i) record.present.push_back((*random)() % 2 == 0);
  for (size_t i = (*random)() % 5; i > 0; --i) record.tensor_step.push_back((*random)());
  record.policy = RandomPolicy(random);
  for (size_t i = (*random)() % 3; i > 0; --i) {
    record.user_state[static_cast<uint32_t>((*random)() % 100)].assign(1 + (*random)() % 9, 'u');
  }
  record.upload = RandomPlane(random);
  if (IsUpload(record.upload)) record.vote.rates.clear();
  if (IsStatePlane(record.upload) && (*random)() % 2 == 0) {
    record.steps = StepCounts{{(*random)(), (*random)()}, (*random)()};
    if ((*random)() % 2 == 0) record.steps->schedule_index = static_cast<int64_t>((*random)() % 99);
  }
  return record;
}

DecisionRecord RandomDecision(std::mt19937_64* random) {
  DecisionRecord record{.epoch = static_cast<uint32_t>((*random)()), .round = (*random)()};
  Decision& decision = record.decision;
  decision.applied = (*random)() % 2 == 0;
  decision.halted = !decision.applied && (*random)() % 2 == 0;
  if (decision.applied) decision.upload = RandomPlane(random);
  decision.first_nonfinite = RandomPlace(random);
  decision.grad_norm = std::bit_cast<double>((*random)());
  decision.clip_coef = std::bit_cast<double>((*random)());
  decision.nonfinite = (*random)();
  for (size_t i = (*random)() % 4; i > 0; --i) {
    decision.grad_scale.push_back(std::bit_cast<float>(static_cast<uint32_t>((*random)())));
  }
  decision.scalars = RandomScalars(random);
  decision.policy = RandomPolicy(random);
  return record;
}

// Bit for bit, NaN of every kind included, since equal records give equal bytes.
TEST(Records, EncodedValuesDecodeToEqualOnes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string prepared = EncodePrepared(RandomPrepared(&random));
    const auto prepared_again = DecodePrepared(prepared);
    ASSERT_TRUE(prepared_again.ok()) << prepared_again.status();
    ASSERT_EQ(EncodePrepared(*prepared_again), prepared);
    const std::string decision = EncodeDecision(RandomDecision(&random));
    const auto decision_again = DecodeDecision(decision);
    ASSERT_TRUE(decision_again.ok()) << decision_again.status();
    ASSERT_EQ(EncodeDecision(*decision_again), decision);
  }
  const PreparedRecord small = *DecodePrepared(EncodePrepared(SmallPrepared()));
  EXPECT_EQ(small.vote.norms, SmallPrepared().vote.norms);
  EXPECT_EQ(small.vote.scalars, SmallPrepared().vote.scalars);
  EXPECT_EQ(small.present, SmallPrepared().present);
  EXPECT_EQ(small.policy, SmallPrepared().policy);
  EXPECT_EQ(small.vote.first_nonfinite, SmallPrepared().vote.first_nonfinite);
  EXPECT_EQ(small.tensor_step, SmallPrepared().tensor_step);
  const PreparedRecord states = *DecodePrepared(EncodePrepared(PreparedWithStates()));
  EXPECT_EQ(states.user_state, PreparedWithStates().user_state);
}

TEST(Records, TruncatedOrExtendedRecordsAreDataLoss) {
  const std::string prepared = EncodePrepared(SmallPrepared());
  for (size_t bytes = 0; bytes < prepared.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(prepared.substr(0, bytes)).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(prepared + "x").status()));
  const std::string states = EncodePrepared(PreparedWithStates());
  for (size_t bytes = 0; bytes < states.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(states.substr(0, bytes)).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(states + "x").status()));
  const std::string decision = EncodeDecision(SmallDecision());
  for (size_t bytes = 0; bytes < decision.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(decision.substr(0, bytes)).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(decision + "x").status()));
}

TEST(Records, NewerVersionsAreRefusedByNumber) {
  std::string prepared = EncodePrepared(SmallPrepared());
  prepared[0] = 6;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodePrepared(prepared).status()));
  EXPECT_THAT(DecodePrepared(prepared).status().message(), HasSubstr("version 6"));
  std::string decision = EncodeDecision(SmallDecision());
  decision[0] = 4;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeDecision(decision).status()));
  decision[0] = 0;
  EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(decision).status()));
  // The policy state has a version of its own, in front of its last 28 bytes.
  prepared[0] = 1;
  prepared[prepared.size() - 32] = 3;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodePrepared(prepared).status()));
  EXPECT_THAT(DecodePrepared(prepared).status().message(), HasSubstr("policy state of version 3"));
}

// A version appends fields to those of the version before it; this is its reading of records that
// lack them.
TEST(Records, APolicyStateOfAnOlderVersionHasDefaultsForWhatItLacks) {
  const std::string prepared = EncodePrepared(SmallPrepared());
  const std::string fields = prepared.substr(prepared.size() - 24);
  EXPECT_EQ(PolicyFromBytes(fields), SmallPrepared().policy);
  EXPECT_EQ(PolicyFromBytes(fields.substr(0, 16)),
            (PolicyState{.loss_scale = 1024, .opt_step = 39}));
  EXPECT_EQ(PolicyFromBytes(fields.substr(0, 8)), (PolicyState{.loss_scale = 1024}));
  EXPECT_EQ(PolicyFromBytes(""), PolicyState());
}

// Version 5 of PREPARED is that of a vote with rates; version 2 of the policy state that of a job
// with a dynamic loss scale or a schedule.
PreparedRecord PreparedWithRates() {
  PreparedRecord record = SmallPrepared();
  record.vote.rates = {{.lr = 0.5, .beta1 = 0.75, .beta2 = 1024}};
  record.policy = {.version = 2,
                   .loss_scale = 1024,
                   .opt_step = 39,
                   .consecutive_skips = 1,
                   .scaler_iteration = 41,
                   .last_overflow = 40,
                   .hysteresis_left = 2,
                   .skipped = 3,
                   .schedule_index = 38,
                   .rates = record.vote.rates};
  return record;
}

const char kPolicyTwoHex[] =
    "02000000"
    "5c000000"          // policy of version 2, 92 bytes
    "0000000000009040"  // as version 1
    "2700000000000000"
    "0100000000000000"
    "2900000000000000"  // 41 rounds seen
    "2800000000000000"  // the newest overflow in the last of them
    "0200000000000000"  // hysteresis left
    "0300000000000000"  // skipped
    "2600000000000000"  // index of the schedule
    "01000000"          // one group:
    "000000000000e03f"
    "000000000000e83f"
    "0000000000009040";

TEST(Records, BytesOfPolicyVersionTwoStayAsTheyAre) {
  std::string hex = kPreparedHex;
  hex = absl::StrCat("05", hex.substr(2, hex.size() - 2 - 64), kPolicyTwoHex,
                     "00000000",  // no user states
                     "01000000", "000000000000e03f", "000000000000e83f", "0000000000009040");
  EXPECT_EQ(absl::BytesToHexString(EncodePrepared(PreparedWithRates())), hex);
  DecisionRecord decision = SmallDecision();
  decision.decision.policy = PreparedWithRates().policy;
  hex = kDecisionHex;
  EXPECT_EQ(absl::BytesToHexString(EncodeDecision(decision)),
            absl::StrCat(hex.substr(0, hex.size() - 64), kPolicyTwoHex));
}

TEST(Records, PolicyVersionTwoComesBackAndIsRefusedWhereItIsDamaged) {
  const std::string good = EncodePrepared(PreparedWithRates());
  const auto read = DecodePrepared(good);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->policy, PreparedWithRates().policy);
  EXPECT_EQ(read->vote.rates, PreparedWithRates().vote.rates);
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(good.substr(0, bytes)).status())) << bytes;
  }
  const size_t policy = EncodePrepared(SmallPrepared()).size() - 32;
  const auto spoilt = [&](size_t at, char byte) {
    std::string bad = good;
    bad[policy + at] = byte;
    return DecodePrepared(bad).status();
  };
  EXPECT_TRUE(absl::IsDataLoss(spoilt(0, 1))) << "version 1 has other bytes";
  EXPECT_TRUE(absl::IsFailedPrecondition(spoilt(0, 3)));
  EXPECT_TRUE(absl::IsDataLoss(spoilt(4, 0x5b))) << "the length";
  EXPECT_TRUE(absl::IsDataLoss(spoilt(15, static_cast<char>(0xc0)))) << "a negative loss scale";
  EXPECT_TRUE(absl::IsDataLoss(spoilt(40, 41))) << "an overflow that was not yet";
  EXPECT_TRUE(absl::IsDataLoss(spoilt(48, 0))) << "no hysteresis";
  EXPECT_TRUE(absl::IsDataLoss(spoilt(72, 2))) << "rates of two groups";
}

TEST(Records, AnUnknownOutcomeOrPresenceIsDataLoss) {
  std::string decision = EncodeDecision(SmallDecision());
  decision[16] = 3;
  EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(decision).status()));
  decision = EncodeDecision(SmallDecision());
  decision[44] = 4;  // The kind of the first place.
  EXPECT_TRUE(absl::IsDataLoss(DecodeDecision(decision).status()));
  std::string prepared = EncodePrepared(SmallPrepared());
  const size_t present = prepared.find(std::string("\x03\0\0\0\x05", 5));
  ASSERT_NE(present, std::string::npos);
  prepared[present + 4] = '\x0d';  // A fourth bit of three.
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(prepared).status()));
}

// A decoder that accepts something must mean exactly these bytes.
template <typename Decode, typename Encode>
void ExpectCanonical(const std::string& bytes, Decode decode, Encode encode) {
  const auto record = decode(bytes);
  if (record.ok()) {
    ASSERT_EQ(encode(*record), bytes) << absl::BytesToHexString(bytes);
  }
}

TEST(Records, RandomAndMutatedBytesAreRefusedOrMeanThemselves) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 10000; ++i) {
    std::string bytes;
    switch (random() % 3) {
      case 0:
        bytes = EncodePrepared(RandomPrepared(&random));
        break;
      case 1:
        bytes = EncodeDecision(RandomDecision(&random));
        break;
      default:
        bytes.resize(random() % 200);
        for (char& c : bytes) c = static_cast<char>(random());
        if (!bytes.empty()) bytes[0] = static_cast<char>(1 + random() % 2);
    }
    for (size_t flips = random() % 3; flips > 0 && !bytes.empty(); --flips) {
      const uint64_t at = random() % bytes.size();
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    ExpectCanonical(bytes, DecodePrepared, EncodePrepared);
    ExpectCanonical(bytes, DecodeDecision, EncodeDecision);
  }
}

TEST(Records, ACountThatCannotBeTrueAllocatesNothing) {
  // 2^32 - 1 norms in 48 bytes; with an allocation of 64 GiB this would not end well.
  std::string bytes = EncodePrepared(SmallPrepared()).substr(0, 48);
  bytes.replace(32, 4, "\xff\xff\xff\xff");
  EXPECT_TRUE(absl::IsDataLoss(DecodePrepared(bytes).status()));
}

}  // namespace
}  // namespace ballast::server
