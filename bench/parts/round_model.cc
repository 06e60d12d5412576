// The model, the optimizer alone and the scalar reference; see round_model.h.
// Thread safety: one caller's thread; tiles are stepped by a pool.
#include "bench/parts/round_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/parts/harness.h"
#include "common/base/status_macros.h"
#include "server/optim/dispatch.h"
#include "server/optim/scalars.h"
#include "server/simd/isa.h"
#include "server/tier/dram_tier.h"

namespace ballast::bench {
namespace {

constexpr uint64_t kWidth = 1024;
// Sampled tensors are small enough for the scalar kernel, and include a matrix of several extents.
constexpr uint64_t kSmallElements = 65536;
constexpr size_t kAlignmentBytes = 64;

size_t AlignedBytes(uint64_t elements) {
  return (elements * 2 + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

void AddTensor(Model* model, const std::string& name, std::vector<int64_t> shape) {
  uint64_t elements = 1;
  for (const int64_t extent : shape) elements *= static_cast<uint64_t>(extent);
  client::Tensor tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  tensor.dtype = client::DType::kBF16;
  model->tensors.push_back(std::move(tensor));
  model->tensor_elements.push_back(elements);
  model->elements += elements;
}

void AddBlock(Model* model, uint64_t number) {
  constexpr auto kW = static_cast<int64_t>(kWidth);
  const std::string prefix = absl::StrCat("blocks.", number, ".");
  AddTensor(model, prefix + "ln1.weight", {kW});
  AddTensor(model, prefix + "ln1.bias", {kW});
  AddTensor(model, prefix + "qkv.weight", {3 * kW, kW});
  AddTensor(model, prefix + "qkv.bias", {3 * kW});
  AddTensor(model, prefix + "proj.weight", {kW, kW});
  AddTensor(model, prefix + "proj.bias", {kW});
  AddTensor(model, prefix + "ln2.weight", {kW});
  AddTensor(model, prefix + "ln2.bias", {kW});
  AddTensor(model, prefix + "mlp.up.weight", {4 * kW, kW});
  AddTensor(model, prefix + "mlp.up.bias", {4 * kW});
  AddTensor(model, prefix + "mlp.down.weight", {kW, 4 * kW});
  AddTensor(model, prefix + "mlp.down.bias", {kW});
}

// Finite bf16 values of both signs between about 2^-`low` and 2^-`low - 8`.
void FillRandom(char* data, size_t bytes, uint32_t low, uint64_t seed) {
  uint64_t state = seed;
  for (size_t i = 0; i + sizeof(uint16_t) <= bytes; i += sizeof(uint16_t)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const auto random = static_cast<uint32_t>(state >> 32);
    const uint32_t exponent = 127 - low - (random >> 16 & 7);
    const auto bits = static_cast<uint16_t>((random & 0x807F) | exponent << 7);
    std::memcpy(data + i, &bits, sizeof(bits));
  }
}

// Where every byte of an extent comes from, put together as the server's registers hold it.
void GatherExtent(const Layout& layout, const Model& model, uint32_t extent, char* to) {
  const Extent& info = layout.extents()[extent];
  for (uint32_t i = 0; i < info.run_count; ++i) {
    const Run& run = layout.runs()[info.first_run + i];
    const char* from = static_cast<const char*>(model.buffers[run.tensor].grad);
    std::memcpy(to + size_t{run.extent_offset} * 2, from + run.tensor_offset * 2,
                size_t{run.elements} * 2);
  }
}

template <typename T>
uint64_t DifferingBits(const std::vector<T>& expected, const T* actual) {
  uint64_t differing = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    differing += std::memcmp(&expected[i], &actual[i], sizeof(T)) != 0 ? 1 : 0;
  }
  return differing;
}

// An AdamW job has three arrays per parameter.
constexpr uint32_t kArrays = 3;

optim::Scalars ScalarsOf(uint64_t step) {
  return optim::MakeScalars(OptimizerKind::kAdamW, Options{0, 0}, kHyper, step);
}

}  // namespace

absl::StatusOr<Model> Model::Describe(uint64_t parameters) {
  Model model;
  Model block;
  AddBlock(&block, 0);
  const uint64_t blocks = parameters / block.elements;
  const uint64_t rest = parameters - blocks * block.elements;
  AddTensor(&model, "embedding.weight",
            {static_cast<int64_t>(rest / kWidth + 1), static_cast<int64_t>(kWidth)});
  for (uint64_t i = 0; i < blocks; ++i) AddBlock(&model, i);

  std::vector<LayoutTensor> layout;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    layout.push_back({model.tensor_elements[i], DType::kBF16, 0});
    const bool matrix =
        model.tensors[i].name == "blocks.0.qkv.weight" || i + 2 == model.tensors.size();
    if (matrix || model.tensor_elements[i] <= kSmallElements) {
      model.sampled.push_back(static_cast<uint32_t>(i));
    }
  }
  BALLAST_ASSIGN_OR_RETURN(model.layout, Layout::Build(layout, kTileElements, kExtentElements));
  return model;
}

absl::Status Model::Allocate(size_t gradient_bytes_max) {
  size_t bytes = 0;
  size_t largest = 0;
  for (const uint64_t count : tensor_elements) {
    bytes += AlignedBytes(count);
    largest = std::max(largest, AlignedBytes(count));
  }
  const size_t gradient_bytes = std::min(bytes, std::max(largest, gradient_bytes_max));
  BALLAST_ASSIGN_OR_RETURN(gradients, Arena::Create(gradient_bytes));
  BALLAST_ASSIGN_OR_RETURN(weights, Arena::Create(bytes));
  FillRandom(gradients.data(), gradient_bytes, 6, 0x9E3779B97F4A7C15);
  FillRandom(weights.data(), bytes, 3, 0xD1B54A32D192ED03);
  size_t offset = 0;
  size_t gradient_offset = 0;
  for (const uint64_t count : tensor_elements) {
    if (gradient_offset + AlignedBytes(count) > gradient_bytes) gradient_offset = 0;
    buffers.push_back({gradients.data() + gradient_offset, weights.data() + offset});
    offset += AlignedBytes(count);
    gradient_offset += AlignedBytes(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OptimizerOnly>> OptimizerOnly::Make(const Model& model,
                                                                   int threads) {
  BALLAST_ASSIGN_OR_RETURN(const simd::Isa isa, simd::ChooseIsa(""));
  server::ExtentStore store(server::MakeDramTier({kTileElements, kArrays}), &optim::Kernels(isa));
  std::vector<uint32_t> extents;
  for (uint32_t i = 0; i < model.layout.extents().size(); ++i) extents.push_back(i);
  BALLAST_RETURN_IF_ERROR(store.Add(model.layout, extents));
  std::unique_ptr<OptimizerOnly> out(new OptimizerOnly(model, std::move(store), threads));
  BALLAST_RETURN_IF_ERROR(out->MakeBuffers());
  for (const uint32_t extent : extents) {
    GatherExtent(model.layout, model, extent,
                 out->gradients_.data() + size_t{extent} * kExtentElements * 2);
    for (uint32_t tile = 0; tile < server::TileCount(model.layout, extent); ++tile) {
      out->tiles_.emplace_back(extent, tile);
    }
  }
  return out;
}

absl::Status OptimizerOnly::MakeBuffers() {
  const size_t bytes = layout_.extents().size() * kExtentElements * 2;
  BALLAST_ASSIGN_OR_RETURN(gradients_, Arena::Create(bytes));
  BALLAST_ASSIGN_OR_RETURN(weights_, Arena::Create(bytes));
  return absl::OkStatus();
}

double OptimizerOnly::Step(uint64_t number) {
  const optim::Scalars scalars = ScalarsOf(number);
  const std::vector<const optim::Scalars*> by_tensor(layout_.tensors().size(), &scalars);
  const auto start = std::chrono::steady_clock::now();
  pool_.Run(tiles_.size(), [&](size_t task) {
    const auto [extent, tile] = tiles_[task];
    const size_t offset = size_t{extent} * kExtentElements * 2;
    store_.StepTile(layout_, extent, tile,
                    {.grad = gradients_.data() + offset,
                     .grad_dtype = DType::kBF16,
                     .weight = weights_.data() + offset,
                     .scale = 1,
                     .scalars = &by_tensor});
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Reference::Reference(const Model& model, const KindJob& job)
    : job_(job), layout_(model.layout), tensor_count_(model.tensors.size()) {
  const optim::KernelTable& kernels = optim::Kernels(simd::Isa::kScalar);
  for (const uint32_t index : model.sampled) {
    Tensor tensor;
    tensor.index = index;
    tensor.grad = static_cast<const char*>(model.buffers[index].grad);
    const uint64_t elements = model.tensor_elements[index];
    tensor.arrays.assign(job_.Arrays(), std::vector<float>(elements));
    tensor.weight.resize(elements);
    optim::Upcast(kernels, DType::kBF16)(model.buffers[index].weight, tensor.arrays[0].data(),
                                         elements);
    tensors_.push_back(std::move(tensor));
  }
}

void Reference::Spoil(Model* model) const {
  for (const Tensor& tensor : tensors_) {
    std::memset(model->buffers[tensor.index].weight, 0xFF, tensor.weight.size() * sizeof(uint16_t));
  }
}

// `count` elements of the tensor from `begin` on.
optim::RunArgs Reference::RunOf(Tensor* tensor, uint64_t begin, uint64_t count) const {
  optim::RunArgs run = {.grad = tensor->grad + begin * sizeof(uint16_t),
                        .weight = tensor->weight.data() + begin,
                        .count = count,
                        .scale = optim::GradFactor(job_.kind, job_.options, 1),
                        .k = {}};
  for (size_t i = 0; i < tensor->arrays.size(); ++i) {
    run.state[i] = tensor->arrays[i].data() + begin;
  }
  return run;
}

// What LAMB's first pass finds in the tensor, tile by tile of each extent.
optim::TensorSquares Reference::SquaresOf(Tensor* tensor, const optim::Scalars& scalars) const {
  const auto first_pass = optim::LambSquares(optim::Kernels(simd::Isa::kScalar), DType::kBF16);
  std::vector<optim::TensorSquares> extents;
  for (const Run& run : layout_.runs()) {
    if (run.tensor != tensor->index) continue;
    extents.emplace_back();
    for (uint32_t done = 0; done < run.elements;) {
      const uint32_t tile_left = kTileElements - (run.extent_offset + done) % kTileElements;
      const uint32_t count = std::min(run.elements - done, tile_left);
      optim::RunArgs part = RunOf(tensor, run.tensor_offset + done, count);
      std::memcpy(part.k, scalars.value, scalars.count * sizeof(float));
      optim::AddTile(first_pass(part), &extents.back());
      done += count;
    }
  }
  return optim::SumExtents(extents);
}

void Reference::Step() {
  const optim::Scalars scalars = optim::MakeScalars(job_.kind, job_.options, job_.hyper, ++steps_);
  const optim::RunFn step = optim::KindStep(optim::Kernels(simd::Isa::kScalar), job_.kind,
                                            job_.Arrays(), DType::kBF16, DType::kBF16);
  for (Tensor& tensor : tensors_) {
    const bool two_passes = job_.row().passes == 2;
    const optim::Scalars k =
        two_passes
            ? optim::WithRatio(scalars, optim::TrustRatio(SquaresOf(&tensor, scalars), scalars))
            : scalars;
    optim::RunArgs run = RunOf(&tensor, 0, tensor.weight.size());
    std::memcpy(run.k, k.value, k.count * sizeof(float));
    step(run);
  }
}

uint64_t Reference::DifferingWeights(const Model& model) const {
  uint64_t differing = 0;
  for (const Tensor& tensor : tensors_) {
    differing += DifferingBits(tensor.weight,
                               static_cast<const uint16_t*>(model.buffers[tensor.index].weight));
  }
  return differing;
}

absl::StatusOr<uint64_t> Reference::DifferingState(client::Client* client) const {
  std::vector<client::StateBuffers> buffers(tensor_count_);
  std::vector<std::vector<std::vector<float>>> received(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    received[i] = tensors_[i].arrays;
    for (std::vector<float>& array : received[i]) {
      std::fill(array.begin(), array.end(), 0.0f);
      buffers[tensors_[i].index].arrays.push_back(array.data());
    }
  }
  std::vector<uint64_t> steps;
  BALLAST_RETURN_IF_ERROR(client->FetchState(buffers, &steps));
  uint64_t differing = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (size_t array = 0; array < received[i].size(); ++array) {
      differing += DifferingBits(tensors_[i].arrays[array], received[i][array].data());
    }
    differing += steps[tensors_[i].index] != steps_ ? 1 : 0;
  }
  return differing;
}

absl::StatusOr<std::unique_ptr<VerifiedJob>> VerifiedJob::Attach(client::JobOptions options,
                                                                 Model* model,
                                                                 const KindJob& kind) {
  options.tile_elements = kTileElements;
  options.extent_elements = kExtentElements;
  options.optimizer = kind.row().name;
  for (size_t i = 0; i < kind.options.size(); ++i) {
    options.optimizer_options[kind.row().options[i].name] = kind.options[i];
  }
  BALLAST_ASSIGN_OR_RETURN(auto client,
                           client::Client::Attach(options, model->tensors, model->buffers));
  return std::unique_ptr<VerifiedJob>(new VerifiedJob(model, kind, std::move(client)));
}

absl::StatusOr<TimedRound> VerifiedJob::Round() {
  Spoil();
  TimedRound round;
  const double start = Now();
  BALLAST_ASSIGN_OR_RETURN(round.report, client_->Step({hyper_}, model_->buffers));
  round.seconds = Now() - start;
  CheckRound();
  return round;
}

void VerifiedJob::CheckRound() {
  reference_.Step();
  CheckWeights();
}

absl::Status VerifiedJob::Verify() {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t state, reference_.DifferingState(client_.get()));
  differing_ += state;
  return client_->Leave();
}

}  // namespace ballast::bench
