// Target fsm: two round machines of a job and its trainers, driven by a schedule. Each two bytes
// are a step: its kind, and its server and slot. Steps that keep the protocol, in any order and as
// often as the schedule says, never make the servers disagree; frames, beginnings and votes that do
// not keep it are answered.
//   input := configuration u8 (step u8, argument u8)*
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "server/round/job_plan.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/targets/fsm_server.h"
#include "tests/server/round/plans.h"

namespace ballast::fuzz {
namespace {

using server::JobPlan;
using server::RoundBegin;

constexpr uint32_t kServers = 2;
constexpr uint32_t kWorld = 2;
constexpr size_t kStepsMax = 1000;
constexpr int kBadFrames = 8;  // in a step
constexpr int kSeedRounds = 4;

enum Step : uint8_t {
  kBegin,
  kPush,     // one frame
  kPushAll,  // all frames of a slot, of initial weights or gradients
  kReduce,
  kFlush,
  kVote,  // a vote that was sent, the newest or an older one
  kMeasure,
  kStepDone,
  kBadFrame,
  kLost,
  kBack,
  kSeal,
  kNewEpoch,
  kAdopt,
  kRestart,
  kGrows,
  kLeft,
  kFail,
  kBadBegin,
  kBadVote,
  kSteps
};

// Bits of the configuration.
constexpr uint8_t kDurableJob = 1;
constexpr uint8_t kLambJob = 2;
constexpr uint8_t kVariableWorld = 4;
constexpr uint8_t kUploads = 8;

JobPlan PlanOf(uint8_t configuration) {
  JobPlan plan = server::testing::MakePlan({100, 200, 50, 130}, kWorld, {0, 1});
  if ((configuration & kDurableJob) != 0) plan.spec.durability = Durability::kPower;
  if ((configuration & kLambJob) != 0) server::testing::UseLamb(&plan.spec);
  plan.spec.variable_world =
      plan.spec.durability != Durability::kNone && (configuration & kVariableWorld) != 0;
  return plan;
}

class World {
 public:
  explicit World(uint8_t configuration)
      : configuration_(configuration), newest_(PlanOf(configuration)) {
    for (uint32_t self = 0; self < kServers; ++self) {
      servers_.push_back(std::make_unique<FsmServer>(newest_, self, &history_));
    }
  }

  void Take(uint8_t step, uint8_t argument) {
    server_ = servers_[argument & 1].get();
    const uint32_t slot = argument >> 1 & 1;
    const uint8_t rest = argument >> 2;
    if (step == kNewEpoch) return NewEpoch(rest);
    if (server_->over()) return;
    if (server_->fsm().plan().epoch.Find(slot) == nullptr) return;
    ++taken_;
    if (step == kBadFrame || step >= kBadBegin) return TakeBad(step, slot, rest);
    if (step >= kLost) return TakeChange(step, slot, rest);
    TakeRound(step, slot, rest);
  }

  // Decided, by one server at least.
  int rounds() const { return static_cast<int>(history_.decisions.size()); }

 private:
  const server::RoundFsm& fsm() const { return server_->fsm(); }

  void TakeRound(uint8_t step, uint32_t slot, uint8_t rest) {
    switch (step) {
      case kBegin:
        if (MayBegin()) server_->Feed(server::BeginInput{slot, BeginOf(slot)});
        return;
      case kPush:
        return Push(slot, rest);
      case kPushAll:
        return Push(slot, std::nullopt);
      case kReduce:
        return server_->FinishReduce(rest);
      case kFlush:
        return server_->FinishFlush();
      case kVote:
        if (history_.sent.empty()) return;
        return server_->Feed(history_.sent[history_.sent.size() - 1 - rest % history_.sent.size()]);
      case kMeasure:
        return server_->FinishMeasure();
      default:
        return server_->FinishStep();
    }
  }

