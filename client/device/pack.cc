#include "client/device/pack.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/device/elements.h"

namespace ballast::device {
namespace {

template <class From, class To>
void Convert(const void* from, void* to, size_t count, float scale) {
  const auto* x = static_cast<const typename From::T*>(from);
  auto* y = static_cast<typename To::T*>(to);
  if (scale == 1.0f) {
    for (size_t i = 0; i < count; ++i) y[i] = Cast<From, To>(x[i]);
  } else {
    for (size_t i = 0; i < count; ++i) y[i] = Scale<From, To>(x[i], scale);
  }
}

using ConvertFn = void (*)(const void* from, void* to, size_t count, float scale);

// By DType's value - 1: from, then to.
constexpr ConvertFn kConvert[3][3] = {{Convert<F32, F32>, Convert<F32, BF16>, Convert<F32, F16>},
                                      {Convert<BF16, F32>, Convert<BF16, BF16>, Convert<BF16, F16>},
                                      {Convert<F16, F32>, Convert<F16, BF16>, Convert<F16, F16>}};

void ConvertRun(DType from_dtype, const void* from, DType to_dtype, void* to, size_t count,
                float scale) {
  if (count == 0) return;
  if (from_dtype == to_dtype && scale == 1.0f) {
    std::memcpy(to, from, count * DTypeBytes(to_dtype));
    return;
  }
  kConvert[static_cast<size_t>(from_dtype) - 1][static_cast<size_t>(to_dtype) - 1](from, to, count,
                                                                                   scale);
}

template <class G>
void MeasureTiles(const Measurement& measurement) {
  const auto* x = static_cast<const typename G::T*>(measurement.data);
  TileFacts* facts = measurement.facts;
  for (size_t begin = 0; begin < measurement.count; begin += measurement.tile_elements) {
    const size_t count = std::min(measurement.tile_elements, measurement.count - begin);
    const NonfiniteElements found = FindNonfinite<G>(x + begin, count);
    *facts++ = {Sumsq<G>(x + begin, count), static_cast<uint32_t>(found.count),
                found.count > 0 ? begin + found.first : UINT64_MAX};
  }
}

}  // namespace

absl::Status CheckPacking(const Packing& packing) {
  if (DTypeBytes(packing.tensor_dtype) > 0 && DTypeBytes(packing.packed_dtype) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot pack ", DTypeName(packing.tensor_dtype),
                                                 " as ", DTypeName(packing.packed_dtype),
                                                 "; name fp32, bf16 or fp16 for both"));
}

absl::Status CheckMeasurement(const Measurement& measurement) {
  if (DTypeBytes(measurement.dtype) > 0 && measurement.tile_elements > 0 &&
      measurement.tile_elements % kNormLanes == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot measure ", DTypeName(measurement.dtype), " in tiles of ", measurement.tile_elements,
      " elements; name fp32, bf16 or fp16, and a multiple of ", kNormLanes));
}

size_t ElementCount(const Packing& packing) {
  size_t count = 0;
  for (const Piece& piece : packing.pieces) count += piece.count;
  return count;
}

void PackOnHost(const Packing& packing) {
  auto* packed = static_cast<std::byte*>(packing.packed);
  for (const Piece& piece : packing.pieces) {
    ConvertRun(packing.tensor_dtype, piece.data, packing.packed_dtype, packed, piece.count,
               packing.scale);
    packed += piece.count * DTypeBytes(packing.packed_dtype);
  }
}

void UnpackOnHost(const Packing& packing) {
  const auto* packed = static_cast<const std::byte*>(packing.packed);
  for (const Piece& piece : packing.pieces) {
    ConvertRun(packing.packed_dtype, packed, packing.tensor_dtype, piece.data, piece.count, 1.0f);
    packed += piece.count * DTypeBytes(packing.packed_dtype);
  }
}

void MeasureOnHost(const Measurement& measurement) {
  switch (measurement.dtype) {
    case DType::kF32:
      return MeasureTiles<F32>(measurement);
    case DType::kBF16:
      return MeasureTiles<BF16>(measurement);
    default:
      return MeasureTiles<F16>(measurement);
  }
}

}  // namespace ballast::device
