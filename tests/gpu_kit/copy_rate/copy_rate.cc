// How fast the client's pipeline moves frames between its pinned buffers and tensors on a GPU,
// next to bare copies of the same bytes between the same slab and the same memory. Up are
// gradients, down are weights. Each result is verified; one line of JSON for each plan, as it
// comes.
// Comes from: gpu_kit/copies.py. Goes to: stdout.
// usage: copy_rate LIBRARY BYTES REPEATS LOSE DTYPE:FRAME:BUFFERS:AHEAD:PIECE...
//   LIBRARY: the CUDA part. BYTES: of each tensor, whole frames. LOSE 1: one frame of weights is
//   lost, which has to be noticed. DTYPE: 1 fp32, 2 bf16. FRAME, PIECE: bytes; a frame is packed of
//   pieces. AHEAD: how many frames are begun before the first is awaited.
// Exit code: 0; 1 where a call failed; 2 for wrong usage. Thread safety: one thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/device/cuda_device.h"
#include "client/device/pipeline.h"
#include "common/base/status_macros.h"

namespace ballast::device {
namespace {

struct Plan {
  DType dtype = DType::kF32;
  size_t frame_bytes = 0, buffers = 0, ahead = 0, piece_bytes = 0;
};

// Which of the two tensors move.
struct Ways {
  bool up = false, down = false;
};

class Rig {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> Create(
      const std::shared_ptr<const CudaLibrary>& library, const Plan& plan, size_t bytes, bool lose);

  // All bytes through the pipeline. checked: frames are filled and compared, too.
  absl::Status Ours(Ways ways, bool checked);
  // The same bytes by copies alone, between slab and tensors, of `chunk` bytes; a stream each way.
  absl::Status Bare(Ways ways, size_t chunk);
  // Fills the weights, makes them the gradients, and moves both both ways.
  absl::Status Verify();

  size_t LongChunk() const { return plan_.buffers * plan_.frame_bytes / 2; }
  // Frames that came with other bytes.
  size_t differing() const { return differing_; }

 private:
  Rig(std::unique_ptr<CudaDevice> device, const Plan& plan, size_t bytes, bool lose)
      : plan_(plan), frames_(bytes / plan.frame_bytes), lose_(lose), device_(std::move(device)) {}
  absl::Status Make();
  absl::Status Push(size_t frame);
  absl::Status TakePushed(size_t frame, bool checked);
  absl::Status Pull(size_t frame, bool checked);
  absl::Status Finish(Stream stream);
  Packing PackingOf(std::byte* tensor, size_t frame);
  const std::byte* Pattern(size_t frame) const {
    return pattern_.data() + (frame * 64) % plan_.frame_bytes;
  }
  size_t bytes() const { return frames_ * plan_.frame_bytes; }

