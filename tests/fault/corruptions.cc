// fault_corruptions: damages files of a server that is down, in every way of damage.h, opens the
// state again as a starting server does, and judges the result:
//   right      everything committed is read, with the reference's bits: the damage hit empty
//              space, data made unneeded by a newer slot, or data restored from the other slot and
//              the log
//   refused    an error that names the file, or STATE_LOST
//   noticed    an older state, which the next seal (a peer knows better) or the next trainer (it
//              has seen a newer version) refuses by name
//   silent     anything else
//
//   fault_corruptions [--count N] [--seed X] [--json] [--trace]
//
// Comes from: ctest, the command line. Goes to: standard output; exit status 1 when something was
// silent. Thread safety: main only.
#include <sys/prctl.h>

#include <cstdio>
#include <cstring>
#include <future>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/home/epoch_change.h"
#include "server/optim/dispatch.h"
#include "server/recovery/recovery.h"
#include "tests/fault/damage.h"
#include "tests/fault/workload.h"

namespace ballast::fault {
namespace {

using server::EpochChange;
using server::JobPlan;
using server::JobStore;
using server::MetaEntry;
using server::MetaStore;
using server::MetaTxn;
using server::Recovered;
using server::RoundEngine;
using server::SealAnswer;

struct Options {
  uint64_t count = 3000;
  uint64_t seed = 1;
  bool trace = false;
};

struct Verdict {
  enum Kind : uint8_t { kRight, kRefused, kNoticed, kSilent } kind = kSilent;
  std::string text;
};
constexpr const char* kVerdictNames[] = {"right", "refused", "noticed", "silent"};

// Votes that go nowhere: the peers are not there yet.
class NoPeers : public server::VoteSink {
 public:
  void SendVote(uint64_t, uint32_t, uint64_t, uint32_t, const Vote&) override {}
  void DropVotes(uint64_t) override {}
};

// An error that says what is wrong with which file, or that state was lost.
bool Named(const absl::Status& status) {
  return ReasonOf(status) == Reason::kStateLost ||
         absl::StrContains(status.message(), server::testing::kJobsRoot) ||
         absl::StrContains(status.message(), "metadata store");
}

Verdict Refused(const absl::Status& status) {
  return {Named(status) ? Verdict::kRefused : Verdict::kSilent, status.ToString()};
}

// A starting server's state from its files, and its comparison with the required state.
class Judge {
 public:
  Judge(const Workload& workload, const Moment& moment, uint32_t self)
      : workload_(workload), moment_(moment), self_(self) {}

  Verdict Look(const Image& image) const;

 private:
  // The metadata store of the image: a copy in memory if its files are whole, or else what `folder`
  // makes of them.
  absl::StatusOr<std::unique_ptr<MetaStore>> MetaOf(const Image& image,
                                                    const MetaFolder& folder) const;
  Verdict Compare(const Recovered& recovered, server::JobStorage* storage,
                  server::ExtentStore* store) const;
  // Extent `extent`'s arrays against `version`; the number of the first that differs.
  std::string CompareExtent(uint32_t extent, uint64_t version, server::ExtentStore* store) const;
  std::string CompareOpen(const Recovered& recovered, server::JobStorage* storage) const;
  Verdict AskTheOthers(const Image& image, uint64_t round) const;
  absl::Status AnswerTo(uint64_t round, RoundEngine* engine) const;
  absl::StatusOr<SealAnswer> SealOf(const Image& image, uint32_t server,
                                    absl::Status* trainer) const;

