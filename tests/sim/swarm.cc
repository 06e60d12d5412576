#include "tests/sim/swarm.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/policy/schedule_arguments.h"
#include "common/types/enum_names.h"
#include "server/tier/nvme_tier.h"
#include "tests/sim/optimizers.h"

namespace ballast::sim {
namespace {

constexpr uint32_t kTile = 64;

JobSpec DrawSpec(uint32_t world, Random* random) {
  JobSpec spec;
  spec.device = Device::kCpu;
  spec.name = "sim";
  spec.world = world;
  spec.tile_elements = kTile;
  spec.extent_elements = random->OneIn(2) ? kTile : 2 * kTile;
  spec.durability = random->OneIn(8) ? Durability::kProcess : Durability::kPower;
  spec.group_count = random->OneIn(4) ? 2 : 1;
  if (random->OneIn(3)) spec.max_grad_norm = random->OneIn(2) ? 1.0 : 30.0;
  if (random->OneIn(8)) spec.loss_scale = 64;
  const bool narrow = random->OneIn(5);
  const uint64_t tensors = random->Between(std::max<uint64_t>(1, spec.group_count), 6);
  for (uint64_t t = 0; t < tensors; ++t) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("t", t);
    tensor.shape = {static_cast<int64_t>(random->Spread(1, 300))};
    tensor.group = t < spec.group_count ? static_cast<uint32_t>(t)
                                        : static_cast<uint32_t>(random->Below(spec.group_count));
    if (narrow && random->OneIn(2)) tensor.dtype = DType::kBF16;
    spec.tensors.push_back(tensor);
  }
  return spec;
}

Shape DrawShape(Random* random) {
  Shape shape;
  shape.servers = static_cast<uint32_t>(random->Between(1, 3));
  shape.trainers = static_cast<uint32_t>(random->Between(1, 3));
  shape.seats = shape.trainers;
  shape.rounds = random->OneIn(6) ? random->Between(9, 24) : random->Between(2, 8);
  shape.spec = DrawSpec(shape.trainers, random);
  if (random->OneIn(3)) {
    shape.spec.variable_world = true;
    shape.seats = static_cast<uint32_t>(random->Between(shape.trainers, 4));
  }
  shape.chunk_bytes = static_cast<uint32_t>(64 << random->Below(4));
  shape.credit_bytes = random->Spread(256, 1 << 16);
  for (uint32_t s = 0; s < shape.servers; ++s) {
    // With one trainer the step reads the registers, so all of them must fit.
    const bool small = shape.trainers > 1 && !shape.spec.variable_world && random->OneIn(3);
    shape.window_extents.push_back(small ? static_cast<uint32_t>(random->Between(1, 3))
                                         : kAllExtents);
  }
  shape.checkpoint_rounds = static_cast<uint32_t>(random->Between(1, 4));
  shape.segment_bytes_min = uint64_t{1} << random->Between(13, 16);
  shape.broadcast = random->OneIn(3);
  if (random->OneIn(2)) shape.absent_one_in = static_cast<uint32_t>(random->Between(2, 6));
  if (random->OneIn(5)) shape.nonfinite_one_in = static_cast<uint32_t>(random->Between(2, 4));
  return shape;
}

Pace DrawPace(Random* random) {
  return {.network = random->Spread(20, 2000) * kMicrosecond,
          .kernel = random->Spread(1, 100'000) * kMicrosecond,
          .log_write = random->Spread(1, 300) * kMicrosecond,
          .log_sync = random->Spread(10, 100'000) * kMicrosecond,
          .image_write = random->Spread(1, 3000) * kMicrosecond,
          .image_sync = random->Spread(10, 300'000) * kMicrosecond,
          .compute = random->Spread(10, 3000) * kMicrosecond,
          .start = random->Spread(100, 100'000) * kMicrosecond};
}

// The classes; each draws its rates when it is switched on.
std::vector<std::function<void(Faults*)>> Classes(Random* random) {
  const auto rate = [random](uint64_t low, uint64_t high) {
    return static_cast<uint32_t>(random->Spread(low, high));
  };
  return {
      [=](Faults* f) { f->kill_one_in = rate(30, 1000); },
      [=](Faults* f) { f->power_one_in = rate(30, 1000); },
      [=](Faults* f) { f->die_in_disk = true; },
      [=](Faults* f) { f->break_one_in = rate(10, 400); },
      [=](Faults* f) { f->lose_one_in = rate(2, 20); },
      [=](Faults* f) { f->repeat_one_in = rate(2, 20); },
      [=](Faults* f) { f->late_one_in = rate(5, 100); },
      [=](Faults* f) { f->partitions = true; },
      [=](Faults* f) { f->pause_servers = true; },
      [=](Faults* f) { f->pause_trainers = true; },
      [=](Faults* f) { f->straggler_one_in = rate(2, 10); },
      [=](Faults* f) { f->write_errors = true; },
      [=](Faults* f) { f->sync_errors = true; },
      [=](Faults* f) { f->disk_full = true; },
      [=](Faults* f) { f->rot = true; },
      [=](Faults* f) { f->lying_disk = true; },
      [=](Faults* f) { f->zombies = true; },
      [=](Faults* f) { f->corrupt_one_in = rate(20, 400); },
      [=](Faults* f) { f->drift = true; },
      [=](Faults* f) { f->kill_trainers = true; },
      [=](Faults* f) { f->hang_trainers = true; },
      [=](Faults* f) { f->come_and_go = true; },
      [=](Faults* f) { f->change.end_soon = true; },
  };
}

Faults DrawFaults(const Shape& shape, Random* random) {
  Faults faults;
  const auto classes = Classes(random);
  const uint64_t style = random->Below(8);
  if (style < 3) {
    random->Pick(classes)(&faults);
  } else if (style > 3) {
    for (const auto& switch_on : classes) {
      if (random->OneIn(4)) switch_on(&faults);
    }
  }
  // Damage needs a restart to be seen.
  if ((faults.rot || faults.lying_disk) && faults.kill_one_in == 0) {
    faults.kill_one_in = static_cast<uint32_t>(random->Spread(30, 300));
  }
  if (shape.spec.durability == Durability::kProcess) {
    // This level survives the end of a process, not of the machine.
    if (faults.power_one_in != 0) faults.kill_one_in = faults.power_one_in;
    faults.power_one_in = 0;
    faults.sync_errors = false;
  }
  if (!shape.spec.variable_world) faults.come_and_go = false;
  const bool changes = faults.hang_trainers || faults.come_and_go;
  if (faults.change.end_soon && !changes) faults.kill_trainers = true;
  faults.mood = static_cast<CrashMood>(random->Below(3));
  faults.whole_cluster = random->OneIn(3);
  faults.budget = static_cast<uint32_t>(random->Between(1, 10));
  faults.mean_gap = random->Spread(500, 50'000) * kMicrosecond;
  if (style == 3) faults.budget = 0;
  return faults;
}

// The conditions that reveal most mistakes: servers that end, also while the epoch changes, frames
// sent twice, and slots slower than a log that wraps. These draws are separate, so that seeds
// without them stay the same.
void AddRestarts(Swarm* swarm, Random* random) {
  Faults& faults = swarm->faults;
  const auto rate = [random](uint32_t* one_in, uint64_t least, uint64_t most) {
    if (*one_in == 0) *one_in = static_cast<uint32_t>(random->Spread(least, most));
  };
  if (random->OneIn(3)) {
    faults.die_in_disk = true;
  } else if (swarm->shape.spec.durability == Durability::kPower && random->OneIn(2)) {
    rate(&faults.power_one_in, 30, 1000);
  } else {
    rate(&faults.kill_one_in, 30, 1000);
  }
  if (random->OneIn(3)) {
    rate(&faults.break_one_in, 10, 200);
    swarm->shape.chunk_bytes = 64;
  }
  if (random->OneIn(4)) faults.kill_trainers = true;
  const bool changes = faults.kill_trainers || faults.hang_trainers || faults.come_and_go;
  if (changes && random->OneIn(2)) faults.change.end_soon = true;
  if (!random->OneIn(3)) return;
  swarm->shape.rounds = std::max<uint64_t>(swarm->shape.rounds, random->Between(6, 12));
  swarm->shape.checkpoint_rounds = static_cast<uint32_t>(random->Between(1, 2));
  swarm->shape.segment_bytes_min = uint64_t{1} << 13;
  swarm->pace.kernel = random->Spread(300, 30'000) * kMicrosecond;
  swarm->pace.image_write = random->Spread(1000, 30'000) * kMicrosecond;
  swarm->pace.image_sync = random->Spread(3000, 300'000) * kMicrosecond;
}

// Machines whose clocks jump, with seats to hold and leases to run out, and faults far enough apart
// for that. Drawn apart, as the restarts are.
void AddClockJumps(Swarm* swarm, Random* random) {
  Faults& faults = swarm->faults;
  faults.clock_jumps = faults.kill_trainers = true;
  if (random->OneIn(2)) faults.drift = true;
  faults.budget = std::max(faults.budget, static_cast<uint32_t>(random->Between(4, 12)));
  faults.mean_gap = random->Spread(20, 1000) * kMillisecond;
}

// Slots that lag many rounds at a log that wraps, at servers that own several extents and end in
// the middle: a log that drops rounds its slots still need shows here only. Drawn apart, as the
// restarts are.
void AddLaggingImages(Swarm* swarm, Random* random) {
  Shape& shape = swarm->shape;
  shape.rounds = random->Between(9, 18);
  shape.checkpoint_rounds = static_cast<uint32_t>(random->Between(1, 2));
  shape.segment_bytes_min = uint64_t{1} << 13;
  for (TensorSpec& tensor : shape.spec.tensors) {
    tensor.shape = {static_cast<int64_t>(random->Between(100, 300))};
  }
  Pace& pace = swarm->pace;
  pace.image_write = random->Spread(1000, 30'000) * kMicrosecond;
  pace.image_sync = random->Spread(30'000, 600'000) * kMicrosecond;
  const auto at_most = [](Tick* tick, Tick most) { *tick = std::min(*tick, most); };
  at_most(&pace.network, 300 * kMicrosecond);
  at_most(&pace.kernel, kMillisecond);
  at_most(&pace.log_sync, 3 * kMillisecond);
  at_most(&pace.compute, kMillisecond);
  Faults& faults = swarm->faults;
  faults.budget = std::max(faults.budget, static_cast<uint32_t>(random->Between(2, 6)));
  faults.kill_one_in = static_cast<uint32_t>(random->Spread(200, 2000));
}

// This salt leaves tests/sim/regressions unchanged.
void AddEndsInRecord(Swarm* swarm) {
  Faults& faults = swarm->faults;
  const bool changes = faults.kill_trainers || faults.hang_trainers || faults.come_and_go;
  if (!changes || faults.budget == 0) return;
  faults.change.end_in_record = Random(Mix(swarm->seed) ^ 0x4EC04D00).OneIn(4);
}

// Homes that end between their seal and the record of the next epoch, together with the trainers
// that the change was for: only its seal tells the next process that there is a change to finish.
// Drawn apart, as the restarts are.
void AddSealedEnds(Swarm* swarm, Random* random) {
  Faults& faults = swarm->faults;
  faults.come_and_go = faults.change.end_sealed = true;
  faults.budget = std::max(faults.budget, static_cast<uint32_t>(random->Between(6, 16)));
  faults.mean_gap = random->Spread(2, 60) * kMillisecond;
  swarm->shape.rounds = std::max<uint64_t>(swarm->shape.rounds, random->Between(8, 16));
}

// Snapshots, in half of the seeds together with many rounds and logs that soon want the held room.
// Drawn apart, as the restarts are.
void AddSnapshots(Swarm* swarm, Random* random) {
  Snapshots& snapshots = swarm->snapshots;
  snapshots.most = static_cast<uint32_t>(random->Between(2, 8));
  const Pace& pace = swarm->pace;
  const Tick round = 4 * pace.network + 2 * pace.kernel + 8 * pace.log_write + pace.log_sync;
  snapshots.mean_gap = round * random->Spread(1, 32) / 16;
  snapshots.pace = round * random->Spread(1, 256) / 64;
  const bool faults = swarm->faults.budget != 0;
  snapshots.write_errors = faults && random->OneIn(4);
  snapshots.die_at_shelf = faults && random->OneIn(3);
  if (random->OneIn(2)) return;
  Shape& shape = swarm->shape;
  shape.rounds = std::max<uint64_t>(shape.rounds, random->Between(8, 18));
  shape.checkpoint_rounds = static_cast<uint32_t>(random->Between(1, 2));
  shape.segment_bytes_min = uint64_t{1} << 13;
}

// A state on NVMe. Drawn apart, as the restarts are.
void AddNvme(Swarm* swarm, Random* random) {
  swarm->shape.spec.device = Device::kNvme;
  swarm->shape.nvme_extents =
      server::kNvmeBuffersMin + static_cast<uint32_t>(random->OneIn(2) ? 0 : random->Below(6));
  // The salt leaves the seeds of tests/sim/regressions unchanged.
  swarm->shape.overlapping_flushes = !Random(Mix(swarm->seed) ^ 0xF1054EE).OneIn(4);
}

// Another optimizer than AdamW without options, in most cases. Drawn apart, as the restarts are.
void SetOptimizer(JobSpec* spec, Random* random) {
  const Optimizer optimizer = DrawOptimizer(random);
  spec->optimizer = optimizer.kind;
  spec->options = optimizer.options;
  spec->formula_id = FindOptimizer(optimizer.kind)->formula_id;
}

LossScalerConfig DrawScaler(PolicyProfile profile, Random* random) {
  return {.initial_scale_power = static_cast<int64_t>(random->Between(0, 4)),
          .loss_scale_window = static_cast<int64_t>(random->Between(1, 3)),
          .hysteresis = static_cast<int64_t>(random->Between(1, 2)),
          .consecutive_hysteresis = random->OneIn(3),
          .profile = profile};
}

Schedule DrawSchedule(bool betas, Random* random) {
  const auto steps = static_cast<int64_t>(random->Between(1, 8));
  switch (random->Below(4)) {
    case 0:
      return WarmupLR{.warmup_num_steps = steps};
    case 1:
      return WarmupCosineLR{.total_num_steps = 2 * steps, .warmup_num_steps = steps};
    case 2:
      return LRRangeTest{.lr_range_test_step_size = steps, .lr_range_test_staircase = true};
    default:
      return OneCycle{.cycle_min_lr = 1e-3,
                      .cycle_max_lr = 1e-2,
                      .cycle_first_step_size = static_cast<double>(steps),
                      .decay_step_size = 1,
                      .cycle_momentum = betas,
                      .decay_mom_rate = 0.5};
  }
}

// A dynamic loss scale, a schedule, or both. Drawn apart, and after the optimizer.
void SetPolicy(JobSpec* spec, Random* random) {
  PolicySpec* const policy = &spec->policy;
  if (random->OneIn(2)) policy->profile = PolicyProfile::kDeepSpeed;
  const uint64_t which = random->Below(3);
  if (which != 0) {
    policy->loss_scaler = DrawScaler(policy->profile, random);
    spec->loss_scale = 1;
    spec->nonfinite = NonfinitePolicy::kSkip;
  }
  const bool betas = std::string_view(OptimizerRowOf(*spec).hyper[1].name) == "beta1";
  if (which != 1) policy->schedule = DrawSchedule(betas, random);
}

Gradients DrawGradients(uint64_t seed) {
  if (!Random(Mix(seed) ^ 0x4ED0CF10).OneIn(4)) return Gradients::kLocal;
  return Random(Mix(seed) ^ 0x5CA77E4D).OneIn(2) ? Gradients::kScattered : Gradients::kReduced;
}

// The salt leaves the seeds of tests/sim/regressions unchanged.
bool DrawMeetings(uint64_t seed) {
  Random random(Mix(seed) ^ 0x3EE70004);
  return random.OneIn(6);
}

// Damage may end the job, so that it never rests.
void AddRest(Swarm* swarm) {
  Random random(Mix(swarm->seed) ^ 0x4E575);
  if (swarm->may_refuse() || !random.OneIn(6)) return;
  swarm->rests_after = random.Between(1, swarm->shape.rounds - 1);
}

std::string GradientsText(Gradients gradients) {
  return gradients == Gradients::kLocal ? "" : absl::StrCat(", ", NameOf(gradients), " gradients");
}

std::string PolicyText(const PolicySpec& policy) {
  std::string text = policy.loss_scaler.has_value() ? ", dynamic loss scale" : "";
  if (policy.schedule.has_value()) absl::StrAppend(&text, ", ", ScheduleType(*policy.schedule));
  return text;
}

}  // namespace

Swarm DrawSwarm(uint64_t seed) {
  Random random(Mix(seed) ^ 0x5157A12D);
  Swarm swarm;
  swarm.seed = seed;
  swarm.shape = DrawShape(&random);
  swarm.pace = DrawPace(&random);
  swarm.faults = DrawFaults(swarm.shape, &random);
  if (random.OneIn(4)) swarm.shape.spec.nonfinite = NonfinitePolicy::kHalt;
  swarm.shape.spec.max_consecutive_skips = static_cast<uint32_t>(random.Below(3));
  if (random.OneIn(4)) swarm.shape.upload_one_in = static_cast<uint32_t>(random.Between(2, 6));
  Random least(Mix(seed) ^ 0x3E5701D4);
  if (swarm.shape.spec.variable_world && least.OneIn(2)) {
    swarm.shape.min_world = static_cast<uint32_t>(least.Between(1, swarm.shape.trainers));
  }
  Random more(Mix(seed) ^ 0x3A7B0C11);
  if (swarm.faults.budget != 0 && more.OneIn(3)) AddRestarts(&swarm, &more);
  Random clocks(Mix(seed) ^ 0x71C70C25);
  if (swarm.faults.budget != 0 && clocks.OneIn(8)) AddClockJumps(&swarm, &clocks);
  Random tier(Mix(seed) ^ 0x4E564D45);
  if (tier.OneIn(4)) AddNvme(&swarm, &tier);
  AddEndsInRecord(&swarm);
  Random lag(Mix(seed) ^ 0x51074A6);
  const bool may_lag = swarm.faults.budget != 0 && swarm.shape.nvme_extents == 0;
  if (may_lag && lag.OneIn(12)) AddLaggingImages(&swarm, &lag);
  Random seals(Mix(seed) ^ 0x5EA15EA1);
  const bool many = swarm.shape.spec.variable_world && swarm.shape.servers > 1;
  if (many && swarm.faults.budget != 0 && seals.OneIn(3)) AddSealedEnds(&swarm, &seals);
  Random snapshots(Mix(seed) ^ 0x54A95407);
  if (snapshots.OneIn(6)) AddSnapshots(&swarm, &snapshots);
  Random optimizer(Mix(seed) ^ 0x0071A12E);
  if (optimizer.OneIn(2)) SetOptimizer(&swarm.shape.spec, &optimizer);
  Random policy(Mix(seed) ^ 0x70711C4);
  if (policy.OneIn(3)) SetPolicy(&swarm.shape.spec, &policy);
  swarm.shape.spec.gradients = DrawGradients(seed);
  swarm.meetings = DrawMeetings(seed);
  AddRest(&swarm);
  return swarm;
}

std::string Describe(const Swarm& swarm) {
  const Shape& shape = swarm.shape;
  const Faults& f = swarm.faults;
  std::string sizes;
  for (const TensorSpec& tensor : shape.spec.tensors) {
    absl::StrAppend(&sizes, sizes.empty() ? "" : ",", tensor.shape[0],
                    tensor.dtype == DType::kBF16 ? "h" : "");
  }
  std::string faults;
  const auto say = [&faults](const char* name, uint64_t value) {
    if (value != 0) absl::StrAppend(&faults, " ", name, value == 1 ? "" : absl::StrCat("/", value));
  };
  say("kill", f.kill_one_in), say("power", f.power_one_in), say("die_in_disk", f.die_in_disk);
  say("break", f.break_one_in), say("lose", f.lose_one_in), say("repeat", f.repeat_one_in);
  say("late", f.late_one_in), say("partitions", f.partitions);
  say("pause_servers", f.pause_servers), say("pause_trainers", f.pause_trainers);
  say("straggler", f.straggler_one_in), say("write_errors", f.write_errors);
  say("sync_errors", f.sync_errors), say("disk_full", f.disk_full), say("rot", f.rot);
  say("lying_disk", f.lying_disk), say("zombies", f.zombies), say("corrupt", f.corrupt_one_in);
  say("drift", f.drift), say("clock_jumps", f.clock_jumps);
  say("kill_trainers", f.kill_trainers);
  say("hang_trainers", f.hang_trainers), say("come_and_go", f.come_and_go);
  say("end_soon", f.change.end_soon), say("end_in_record", f.change.end_in_record);
  say("end_sealed", f.change.end_sealed);
  return absl::StrCat(
      "seed ", swarm.seed, ": ", shape.servers, " servers, ", shape.trainers, " trainers",
      shape.spec.variable_world ? absl::StrCat(" of ", shape.min_world, " to ", shape.seats) : "",
      ", ", shape.rounds, " rounds, tensors ", sizes, ", extents of ", shape.spec.extent_elements,
      shape.spec.durability == Durability::kProcess ? ", level process" : ", level power", ", ",
      FindOptimizer(shape.spec.optimizer)->name,
      shape.spec.options.empty() ? "" : absl::StrCat(" ", absl::StrJoin(shape.spec.options, "/")),
      PolicyText(shape.spec.policy), GradientsText(shape.spec.gradients), ", checkpoint in ",
      shape.checkpoint_rounds, " rounds",
      shape.nvme_extents == 0 ? ""
                              : absl::StrCat(", on NVMe with ", shape.nvme_extents, " in memory"),
      shape.upload_one_in == 0 ? "" : ", uploads", swarm.snapshots.most == 0 ? "" : ", snapshots",
      swarm.meetings ? ", meetings" : "",
      swarm.rests_after == 0 ? "" : absl::StrCat(", rests after round ", swarm.rests_after),
      "; faults:", faults.empty() ? " none" : faults);
}

}  // namespace ballast::sim