  void TakeChange(uint8_t step, uint32_t slot, uint8_t rest) {
    switch (step) {
      case kLost:
        return server_->Feed(server::SlotLostInput{slot, "it is gone"});
      case kBack:
        if (fsm().MayReturn(slot)) server_->Feed(server::SlotBackInput{slot});
        return;
      case kSeal:
        if (fsm().durable()) server_->Feed(server::SealInput{});
        return;
      case kAdopt:
        return server_->Adopt(newest_);
      case kRestart:
        return server_->Restart();
      case kGrows:
        return server_->Feed(server::SlotGrowsInput{slot, (rest & 1) != 0});
      case kLeft:
        return server_->Feed(server::SlotLeftInput{slot});
      default:
        return server_->Feed(server::FailInput{absl::UnavailableError("a disk")});
    }
  }

  void TakeBad(uint8_t step, uint32_t slot, uint8_t rest) {
    FuzzRandom random(taken_ << 8 | rest);
    for (int i = 0; i < kBadFrames && step == kBadFrame && !server_->over(); ++i) {
      server_->Deliver(BadFrame(slot, &random));
    }
    if (step == kBadFrame) return;
    if (step == kBadBegin) return BeginBadly(slot, BadBegin(slot, &random));
    history_.forged = true;
    server_->Feed(BadVote(&random));
  }

  // Some of them are good, but not those that the other server hears of.
  void BeginBadly(uint32_t slot, const RoundBegin& begin) {
    const bool begun = fsm().Begun(slot);
    server_->Feed(server::BeginInput{slot, begin});
    if (!begun && fsm().Begun(slot)) history_.forged = true;
  }

  // Trainers begin a round when every server is done with the one before.
  bool MayBegin() const {
    return std::all_of(servers_.begin(), servers_.end(),
                       [this](const auto& other) { return other->fsm().round() >= fsm().round(); });
  }

  // A slot's data in a round depends on nothing else, so that it is the same at all servers.
  RoundBegin BeginOf(uint32_t slot) const {
    const uint64_t round = fsm().round();
    RoundBegin begin = server::testing::BeginOf(fsm().plan(), round);
    if ((configuration_ & kUploads) != 0 && round % 3 == 2) {
      begin.hyper.clear();
      begin.upload = UploadPlane::kWeights;
      return begin;
    }
    for (uint32_t tensor = 0; tensor < fsm().layout().tensors().size(); ++tensor) {
      begin.presence.push_back(FuzzRandom(round * 100 + slot * 10 + tensor).OneIn(2));
    }
    if (round % 2 == 0) begin.presence.clear();
    if (fsm().plan().servers.front() == 0) begin.user_state = std::string(slot, 's');
    return begin;
  }

  FrameHeader FrameOf(FrameKind kind, uint32_t slot, uint32_t extent, ChunkRange range) const {
    FrameHeader frame =
        server::testing::MakeFrame(fsm().plan(), kind, slot, fsm().round(), extent, range);
    frame.epoch = fsm().plan().epoch.epoch;
    frame.incarnation = fsm().plan().epoch.Find(slot)->incarnation;
    return frame;
  }

  // All frames of the slot that the server may want now.
  std::vector<FrameHeader> FramesOf(uint32_t slot) const {
    const bool lead = slot == fsm().plan().epoch.lead_trainer();
    const bool initial = lead && fsm().init_missing() != 0;
    const FrameKind kind = initial ? FrameKind::kInit : FrameKind::kGradient;
    const std::vector<bool> present = initial ? std::vector<bool>() : BeginOf(slot).presence;
    std::vector<FrameHeader> frames;
    for (const uint32_t extent : fsm().owned()) {
      for (const ChunkRange& range : ChunkRanges(fsm().layout(), extent, kFsmChunkBytes, present)) {
        frames.push_back(FrameOf(kind, slot, extent, range));
      }
    }
    return frames;
  }

  // Delivers all of them, or the `which`th.
  void Push(uint32_t slot, std::optional<uint8_t> which) {
    const std::vector<FrameHeader> frames = FramesOf(slot);
    if (frames.empty()) return;
    if (which.has_value()) return server_->Deliver(frames[*which % frames.size()]);
    for (const FrameHeader& frame : frames) {
      if (!server_->over()) server_->Deliver(frame);
    }
  }

