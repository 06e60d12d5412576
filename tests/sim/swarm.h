// The content of one seed: the job's shape, how slow everything is, and which faults may happen how
// often. Half of the seeds use no class of faults or one, so that the effect of each can be told;
// the others mix. A third of those with faults also have servers that end, in addition to all else.
// Comes from: the seed. Goes to: the simulation. Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/job/job_spec.h"
#include "tests/sim/world/random.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

inline constexpr uint32_t kAllExtents = 64;

// The job and its transport.
struct Shape {
  uint32_t servers = 1;
  uint32_t trainers = 1;   // at the start
  uint32_t seats = 1;      // the most there may be; more than `trainers` in a variable world only
  uint32_t min_world = 1;  // of a variable world
  uint64_t rounds = 2;
  JobSpec spec;
  uint32_t chunk_bytes = 256;
  uint64_t credit_bytes = 4096;
  std::vector<uint32_t> window_extents;  // per server, at least; kAllExtents: all of them
  uint32_t checkpoint_rounds = 2;
  uint32_t nvme_extents = 0;  // in memory at a time when the state lives on NVMe; 0: it does not
  bool overlapping_flushes = false;  // of its slots
  uint64_t segment_bytes_min = 16384;
  bool broadcast = false;         // slots other than 0 fetch the initial weights
  uint32_t absent_one_in = 0;     // how often a gradient is None; 0: never
  uint32_t nonfinite_one_in = 0;  // how often a round has a NaN; 0: never
  uint32_t upload_one_in = 0;     // how often a round replaces the weights; 0: never
};

// Virtual time that things take; each time is drawn between a quarter of it and all of it.
struct Pace {
  Tick network = 0;
  Tick kernel = 0;
  Tick log_write = 0;
  Tick log_sync = 0;
  Tick image_write = 0;
  Tick image_sync = 0;
  Tick compute = 0;  // of a trainer between two rounds
  Tick start = 0;    // of a server process
};

// The remains of unsynced data after a power loss.
enum class CrashMood : uint8_t { kKeepsAll, kLosesAll, kMixed };

// Servers that end in the middle of a change of epoch.
struct EndsInChange {
  bool end_soon = false;       // soon after a server is sealed or adopts an epoch
  bool end_in_record = false;  // inside the disk, about when they write an epoch's record
  bool end_sealed = false;     // the home, sealed, and the trainers that ask for a seat
};

// 0 switches a class off. Rates are "once in so many events of a server" or "of messages".
struct Faults {
  uint32_t kill_one_in = 0;   // events of a server, kill -9
  uint32_t power_one_in = 0;  // events of a server, power loss
  bool die_in_disk = false;   // the process or its power ends inside a disk operation
  CrashMood mood = CrashMood::kMixed;
  bool whole_cluster = false;  // a power loss takes all servers
  uint32_t break_one_in = 0;   // messages of a stream: the stream breaks
  uint32_t lose_one_in = 0;    // calls and their answers
  uint32_t repeat_one_in = 0;  // calls between servers
  uint32_t late_one_in = 0;    // messages: far later than others
  bool partitions = false;
  bool pause_servers = false;
  bool pause_trainers = false;
  uint32_t straggler_one_in = 0;  // rounds of a trainer
  bool write_errors = false;
  bool sync_errors = false;
  bool disk_full = false;       // when the job is made
  bool rot = false;             // bits turn around while a server is down
  bool lying_disk = false;      // acknowledged writes that do not happen
  bool zombies = false;         // frames of dead processes and older epochs
  uint32_t corrupt_one_in = 0;  // gradient frames
  bool drift = false;           // clocks of different speed
  bool clock_jumps = false;     // steady clocks leap ahead, wall clocks are set
  bool kill_trainers = false;   // and start others in their place
  bool hang_trainers = false;   // likewise, but the first one wakes up again
  bool come_and_go = false;     // variable worlds: trainers leave and join
  EndsInChange change;

  uint32_t budget = 0;           // faults in all
  Tick mean_gap = kMillisecond;  // of the faults that happen at a time
};

// Snapshots that are taken during rounds, and removed again.
struct Snapshots {
  uint32_t most = 0;          // begun during rounds; 0: none in this seed
  Tick mean_gap = 0;          // between two
  Tick pace = 0;              // of one extent, and of the disk they lie on
  bool write_errors = false;  // of that disk
  bool die_at_shelf = false;  // servers end inside one of its operations
};

struct Swarm {
  uint64_t seed = 0;
  Shape shape;
  Pace pace;
  Faults faults;
  Snapshots snapshots;
  bool meetings = false;  // trainers make communicators among them, in every epoch
  // After this round all trainers leave, and the job rests until others come; 0: it does not.
  uint64_t rests_after = 0;
  // Trainer processes in all: each has a node of its own.
  uint32_t processes_max() const {
    const uint32_t in_life = faults.budget + shape.seats + 4;
    return shape.trainers + (rests_after == 0 ? 1 : 2) * in_life;
  }
  // Damage that checksums can find but not mend is allowed to end the job with a typed error.
  bool may_refuse() const { return faults.rot || faults.lying_disk; }
};

Swarm DrawSwarm(uint64_t seed);

// One line for people.
std::string Describe(const Swarm& swarm);

}  // namespace ballast::sim