  const Plan plan_;
  const size_t frames_;
  const bool lose_;
  std::unique_ptr<CudaDevice> device_;  // outlives the pipeline
  std::unique_ptr<Pipeline> pipeline_;
  std::byte *slab_ = nullptr, *gradients_ = nullptr, *weights_ = nullptr;
  Stream framework_{}, up_{}, down_{};
  Event ready_{}, ended_{};
  std::vector<Piece> pieces_;
  std::vector<std::byte> pattern_;
  std::deque<size_t> begun_;
  size_t differing_ = 0;
};

absl::StatusOr<std::unique_ptr<Rig>> Rig::Create(const std::shared_ptr<const CudaLibrary>& library,
                                                 const Plan& plan, size_t bytes, bool lose) {
  BALLAST_ASSIGN_OR_RETURN(auto device, CudaDevice::Create(library, 0, nullptr));
  std::unique_ptr<Rig> rig(new Rig(std::move(device), plan, bytes, lose));
  BALLAST_RETURN_IF_ERROR(rig->Make());
  return rig;
}

absl::Status Rig::Make() {
  BALLAST_ASSIGN_OR_RETURN(pipeline_,
                           Pipeline::Create(device_.get(), {plan_.buffers, plan_.frame_bytes}));
  // The buffers lie one after the other: the first one's bytes begin the slab.
  for (size_t i = 0; i < plan_.buffers; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const Pipeline::TakenBuffer room, pipeline_->Take());
    slab_ = i == 0 ? room.bytes.data() : std::min(slab_, room.bytes.data());
  }
  for (size_t i = 0; i < plan_.buffers; ++i) BALLAST_RETURN_IF_ERROR(pipeline_->Release(i));
  for (std::byte** tensor : {&gradients_, &weights_}) {
    BALLAST_ASSIGN_OR_RETURN(void* memory, device_->Allocate(MemoryKind::kDevice, bytes()));
    *tensor = static_cast<std::byte*>(memory);
  }
  for (Stream* stream : {&framework_, &up_, &down_}) {
    BALLAST_ASSIGN_OR_RETURN(*stream, device_->NewStream());
  }
  BALLAST_ASSIGN_OR_RETURN(ready_, device_->NewEvent());
  BALLAST_ASSIGN_OR_RETURN(ended_, device_->NewEvent());
  // Finite numbers of either type, each frame with another beginning.
  pattern_.resize(2 * plan_.frame_bytes);
  for (size_t i = 0; i + 2 <= pattern_.size(); i += 2) {
    const auto bits = static_cast<uint16_t>(0x2000 + (i * 2654435761u >> 7) % 0x4000);
    std::memcpy(pattern_.data() + i, &bits, sizeof bits);
  }
  return absl::OkStatus();
}

Packing Rig::PackingOf(std::byte* tensor, size_t frame) {
  pieces_.clear();
  std::byte* const first = tensor + frame * plan_.frame_bytes;
  for (size_t at = 0; at < plan_.frame_bytes; at += plan_.piece_bytes) {
    const size_t piece = std::min(plan_.piece_bytes, plan_.frame_bytes - at);
    pieces_.push_back({first + at, piece / DTypeBytes(plan_.dtype)});
  }
  return {pieces_, plan_.dtype, plan_.dtype, nullptr};
}

absl::Status Rig::Push(size_t frame) {
  BALLAST_ASSIGN_OR_RETURN(const size_t buffer,
                           pipeline_->Push(ready_, PackingOf(gradients_, frame)));
  begun_.push_back(buffer);
  return absl::OkStatus();
}

absl::Status Rig::TakePushed(size_t frame, bool checked) {
  const size_t buffer = begun_.front();
  begun_.pop_front();
  BALLAST_ASSIGN_OR_RETURN(const auto got, pipeline_->Pushed(buffer));
  if (checked && std::memcmp(got.data(), Pattern(frame), got.size()) != 0) ++differing_;
  return pipeline_->Release(buffer);
}

absl::Status Rig::Pull(size_t frame, bool checked) {
  BALLAST_ASSIGN_OR_RETURN(const Pipeline::TakenBuffer room, pipeline_->Take());
  if (checked) std::memcpy(room.bytes.data(), Pattern(frame), plan_.frame_bytes);
  if (lose_ && frame == frames_ / 2) return pipeline_->Release(room.buffer);
  return pipeline_->Pull(room.buffer, ready_, PackingOf(weights_, frame));
}

absl::Status Rig::Finish(Stream stream) {
  BALLAST_RETURN_IF_ERROR(device_->Record(stream, ended_));
  return device_->Synchronize(ended_);
}

absl::Status Rig::Ours(Ways ways, bool checked) {
  const size_t ups = ways.up ? frames_ : 0, downs = ways.down ? frames_ : 0;
  size_t begun = 0, pushed = 0, pulled = 0;
  BALLAST_RETURN_IF_ERROR(device_->Record(framework_, ready_));
  while (pushed < ups || pulled < downs) {
    while (begun < ups && begun_.size() < plan_.ahead) BALLAST_RETURN_IF_ERROR(Push(begun++));
    if (pulled < downs) BALLAST_RETURN_IF_ERROR(Pull(pulled++, checked));
    if (pushed < ups) BALLAST_RETURN_IF_ERROR(TakePushed(pushed++, checked));
  }
  BALLAST_RETURN_IF_ERROR(pipeline_->HandOver(framework_));
  return Finish(framework_);
}

absl::Status Rig::Bare(Ways ways, size_t chunk) {
  for (size_t at = 0; at < bytes(); at += chunk) {
    const size_t count = std::min(chunk, bytes() - at);
    std::byte* const here = slab_ + at % LongChunk();  // one half for each way
    if (ways.up) BALLAST_RETURN_IF_ERROR(device_->Copy(up_, here, gradients_ + at, count));
    if (ways.down) {
      BALLAST_RETURN_IF_ERROR(device_->Copy(down_, weights_ + at, here + LongChunk(), count));
    }
  }
  BALLAST_RETURN_IF_ERROR(Finish(up_));
  return Finish(down_);
}

// Weights that came alone go up as gradients while weights come once more, and so do those.
absl::Status Rig::Verify() {
  for (const bool up : {false, true}) {
    BALLAST_RETURN_IF_ERROR(Ours({.up = up, .down = true}, true));
    BALLAST_RETURN_IF_ERROR(device_->Copy(framework_, gradients_, weights_, bytes()));
    BALLAST_RETURN_IF_ERROR(Finish(framework_));
  }
  return Ours({.up = true}, true);
}

// --- Measuring ----------------------------------------------------------------------------------

using Call = std::function<absl::Status()>;

// Medians of seconds of each call, which alternate.
absl::StatusOr<std::vector<double>> Medians(const std::vector<Call>& calls, int repeats) {
  std::vector<std::vector<double>> taken(calls.size());
  for (int repeat = -1; repeat < repeats; ++repeat) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto began = std::chrono::steady_clock::now();
      BALLAST_RETURN_IF_ERROR(calls[i]());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      if (repeat >= 0) taken[i].push_back(took.count());  // The first one warms up.
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of : taken) {
    std::nth_element(of.begin(), of.begin() + of.size() / 2, of.end());
    medians.push_back(of[of.size() / 2]);
  }
  return medians;
}