  // As the home: from what both servers answer to their seals.
  void NewEpoch(uint8_t rest) {
    uint64_t newest = 0;
    bool all_prepared = true;
    for (const auto& server : servers_) {
      const auto answer = server->fsm().Sealed();
      const bool same = server->fsm().plan().epoch.epoch == newest_.epoch.epoch;
      if (server->over() || !same || !answer.has_value()) return;
      newest = std::max(newest, answer->version);
    }
    for (const auto& server : servers_) {
      const auto answer = server->fsm().Sealed();
      all_prepared = all_prepared && answer->version == newest && answer->prepared;
    }
    newest_.epoch.epoch += 1;
    newest_.epoch.start_round = all_prepared ? newest + 1 : newest;
    std::vector<server::Member>& members = newest_.epoch.members;
    if (newest_.spec.variable_world && (rest & 1) != 0 && members.size() == kWorld) {
      members.pop_back();
    } else if (members.size() < kWorld) {
      members.push_back({kWorld - 1, 5000u + newest_.epoch.epoch, ""});
    } else if ((rest & 2) != 0) {
      members.back().incarnation = 7000u + newest_.epoch.epoch;  // Another process.
    }
    newest_.epoch.contributors = server::ContributorsOf(newest_.spec, members);
  }

  FrameHeader BadFrame(uint32_t slot, FuzzRandom* random) const {
    FrameHeader frame = FrameOf(FrameKind::kGradient, slot, fsm().owned().front(), {0, 256});
    const std::vector<FrameHeader> good = FramesOf(slot);
    if (!good.empty()) frame = good[random->Below(good.size())];
    switch (random->Below(10)) {
      case 0:
        frame.job = random->Boundary(frame.job);
        break;
      case 1:
        frame.epoch = static_cast<uint32_t>(random->Boundary(frame.epoch));
        break;
      case 2:
        frame.slot = static_cast<uint32_t>(random->Boundary(frame.slot));
        break;
      case 3:
        frame.round = random->Boundary(frame.round);
        break;
      case 4:
        frame.extent = static_cast<uint32_t>(random->Boundary(frame.extent));
        break;
      case 5:
        frame.incarnation = random->Boundary(frame.incarnation);
        break;
      case 6:
        frame.offset_bytes = static_cast<uint32_t>(random->Boundary(frame.offset_bytes));
        break;
      case 7:
        frame.length_bytes = static_cast<uint32_t>(random->Boundary(frame.length_bytes));
        break;
      case 8:
        frame.dtype = static_cast<DType>(random->Below(4));
        break;
      default:
        frame.kind = static_cast<FrameKind>(random->Below(5));
    }
    return frame;
  }

  RoundBegin BadBegin(uint32_t slot, FuzzRandom* random) const {
    RoundBegin begin = BeginOf(slot);
    switch (random->Below(9)) {
      case 0:
        begin.round = random->Boundary(begin.round);
        break;
      case 1:
        begin.layout_version = static_cast<uint32_t>(random->Boundary(begin.layout_version));
        break;
      case 2:
        begin.hyper.resize(random->Below(4));
        break;
      case 3:
        begin.presence.resize(random->Below(40));
        break;
      case 4:
        begin.upload = static_cast<UploadPlane>(random->Below(10));
        break;
      case 5:
        begin.weight_crc32c.resize(random->Below(6));
        break;
      case 6:
        begin.steps = StepCounts{std::vector<uint64_t>(random->Below(6), UINT64_MAX), 3, {}};
        break;
      case 7:
        begin.gradient_crc32c.resize(random->Below(6));
        break;
      default:
        begin.user_state.resize(random->Boundary(kUserStateBytesMax) % (2 * kUserStateBytesMax));
    }
    return begin;
  }

