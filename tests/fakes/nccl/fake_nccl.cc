// A fake NCCL: the functions of nccl_abi.h over memory that processes share, on tensors of the
// host. It is opened by the same path as NCCL, under the same name. Tests only.
// Comes from: NcclLibrary. Goes to: the other ranks. Nothing blocks: a call is under way until
// ncclCommGetAsyncError has brought it to its end. As in NCCL 2.22, an abort marks at once and
// frees at the end of the outermost group. As with CUDA, freeing waits for the work of the
// process's other communicators: where one is not marked, that would be for ever, and the fake
// counts it. Faults: plan.h. Thread safety: a communicator is for one thread; the rest is
// thread-safe.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client/collective/nccl_abi.h"
#include "client/device/elements.h"
#include "common/base/sync.h"
#include "tests/fakes/nccl/plan.h"
#include "tests/fakes/nccl/segment.h"

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

namespace nccl = ballast::collective::nccl;
using fake_nccl::Segment;

struct ballast::collective::nccl::OpaqueComm {
  std::unique_ptr<Segment> segment;
  int rank = 0;
  int result = nccl::kInProgress;
  bool marked = false;
  bool here = false;   // all ranks have come
  bool never = false;  // a fault: nothing goes on
  int late = 0;        // a fault: looks until it goes on
  uint64_t calls = 0;
  std::map<std::string, int> of_kind;
  std::function<void()> give, form;  // of the call under way
  std::string call;
  size_t bytes = 0;
  bool given = false;
  std::atomic<bool> under_way{false};
};

namespace {

using Comm = nccl::OpaqueComm;

struct Process {
  ballast::Mutex mutex;
  std::set<Comm*> comms ABSL_GUARDED_BY(mutex);
  int deadlocks ABSL_GUARDED_BY(mutex) = 0;
};

Process& process() {
  static Process* the_process = new Process;
  return *the_process;
}

thread_local int group_depth = 0;
thread_local std::vector<Comm*> aborted_in_group;
thread_local std::string last_error;

// Applies the fault of this call, if there is one.
void Strike(Comm* comm, const std::string& kind) {
  const int at = ++comm->of_kind[kind];
  const std::string what = fake_nccl::ThePlan().FaultOf(comm->rank, kind, at);
  if (what == "die") kill(getpid(), SIGKILL);
  if (what == "never") comm->never = true;
  if (what == "slow") comm->late = 200;
  if (what == "fail") comm->result = nccl::kRemoteError;
}

// Returns when a byte has come through the pipe FAKE_NCCL_FREE, if set.
void WaitToFree() {
  const char* const path = std::getenv("FAKE_NCCL_FREE");
  if (path == nullptr) return;
  const int pipe = open(path, O_RDONLY);
  char byte = 0;
  if (pipe < 0 || read(pipe, &byte, 1) != 1) std::abort();
  close(pipe);
}

void Free(Comm* comm) {
  WaitToFree();
  {
    ballast::MutexLock lock(&process().mutex);
    process().comms.erase(comm);
    for (const Comm* other : process().comms) {
      if (other->under_way.load() && !other->marked) ++process().deadlocks;
    }
  }
  comm->segment->row(comm->rank).process.store(-1);
  comm->segment->Unlink();
  delete comm;
}

bool AllEqual(Comm* comm) {
  Segment& segment = *comm->segment;
  for (int rank = 0; rank < segment.world(); ++rank) {
    if (std::strcmp(segment.row(rank).call, segment.row(comm->rank).call) != 0) return false;
  }
  return true;
}

void Arrive(Comm* comm) {
  Segment& segment = *comm->segment;
  fake_nccl::Row& mine = segment.row(comm->rank);
  if (comm->here) return;
  if (mine.process.load() == 0) mine.process.store(getpid());
  comm->here = segment.AllHere();
  if (!comm->here) return;
  segment.Unlink();
  comm->result = nccl::kSuccess;
}

void GoOn(Comm* comm) {
  Segment& segment = *comm->segment;
  fake_nccl::Row& mine = segment.row(comm->rank);
  if (!comm->given && segment.AllDone(comm->calls - 1)) {
    std::snprintf(mine.call, sizeof mine.call, "%s", comm->call.c_str());
    comm->give();
    mine.given.store(comm->calls);
    comm->given = true;
  }
  if (!segment.AllGiven(comm->calls)) return;
  if (AllEqual(comm)) {
    comm->form();
    comm->result = nccl::kSuccess;
  } else {
    last_error = "the ranks make different calls";
    comm->result = nccl::kInvalidArgument;
  }
  mine.done.store(comm->calls);
  comm->form = nullptr;
  comm->under_way.store(false);
}

void Look(Comm* comm) {
  if (comm->result != nccl::kInProgress || comm->never || comm->marked) return;
  if (comm->late > 0 && --comm->late > 0) return;
  if (!comm->here) {
    Arrive(comm);
  } else if (comm->under_way.load()) {
    GoOn(comm);
  }
  // A call with all inputs given before one rank went away still ends.
  if (comm->result != nccl::kInProgress || !fake_nccl::ThePlan().notice) return;
  if (!comm->segment->OneIsGone()) return;
  // It may have given the last missing input, and gone, since this rank looked.
  if (comm->here && comm->under_way.load()) GoOn(comm);
  if (comm->result != nccl::kInProgress) return;
  last_error = "a peer has closed its connection";
  comm->result = nccl::kRemoteError;
}

int Queue(Comm* comm, const std::string& kind, const std::string& sizes, const void* from,
          size_t bytes, std::function<void()> form) {
  if (comm->result != nccl::kSuccess || bytes > fake_nccl::kSlotBytes) return nccl::kInvalidUsage;
  comm->result = nccl::kInProgress;
  comm->form = std::move(form);
  comm->given = false;
  comm->under_way.store(true);
  comm->call = kind + " " + sizes;
  comm->give = [comm, from, bytes] {
    // A share without bytes may have no address.
    if (bytes > 0) std::memcpy(comm->segment->slot(comm->rank), from, bytes);
  };
  ++comm->calls;
  Strike(comm, kind);
  Look(comm);
  return comm->result;
}

template <typename Type>
void Add(Comm* comm, size_t first, size_t count, void* share) {
  auto* sum = static_cast<typename Type::T*>(share);
  const auto at = [&](int rank, size_t i) {
    return Type::Widen(reinterpret_cast<const typename Type::T*>(comm->segment->slot(rank))[i]);
  };
  for (size_t i = 0; i < count; ++i) {
    float value = at(0, first + i);
    for (int rank = 1; rank < comm->segment->world(); ++rank) {
      value = Type::Widen(Type::Round(value + at(rank, first + i)));
    }
    sum[i] = Type::Round(value);
  }
}

}  // namespace