absl::Status Measure(Rig& rig, const Plan& plan, size_t bytes, int repeats) {
  constexpr Ways kWays[] = {{true, false}, {false, true}, {true, true}};
  constexpr const char* kNames[] = {"up", "down", "both"};
  BALLAST_RETURN_IF_ERROR(rig.Verify());
  std::string rows;
  for (int i = 0; i < 3; ++i) {
    const Ways ways = kWays[i];
    const size_t frame = plan.frame_bytes;
    BALLAST_ASSIGN_OR_RETURN(
        const std::vector<double> seconds,
        Medians({[&] { return rig.Bare(ways, rig.LongChunk()); },
                 [&] { return rig.Ours(ways, false); }, [&] { return rig.Bare(ways, frame); }},
                repeats));
    const double gigabytes = static_cast<double>(bytes) * (i == 2 ? 2 : 1) / 1e9;
    char row[256];
    std::snprintf(row, sizeof row,
                  "%s\"%s\": {\"bare_gb_s\": %.3f, \"ours_gb_s\": %.3f, \"frames_gb_s\": %.3f}",
                  i == 0 ? "" : ", ", kNames[i], gigabytes / seconds[0], gigabytes / seconds[1],
                  gigabytes / seconds[2]);
    rows += row;
  }
  BALLAST_RETURN_IF_ERROR(rig.Verify());
  std::printf("{\"dtype\": \"%s\", \"frame\": %zu, \"buffers\": %zu, \"ahead\": %zu, ",
              DTypeName(plan.dtype), plan.frame_bytes, plan.buffers, plan.ahead);
  std::printf("\"piece\": %zu, \"differing\": %zu, %s}\n", plan.piece_bytes, rig.differing(),
              rows.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

bool Parse(const char* text, Plan* plan) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int dtype = 0;
  if (parts.size() != 5 || !absl::SimpleAtoi(parts[0], &dtype) || dtype < 1 || dtype > 3) {
    return false;
  }
  plan->dtype = static_cast<DType>(dtype);
  size_t* const fields[] = {&plan->frame_bytes, &plan->buffers, &plan->ahead, &plan->piece_bytes};
  for (int i = 0; i < 4; ++i) {
    if (!absl::SimpleAtoi(parts[i + 1], fields[i]) || *fields[i] == 0) return false;
  }
  return plan->ahead < plan->buffers;
}

absl::Status Run(const char* library, size_t bytes, int repeats, bool lose,
                 const std::vector<Plan>& plans) {
  BALLAST_ASSIGN_OR_RETURN(const auto opened, CudaLibrary::Open(library));
  BALLAST_RETURN_IF_ERROR(opened->DeviceCount().status());
  for (const Plan& plan : plans) {
    const size_t whole = bytes / plan.frame_bytes * plan.frame_bytes;
    BALLAST_ASSIGN_OR_RETURN(const auto rig, Rig::Create(opened, plan, whole, lose));
    BALLAST_RETURN_IF_ERROR(Measure(*rig, plan, whole, repeats));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ballast::device

int main(int argc, char** argv) {
  size_t bytes = 0;
  int repeats = 0;
  std::vector<ballast::device::Plan> plans(argc > 5 ? argc - 5 : 0);
  bool good = argc > 5 && absl::SimpleAtoi(argv[2], &bytes) &&
              absl::SimpleAtoi(argv[3], &repeats) && repeats > 0;
  for (int i = 5; i < argc; ++i) good = good && ballast::device::Parse(argv[i], &plans[i - 5]);
  if (!good) {
    std::fprintf(stderr, "usage: copy_rate LIBRARY BYTES REPEATS LOSE %s\n",
                 "DTYPE:FRAME:BUFFERS:AHEAD:PIECE...");
    return 2;
  }
  const bool lose = std::string(argv[4]) == "1";
  const absl::Status status = ballast::device::Run(argv[1], bytes, repeats, lose, plans);
  if (!status.ok()) std::fprintf(stderr, "copy_rate: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
