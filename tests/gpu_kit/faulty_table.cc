// The table of a CUDA part with one planted fault, for the stages of the GPU kit: each must notice
// its own faults.
// Comes from: the shared object that the variable BALLAST_FAULTY_OVER names (libballast_cuda.so or
// the tests' stand-in). Goes to: CudaLibrary. Test only.
// The fault is the text in BALLAST_FAULT, or what ballast_faulty_arm() was given last:
//   (nothing)           all calls are passed on
//   early_gradient      nothing waits for the framework's streams
//   early_hand_over     the framework's streams do not wait for ours; unpacks are slow
//   early_read          the host does not wait for our streams; copies are slow
//   lost_unpack=N       the Nth unpack does nothing and succeeds
//   kill_at=CALL:N      SIGKILL at the Nth pack, copy or unpack, before it is done
//   wild_pack           packs write where no memory is
// Counts begin at 1 and anew when a fault is armed. Thread safety: thread-safe.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "client/device/cuda_abi.h"

namespace ballast::device::cuda {
namespace {

constexpr size_t kScratchBytes = size_t{128} << 20;
constexpr uintptr_t kNoMemory = 1 << 16;  // an address that no allocation has
constexpr int kSlowCopies = 200;          // of half the scratch: about 10 ms on a GPU of 2 TB/s

struct Fault {
  std::string kind;
  std::string call;  // of kill_at
  int count = 0;     // of lost_unpack and kill_at
};

struct State {
  std::mutex mu;
  Fault fault;
  std::map<std::string, int> calls;
  std::set<void*> ours;             // streams that the table made
  std::map<void*, bool> of_others;  // by event: whether another stream recorded it last
  char* scratch = nullptr;          // device memory
};

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

[[noreturn]] void Refuse(const std::string& why) {
  std::fprintf(stderr, "ballast_cuda_faulty: %s\n", why.c_str());
  std::abort();
}

Fault Parsed(const std::string& text) {
  Fault fault;
  const size_t equals = text.find('=');
  fault.kind = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (fault.kind == "kill_at") {
    const size_t colon = value.find(':');
    if (colon == std::string::npos) Refuse("kill_at is CALL:N, not " + value);
    fault.call = value.substr(0, colon);
    fault.count = std::atoi(value.c_str() + colon + 1);
  } else if (fault.kind == "lost_unpack") {
    fault.count = std::atoi(value.c_str());
  }
  static const std::set<std::string> kKinds{
      "", "early_gradient", "early_hand_over", "early_read", "lost_unpack", "kill_at", "wild_pack"};
  if (!kKinds.contains(fault.kind)) Refuse("no fault is called " + fault.kind);
  return fault;
}

const Table& Real() {
  static const Table* const real = [] {
    const char* const path = std::getenv("BALLAST_FAULTY_OVER");
    if (path == nullptr) Refuse("BALLAST_FAULTY_OVER names no CUDA part");
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Refuse(dlerror());
    void* const symbol = dlsym(library, kTableSymbol);
    if (symbol == nullptr) Refuse(std::string(path) + " has no table");
    return reinterpret_cast<TableFn>(symbol)();
  }();
  return *real;
}

// Whether this is the call of the fault. SIGKILL where requested.
bool Struck(const std::string& call) {
  const std::lock_guard<std::mutex> lock(state().mu);
  const int nth = ++state().calls[call];
  const Fault& fault = state().fault;
  if (fault.kind == "kill_at" && fault.call == call && fault.count == nth) kill(getpid(), SIGKILL);
  return fault.kind == "lost_unpack" && call == "unpack" && fault.count == nth;
}

bool Is(const char* kind) {
  const std::lock_guard<std::mutex> lock(state().mu);
  return state().fault.kind == kind;
}

bool Ours(void* stream) {
  const std::lock_guard<std::mutex> lock(state().mu);
  return state().ours.contains(stream);
}

bool OfOthers(void* event) {
  const std::lock_guard<std::mutex> lock(state().mu);
  const auto found = state().of_others.find(event);
  return found != state().of_others.end() && found->second;
}

// Work on `stream` that takes milliseconds.
void Delay(void* stream) {
  char* const scratch = state().scratch;
  for (int i = 0; i < kSlowCopies; ++i) {
    Real().copy(stream, scratch, scratch + kScratchBytes / 2, kScratchBytes / 2);
  }
}

int StreamCreate(void** stream) {
  const int error = Real().stream_create(stream);
  if (error != 0) return error;
  const std::lock_guard<std::mutex> lock(state().mu);
  state().ours.insert(*stream);
  // Here, where nothing is under way: an allocation may wait for the device.
  void* scratch = state().scratch;
  const int full = scratch == nullptr ? Real().device_allocate(&scratch, kScratchBytes) : 0;
  state().scratch = static_cast<char*>(scratch);
  return full;
}

int StreamDestroy(void* stream) {
  {
    const std::lock_guard<std::mutex> lock(state().mu);
    state().ours.erase(stream);
  }
  return Real().stream_destroy(stream);
}

int StreamWait(void* stream, void* event) {
  if (Is("early_hand_over") && !Ours(stream)) return 0;
  if (Is("early_gradient") && OfOthers(event)) return 0;
  return Real().stream_wait(stream, event);
}

int EventRecord(void* event, void* stream) {
  const bool others = !Ours(stream);
  {
    const std::lock_guard<std::mutex> lock(state().mu);
    state().of_others[event] = others;
  }
  return Real().events.record(event, stream);
}

int EventSynchronize(void* event) {
  if (Is("early_gradient") && OfOthers(event)) return 0;
  if (Is("early_read") && !OfOthers(event)) return 0;
  return Real().events.synchronize(event);
}

int Copy(void* stream, void* to, const void* from, size_t bytes) {
  Struck("copy");
  if (Is("early_read")) Delay(stream);
  return Real().copy(stream, to, from, bytes);
}

int Pack(void* stream, uint32_t tensor_dtype, uint32_t packed_dtype, const PieceRun* run) {
  Struck("pack");
  if (!Is("wild_pack")) return Real().pack(stream, tensor_dtype, packed_dtype, run);
  PieceRun wild = *run;
  wild.packed = reinterpret_cast<void*>(kNoMemory);
  return Real().pack(stream, tensor_dtype, packed_dtype, &wild);
}

int Unpack(void* stream, uint32_t tensor_dtype, uint32_t packed_dtype, const PieceRun* run) {
  if (Struck("unpack")) return 0;
  if (Is("early_hand_over")) Delay(stream);
  return Real().unpack(stream, tensor_dtype, packed_dtype, run);
}

}  // namespace
}  // namespace ballast::device::cuda

extern "C" __attribute__((visibility("default"))) void ballast_faulty_arm(const char* fault) {
  using ballast::device::cuda::state;
  const std::lock_guard<std::mutex> lock(state().mu);
  state().fault = ballast::device::cuda::Parsed(fault);
  state().calls.clear();
}

extern "C" __attribute__((visibility("default"))) const ballast::device::cuda::Table*
ballast_cuda_table() {
  namespace cuda = ballast::device::cuda;
  static const cuda::Table* const faulty = [] {
    auto* const table = new cuda::Table(cuda::Real());
    table->stream_create = cuda::StreamCreate;
    table->stream_destroy = cuda::StreamDestroy;
    table->stream_wait = cuda::StreamWait;
    table->events.record = cuda::EventRecord;
    table->events.synchronize = cuda::EventSynchronize;
    table->copy = cuda::Copy;
    table->pack = cuda::Pack;
    table->unpack = cuda::Unpack;
    const char* const fault = std::getenv("BALLAST_FAULT");
    if (fault != nullptr && *fault != 0) ballast_faulty_arm(fault);
    return table;
  }();
  return faulty;
}