FAKE_NCCL_API int fake_nccl_deadlocks() {
  ballast::MutexLock lock(&process().mutex);
  return process().deadlocks;
}

FAKE_NCCL_API int ncclGetVersion(int* version) {
  *version = fake_nccl::ThePlan().version;
  return nccl::kSuccess;
}

FAKE_NCCL_API int ncclGetUniqueId(nccl::UniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/dev/shm/fake-nccl-%08x%08x%08x", random(),
                random(), random());
  return nccl::kSuccess;
}

FAKE_NCCL_API int ncclCommInitRankConfig(nccl::Comm* comm, int world, nccl::UniqueId id, int rank,
                                         nccl::Config* config) {
  const bool right = config->magic == 0xcafebeef && config->blocking == 0;
  if (!right || rank >= world || world > fake_nccl::kRanksMax) return nccl::kInvalidArgument;
  auto made = std::make_unique<Comm>();
  made->segment.reset(Segment::Map(id.internal, world));
  if (made->segment == nullptr) return nccl::kSystemError;
  made->rank = rank;
  if (made->segment->row(rank).process.load() != 0) {
    last_error = "two processes have the same rank";
    return nccl::kInvalidUsage;
  }
  Strike(made.get(), "init");
  Look(made.get());
  *comm = made.release();
  ballast::MutexLock lock(&process().mutex);
  process().comms.insert(*comm);
  return (*comm)->result;
}

FAKE_NCCL_API int ncclCommGetAsyncError(nccl::Comm comm, int* result) {
  Look(comm);
  *result = comm->result;
  return nccl::kSuccess;
}

FAKE_NCCL_API int ncclGroupStart() {
  ++group_depth;
  return nccl::kSuccess;
}

FAKE_NCCL_API int ncclGroupEnd() {
  if (group_depth == 0) return nccl::kInvalidUsage;
  if (--group_depth > 0) return nccl::kSuccess;
  std::vector<Comm*> comms;
  comms.swap(aborted_in_group);
  for (Comm* comm : comms) Free(comm);
  return nccl::kSuccess;
}

FAKE_NCCL_API int ncclCommAbort(nccl::Comm comm) {
  ncclGroupStart();
  {
    ballast::MutexLock lock(&process().mutex);
    comm->marked = true;
  }
  aborted_in_group.push_back(comm);
  return ncclGroupEnd();
}

FAKE_NCCL_API int ncclReduceScatter(const void* bucket, void* share, size_t count, int dtype,
                                    int op, nccl::Comm comm, void*) {
  if (op != nccl::kSum) return nccl::kInvalidArgument;
  const size_t first = count * static_cast<size_t>(comm->rank);
  const auto world = static_cast<size_t>(comm->segment->world());
  const std::string sizes = std::to_string(count) + " of type " + std::to_string(dtype);
  using namespace ballast::device;
  const auto queue = [&](auto type, size_t bytes) {
    return Queue(comm, "reduce_scatter", sizes, bucket, world * count * bytes,
                 [=] { Add<decltype(type)>(comm, first, count, share); });
  };
  if (dtype == nccl::kFloat32) return queue(F32{}, 4);
  if (dtype == nccl::kBfloat16) return queue(BF16{}, 2);
  if (dtype == nccl::kFloat16) return queue(F16{}, 2);
  return nccl::kInvalidArgument;
}

FAKE_NCCL_API int ncclAllGather(const void* share, void* bucket, size_t count, int dtype,
                                nccl::Comm comm, void*) {
  if (dtype != nccl::kUint8) return nccl::kInvalidArgument;
  return Queue(comm, "all_gather", std::to_string(count), share, count, [=] {
    for (int rank = 0; rank < comm->segment->world() && count > 0; ++rank) {
      char* part = static_cast<char*>(bucket) + static_cast<size_t>(rank) * count;
      std::memcpy(part, comm->segment->slot(rank), count);
    }
  });
}

FAKE_NCCL_API const char* ncclGetErrorString(int result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result >= 0 && result < 8 ? kTexts[result] : "unknown result code";
}

FAKE_NCCL_API const char* ncclGetLastError(nccl::Comm) { return last_error.c_str(); }