  server::VoteInput BadVote(FuzzRandom* random) const {
    server::VoteInput input{fsm().plan().epoch.epoch, fsm().round(), {}};
    if (!history_.sent.empty()) input = history_.sent[random->Below(history_.sent.size())];
    switch (random->Below(6)) {
      case 0:
        input.round = random->Boundary(input.round);
        break;
      case 1:
        input.vote.server = static_cast<uint32_t>(random->Below(3));
        break;
      case 2:
        input.vote.norms.resize(random->Below(4), {UINT32_MAX, 1});
        break;
      case 3:
        input.vote.scalars.resize(random->Below(4));
        break;
      case 4:
        input.vote.squares.emplace(random->Below(8));
        break;
      default:
        input.vote.nonfinite = random->Boundary(input.vote.nonfinite);
    }
    return input;
  }

  const uint8_t configuration_;
  JobPlan newest_;
  FsmHistory history_;
  std::vector<std::unique_ptr<FsmServer>> servers_;
  FsmServer* server_ = nullptr;  // of the step
  uint64_t taken_ = 0;           // steps
};

class Fsm : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    std::vector<std::string> seeds;
    for (int configuration = 0; configuration < 16; ++configuration) {
      seeds.push_back(Seed(static_cast<char>(configuration)));
      BALLAST_CHECK(RoundsOf(seeds.back()) == kSeedRounds);
    }
    return seeds;
  }

  void Run(absl::string_view input) const override {
    if (!input.empty()) (void)RoundsOf(input);
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    std::string changed = input;
    const uint64_t changes = 1 + random->Below(6);
    for (uint64_t i = 0; i < changes && changed.size() > 2; ++i) ChangeStep(&changed, random);
    return changed;
  }

 private:
  // Runs the schedule; how many rounds the servers have decided.
  static int RoundsOf(absl::string_view input) {
    World world(static_cast<uint8_t>(input[0]));
    for (size_t i = 1; i + 1 < input.size() && i < 2 * kStepsMax; i += 2) {
      world.Take(static_cast<uint8_t>(input[i]) % kSteps, static_cast<uint8_t>(input[i + 1]));
    }
    return world.rounds();
  }

  // Whole rounds: every step that ends one, at both servers.
  static std::string Seed(char configuration) {
    std::string seed(1, configuration);
    const auto add = [&seed](Step step) {
      for (const char argument : {0, 1, 2, 3}) {
        seed.push_back(static_cast<char>(step));
        seed.push_back(argument);
      }
    };
    add(kPushAll);
    for (int round = 0; round < kSeedRounds; ++round) {
      add(kBegin);
      for (int window = 0; window < 3; ++window) {
        add(kPushAll);
        add(kReduce);
        add(kReduce);
      }
      for (const Step step : {kFlush, kVote, kMeasure, kVote, kFlush, kStepDone}) {
        add(step);
        if (step == kVote) seed[seed.size() - 1] |= 4;  // The other server's.
        if (step == kVote) seed[seed.size() - 3] |= 4;
      }
      if (round == 1) add(kSeal);
      if (round == 1) add(kNewEpoch);
      if (round == 1) add(kAdopt);
      if (round == 2) add(kRestart);
    }
    return seed;
  }

  static void ChangeStep(std::string* input, FuzzRandom* random) {
    const size_t steps = (input->size() - 1) / 2;
    const size_t at = 1 + 2 * random->Below(steps);
    // Those after kLeft end a job, or servers' agreement, and are chosen less often.
    const uint64_t known = random->OneIn(6) ? uint64_t{kSteps} : uint64_t{kLeft};
    const auto step = static_cast<char>(random->Below(known));
    switch (random->Below(6)) {
      case 0:
        input->erase(at, 2);
        return;
      case 1:
        (*input)[at + 1] = static_cast<char>(random->Next());
        return;
      case 2:
        (*input)[0] = static_cast<char>(random->Below(16));
        return;
      case 3: {
        const std::string piece = input->substr(at, 2 * (1 + random->Below(20)));
        input->insert(1 + 2 * random->Below(steps), piece.substr(0, piece.size() / 2 * 2));
        return;
      }
      default: {
        const char pair[] = {step, static_cast<char>(random->Next())};
        input->insert(at, pair, 2);
      }
    }
  }
};

}  // namespace

std::unique_ptr<FuzzTarget> FsmTarget() { return std::make_unique<Fsm>(); }

}  // namespace ballast::fuzz
