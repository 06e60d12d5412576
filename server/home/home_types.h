// Inputs and effects of HomeJob, as plain values.
// Comes from: HomeJobs (inputs), HomeJob (effects). Goes to: HomeJob, HomeJobs.
// Thread safety: plain values.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/text/qualified_name.h"
#include "server/jobs/trainer_calls.h"
#include "server/round/round_types.h"

namespace ballast::server::home {

// Where an answer or a timer belongs.
struct Life {
  QualifiedName name;
  uint64_t life = 0;  // differs between two jobs of one name
};

// What all jobs of a home have in common.
struct Rules {
  uint32_t self = 0;              // server id of the home
  uint64_t incarnation = 0;       // of its process
  std::vector<uint32_t> servers;  // of a new job: ids, ascending; the home is the first
  JobLimits limits;
  std::chrono::nanoseconds attach_timeout{0};  // the longest that a call may wait
  // How long a seat whose process still looks alive may keep a newcomer waiting.
  std::chrono::nanoseconds takeover_wait{0};
  std::chrono::nanoseconds lease{0};
  // How long a durable job waits for the first stream of a trainer before it rests.
  std::chrono::nanoseconds trainerless{0};

  // How long a call waits for other slots.
  std::chrono::nanoseconds WaitOf(const AttachCall& call) const {
    return call.wait.count() > 0 ? std::min<std::chrono::nanoseconds>(call.wait, attach_timeout)
                                 : attach_timeout;
  }
};

// A call that waits for an answer. The driver counts them, from 1 on.
using Ticket = uint64_t;

// --- Inputs -------------------------------------------------------------------------------------
struct StartInput {};  // other servers are reachable: unfinished work of its last life resumes
struct AttachInput {
  Ticket ticket = 0;
  AttachCall call;  // valid by ValidateJobSpec
};
struct HangUpInput {  // the caller of the pending attach `call` (AttachCall::call) hung up
  uint32_t slot = 0;
  uint64_t call = 0;
};
struct ExtendInput {
  Ticket ticket = 0;
  ExtendCall call;
};

// Answers of servers to MakeAt, SaveRecord, SealAt, AdoptAt, OpenAt, GrowAt and LookAtSeat.
struct MadeInput {
  uint32_t server = 0;
  absl::Status status;
};
struct SavedInput {
  absl::Status status;
};
struct SealedInput {
  uint32_t change = 0;
  uint32_t server = 0;
  absl::StatusOr<SealAnswer> answer = absl::UnknownError("");
};
struct AdoptedInput {
  uint32_t epoch = 0;
  uint32_t server = 0;
  absl::Status status;
};
struct OpenedInput {
  uint32_t epoch = 0;
  uint32_t server = 0;
  absl::Status status;
};
struct GrownInput {
  uint64_t attempt = 0;
  uint32_t server = 0;
  absl::Status status;
};
struct SeatSeenInput {
  uint32_t slot = 0;
  Ticket ticket = 0;
  bool open = false;     // a process holds the seat
  bool anybody = false;  // some trainer has a stream open, in whatever seat
};

// Times that Arm has set.
struct AttachDueInput {};
struct SeatDueInput {
  uint32_t slot = 0;
  Ticket ticket = 0;
};
struct EpochDueInput {  // what did not come about in this epoch is tried again
  uint32_t epoch = 0;
  bool trainers = false;  // or: by now one of its trainers should have opened a stream
};
struct GrowDueInput {
  uint64_t attempt = 0;
};
using Due = std::variant<AttachDueInput, SeatDueInput, EpochDueInput, GrowDueInput>;
static_assert(sizeof(Due) <= 24);  // Many may wait at a time.

struct SeatFreeInput {  // a member has left, or its lease ran out
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  bool left = false;
};
struct EndedInput {  // the job has ended at this server
  absl::Status why;
  bool rests = false;  // and is on disk
};
struct PeerLostInput {
  uint32_t server = 0;
  std::string why;
};
struct FailInput {  // every call that waits gets `status`
  absl::Status status;
};
using Input = std::variant<StartInput, AttachInput, HangUpInput, ExtendInput, MadeInput, SavedInput,
                           SealedInput, AdoptedInput, OpenedInput, GrownInput, SeatSeenInput,
                           AttachDueInput, SeatDueInput, EpochDueInput, GrowDueInput, SeatFreeInput,
                           EndedInput, PeerLostInput, FailInput>;

// --- Effects ------------------------------------------------------------------------------------
struct RefuseAttach {
  Ticket ticket = 0;
  absl::Status status;
};
struct DropCall {  // the caller of an attach hung up: no answer
  Ticket ticket = 0;
};
struct GiveSeat {  // the answer to an attach: the plan, and the slot's last process
  Ticket ticket = 0;
  uint32_t slot = 0;
  JobPlan plan;
};
struct AnswerExtend {
  Ticket ticket = 0;
  absl::StatusOr<JobPlan> plan = absl::UnknownError("");
};
// The server makes the job, or opens its share of it (JobPlan::making says which); answer with
// MadeInput. The home's own answer comes at once: this is the last effect of its step.
struct MakeAt {
  uint32_t server = 0;
  JobPlan plan;
};
// Every server has the job: the home's record says so from now on. Answer with SavedInput, at once.
struct SaveRecord {
  JobPlan plan;
};
struct ExpectSlots {  // trainers are given their seats from now on
  uint64_t job = 0;
};
struct DropAt {  // another server forgets a job after a failed creation
  uint32_t server = 0;
  uint64_t job = 0;
};
struct Forget {  // likewise this server, with its files
  uint64_t job = 0;
};
struct Release {  // this server gives back the memory of a job, which stays on disk
  uint64_t job = 0;
};
struct WakeRecord {  // the job rests no more
  QualifiedName name;
};
struct SealAt {  // no round of the epoch is prepared any more; answer with SealedInput
  uint32_t server = 0;
  SealCall call;
  uint32_t change = 0;  // the home's number of this change of epoch
};
struct AdoptAt {  // the server goes over to the epoch of `plan`; answer with AdoptedInput
  uint32_t server = 0;
  JobPlan plan;
};
struct OpenAt {  // a server that does not run the job opens it again; answer with OpenedInput
  uint32_t server = 0;
  JobPlan plan;
};
struct GrowAt {  // the server makes room for the grown plan, or takes it; answer with GrownInput
  uint64_t attempt = 0;
  uint32_t server = 0;
  JobPlan plan;
};
struct SlotGrows {  // the slot waits for the others before it grows the job, or waits no more
  uint64_t job = 0;
  uint32_t slot = 0;
  bool grows = true;
};
struct LookAtSeat {  // which process uses the seat at this server; answer with SeatSeenInput
  uint64_t job = 0;
  uint32_t slot = 0;
  Ticket ticket = 0;
};
struct FailJob {  // this server ends the job
  uint64_t job = 0;
  absl::Status status;
  bool unless_opened = false;  // but not if a trainer has had a stream here
};
struct Arm {  // feeds `due` after that time
  std::chrono::nanoseconds after{0};
  Due due;
};
struct Note {  // a line for the log
  std::string text;
  bool warning = false;
  int slot = -1;  // the slot that the line is about; -1: none
};
using Effect = std::variant<RefuseAttach, DropCall, GiveSeat, AnswerExtend, MakeAt, SaveRecord,
                            ExpectSlots, DropAt, Forget, Release, WakeRecord, SealAt, AdoptAt,
                            OpenAt, GrowAt, SlotGrows, LookAtSeat, FailJob, Arm, Note>;
using Effects = std::vector<Effect>;

// Counts the answers of several servers to one question.
class Tally {
 public:
  // Asks `servers`; none of them has answered.
  void Begin(const std::vector<uint32_t>& servers) {
    missing_ = servers;
    first_error_ = absl::OkStatus();
  }
  // Records an answer. Repeated and unexpected answers are ignored. Returns whether this was the
  // last one.
  bool Add(uint32_t server, const absl::Status& status) {
    if (std::erase(missing_, server) == 0) return false;
    if (first_error_.ok()) first_error_ = status;
    return missing_.empty();
  }
  bool complete() const { return missing_.empty(); }
  const absl::Status& first_error() const { return first_error_; }

 private:
  std::vector<uint32_t> missing_;
  absl::Status first_error_;
};

}  // namespace ballast::server::home