  const Workload& workload_;
  const Moment& moment_;
  const uint32_t self_;
};

absl::StatusOr<std::unique_ptr<MetaStore>> Judge::MetaOf(const Image& image,
                                                         const MetaFolder& folder) const {
  if (!SameMeta(image, moment_.disks[self_])) {
    folder.TakeFrom(image);
    return folder.Open();
  }
  auto meta = std::make_unique<server::MemoryMetaStore>();
  MetaTxn copy;
  for (const MetaEntry& entry : moment_.records[self_])
    copy.puts.push_back({entry.key, entry.value});
  BALLAST_CHECK(meta->Txn(copy).ok());
  return std::unique_ptr<MetaStore>(std::move(meta));
}

Verdict Judge::Look(const Image& image) const {
  const std::unique_ptr<MemoryDisk> disk = DiskOf(image);
  const MetaFolder folder;
  const auto meta = MetaOf(image, folder);
  if (!meta.ok()) return Refused(meta.status());
  const std::unique_ptr<JobStore> jobs = WorkloadStore(disk.get(), meta->get(), self_);
  const auto plans = jobs->Load();
  if (!plans.ok()) return Refused(plans.status());
  if (plans->size() != 1) return {Verdict::kSilent, "the job is gone"};
  if (const absl::Status& files = plans->front().files; !files.ok()) return Refused(files);
  const JobPlan& plan = plans->front().plan;
  const std::string difference = FirstDifference(workload_.plan().spec, plan.spec);
  if (!difference.empty() || plan.owner != workload_.plan().owner) {
    return {Verdict::kSilent, "another plan: " + difference};
  }
  auto storage = jobs->Open(plan);
  if (!storage.ok()) return Refused(storage.status());
  std::vector<uint32_t> owned;
  for (uint32_t e = 0; e < plan.owner.size(); ++e) {
    if (plan.owner[e] == self_) owned.push_back(e);
  }
  auto state =
      server::MakeModelState({.shape = server::StateShapeOf(plan.spec)}, workload_.layout(), owned,
                             &optim::Kernels(simd::DetectIsa()));
  if (!state.ok()) return {Verdict::kSilent, "no memory"};
  const auto recovered = Recover(plan, workload_.layout(), owned, storage->get(), &*state);
  if (!recovered.ok()) return Refused(recovered.status());
  const Verdict verdict = Compare(*recovered, storage->get(), &state->store);
  if (verdict.kind != Verdict::kNoticed) return verdict;
  storage->reset();
  return AskTheOthers(image, recovered->fsm.round);
}

// kNoticed: right, but older than the committed state.
Verdict Judge::Compare(const Recovered& recovered, server::JobStorage* storage,
                       server::ExtentStore* store) const {
  const uint64_t round = recovered.fsm.round;
  if (round > moment_.committed + 1) return {Verdict::kSilent, absl::StrCat("round ", round)};
  if (!recovered.fsm.init_missing.empty()) {
    return {Verdict::kNoticed, "as before the first round"};
  }
  const std::set<uint32_t> ahead(recovered.ahead.begin(), recovered.ahead.end());
  for (uint32_t e = 0; e < workload_.plan().owner.size(); ++e) {
    if (workload_.plan().owner[e] != self_) continue;
    const std::string wrong = CompareExtent(e, round + ahead.count(e), store);
    if (!wrong.empty()) return {Verdict::kSilent, wrong};
  }
  if (recovered.fsm.tensor_step != workload_.At(round).step) {
    return {Verdict::kSilent, "step counts"};
  }
  const bool decided_again = round == moment_.committed && recovered.fsm.prepared.has_value();
  if (round == moment_.committed + 1) {
    const std::string wrong = CompareOpen(recovered, storage);
    if (!wrong.empty()) return {Verdict::kSilent, wrong};
  }
  if (round == moment_.committed + 1 || decided_again) return {Verdict::kRight, ""};
  return {Verdict::kNoticed, absl::StrCat("round ", round)};
}

std::string Judge::CompareExtent(uint32_t extent, uint64_t version,
                                 server::ExtentStore* store) const {
  const Layout& layout = workload_.layout();
  const Version& wanted = workload_.At(version);
  const Extent& e = layout.extents()[extent];
  for (uint32_t r = 0; r < e.run_count; ++r) {
    const Run& run = layout.runs()[e.first_run + r];
    for (uint32_t i = 0; i < run.elements; ++i) {
      const uint32_t at = run.extent_offset + i;
      const server::TileView tile = store->Tile(extent, at / layout.tile_elements());
      const uint32_t in_tile = at % layout.tile_elements();
      const uint64_t element = run.tensor_offset + i;
      const float got[] = {tile.array[0][in_tile], tile.array[1][in_tile], tile.array[2][in_tile]};
      const float want[] = {wanted.p[run.tensor][element], wanted.m[run.tensor][element],
                            wanted.v[run.tensor][element]};
      if (std::memcmp(got, want, sizeof(got)) != 0) {
        return absl::StrCat("extent ", extent, " element ", at, " of version ", version);
      }
    }
  }
  return "";
}

// The gradients of the open round that need not be sent again.
std::string Judge::CompareOpen(const Recovered& recovered, server::JobStorage* storage) const {
  const Layout& layout = workload_.layout();
  const auto sum = workload_.OpenSum();
  for (const auto& [extent, logged] : recovered.open_extents) {
    const Extent& e = layout.extents()[extent];
    std::vector<float> got(e.elements + kPageBytes);
    // A start that meets an error here is refused.
    if (const auto read = storage->log()->ReadExtent(logged, got.data()); !read.ok()) return "";
    for (uint32_t r = 0; r < e.run_count; ++r) {
      const Run& run = layout.runs()[e.first_run + r];
      if (std::memcmp(got.data() + run.extent_offset, sum[run.tensor].data() + run.tensor_offset,
                      run.elements * sizeof(float)) != 0) {
        return absl::StrCat("the open round's extent ", extent);
      }
    }
  }
  return "";
}

// The engine's answer to a trainer that is at `round`.
absl::Status Judge::AnswerTo(uint64_t round, RoundEngine* engine) const {
  std::promise<absl::Status> attached;
  engine->trainers().AttachSlot(
      {.slot = 0, .incarnation = server::testing::IncarnationOf(0), .epoch = 1, .round = round},
      std::make_shared<server::testing::RecordingSink>(workload_.layout().extents().size()),
      [&](const absl::StatusOr<server::SlotWelcome>& welcome) {
        attached.set_value(welcome.status());
      });
  return attached.get_future().get();
}

// The state of a server whose files are `image`, and unless `trainer` is null its answer to a
// trainer that has seen the newest version. A server that has prepared that version would wait for
// its peers.
absl::StatusOr<SealAnswer> Judge::SealOf(const Image& image, uint32_t server,
                                         absl::Status* trainer) const {
  const std::unique_ptr<MemoryDisk> disk = DiskOf(image);
  ThreadExecutor executor("test", 1);
  ThreadWorkerPool workers(1);
  NoPeers peers;
  const RealClock clock;
  server::EngineConfig config{.self = server, .chunk_bytes = server::testing::kChunk};
  config.open_timeout = std::chrono::hours(1);
  const server::EngineDeps deps{.executor = &executor,
                                .workers = &workers,
                                .clock = &clock,
                                .isa = simd::DetectIsa(),
                                .votes = &peers};
  const JobPlan& plan = workload_.plan();
  server::MemoryMetaStore meta;  // The plan is known.
  auto storage = WorkloadStore(disk.get(), &meta, server)->Open(plan);
  if (!storage.ok()) return storage.status();
  auto engine = RoundEngine::Create(plan, config, deps, *std::move(storage));
  if (!engine.ok()) return engine.status();
  (*engine)->Start();
  if (trainer != nullptr) *trainer = AnswerTo(moment_.committed + 1, engine->get());
  std::promise<absl::StatusOr<SealAnswer>> sealed;
  (*engine)->changes().Seal(
      plan.epoch.epoch, [](const JobPlan&) { return absl::OkStatus(); },
      [&](const absl::StatusOr<SealAnswer>& answer) { sealed.set_value(answer); });
  auto answer = sealed.get_future().get();
  engine->reset();
  executor.Shutdown();
  return answer;
}

Verdict Judge::AskTheOthers(const Image& image, uint64_t round) const {
  EpochChange change(workload_.plan());
  absl::Status trainer;
  for (uint32_t id = 0; id < kServers; ++id) {
    const bool self = id == self_;
    const auto answer = SealOf(self ? image : moment_.disks[id], id, self ? &trainer : nullptr);
    if (!answer.ok()) return Refused(answer.status());
    change.OnSealed(id, *answer);
  }
  const absl::Status sealed = change.NextPlan({.newcomers = {{0, 7}}}).status();
  const std::string text = absl::StrCat("at round ", round, "; a seal: ", sealed.ToString(),
                                        "; a trainer: ", trainer.ToString());
  const bool noticed =
      ReasonOf(sealed) == Reason::kStateLost && ReasonOf(trainer) == Reason::kWrongVersion;
  return {noticed ? Verdict::kNoticed : Verdict::kSilent, text};
}

// --- The run ------------------------------------------------------------------------------------

struct Totals {
  uint64_t corruptions = 0;
  uint64_t verdicts[4] = {};
  std::map<std::string, uint64_t> by_file, by_damage;
};

// Moments in the first lap of the log and after its first turn, in and between rounds.
void Run(const Options& options, Totals* totals) {
  Workload workload;
  sim::Random random(options.seed);
  const std::pair<uint64_t, uint32_t> kMoments[] = {{3, 0}, {17, 4}, {45, 0}, {90, 5}, {130, 3}};
  Moment earlier = workload.RunTo(1, 0);
  uint64_t places = std::size(kMoments) * kServers;  // that are still to come
  for (const auto& [last, open] : kMoments) {
    const Moment moment = workload.RunTo(last, open);
    for (uint32_t self = 0; self < kServers; ++self) {
      const Judge judge(workload, moment, self);
      const Verdict intact = judge.Look(moment.disks[self]);
      if (intact.kind != Verdict::kRight) {
        std::fprintf(stderr, "without damage: %s\n", intact.text.c_str());
        ++totals->verdicts[Verdict::kSilent];
      }
      const Sources sources{&earlier.disks[self], &moment.disks[1 - self]};
      const uint64_t share = (options.count - totals->corruptions) / places--;
      for (uint64_t i = 0; i < share; ++i) {
        Image image = moment.disks[self];
        const auto kind =
            static_cast<DamageKind>(random.Below(static_cast<uint64_t>(DamageKind::kCount)));
        const std::string where = Damage(kind, sources, &random, &image);
        const Verdict verdict = judge.Look(image);
        ++totals->corruptions;
        ++totals->verdicts[verdict.kind];
        ++totals->by_damage[DamageName(kind)];
        ++totals->by_file[std::string(FileKind(where.substr(0, where.find(' '))))];
        if (verdict.kind != Verdict::kSilent && !options.trace) continue;
        std::fprintf(stderr, "%s: server %u, %s, %s, round %llu: %s\n", kVerdictNames[verdict.kind],
                     self, DamageName(kind), where.c_str(), static_cast<unsigned long long>(last),
                     verdict.text.c_str());
      }
    }
    earlier = moment;
  }
}

std::string Counts(const std::map<std::string, uint64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "\"", name, "\": ", count);
  }
  return text;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--json") {  // It says nothing else.
    } else if (flag == "--trace") {
      options->trace = true;
    } else if (flag == "--count" && absl::SimpleAtoi(value, &options->count) &&
               options->count > 0) {
      ++i;
    } else if (flag == "--seed" && absl::SimpleAtoi(value, &options->seed)) {
      ++i;
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr, "wrong arguments; see the head of tests/fault/corruptions.cc\n");
    return 2;
  }
  SetMinLogSeverity(static_cast<LogSeverity>(3));
  // Arenas of 2 MiB are cheap when only the pages that are touched get memory.
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  Totals totals;
  Run(options, &totals);
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "{\"corruptions\": %llu, \"silent\": %llu, \"right\": %llu, \"refused\": %llu, "
      "\"noticed\": %llu, \"seed\": %llu,\n \"files\": {%s},\n \"damage\": {%s}}\n",
      number(totals.corruptions), number(totals.verdicts[Verdict::kSilent]),
      number(totals.verdicts[Verdict::kRight]), number(totals.verdicts[Verdict::kRefused]),
      number(totals.verdicts[Verdict::kNoticed]), number(options.seed),
      Counts(totals.by_file).c_str(), Counts(totals.by_damage).c_str());
  return totals.verdicts[Verdict::kSilent] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ballast::fault

int main(int argc, char** argv) { return ballast::fault::Main(argc, argv); }
