// Shared parts of the image file's tests. Comes from: the tests in this folder.
// Thread safety: thread-compatible.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "server/durability/images/image_file.h"

namespace ballast::server {

constexpr char kImagePath[] = "slots";

inline ImageOptions SmallImages() {
  return {.job = 77, .server = 2, .optimizer = 1, .formula_id = 5, .tile_elements = 64};
}

// A multi-chunk extent, one whose bytes fill no page, one of one array, and one of nothing.
inline std::vector<ImageShape> SmallShapes() {
  return {{.extent = 4, .elements = 12000, .array_count = 3},
          {.extent = 1, .elements = 333, .array_count = 3},
          {.extent = 9, .elements = 1024, .array_count = 1},
          {.extent = 7, .elements = 64, .array_count = 0}};
}

// Memory as Write and Read want it, enough for SmallShapes.
inline char* ImageBuffer() {
  static const Arena buffer = *Arena::Create(size_t{1} << 20);
  return buffer.data();
}

// The state of an extent at a version, followed by the bytes that ImageFile may read.
inline std::string State(const ImageShape& shape, uint64_t version, uint64_t attempt = 0) {
  std::mt19937_64 random((version * 1000 + shape.extent) * 1000 + attempt);
  std::string state(ImageFile::BufferBytes(shape), '\0');
  for (char& c : state) c = static_cast<char>(random());
  return state;
}

inline absl::Status WriteState(ImageFile* images, const ImageShape& shape, uint64_t version,
                               uint64_t attempt = 0) {
  const std::string state = State(shape, version, attempt);
  std::copy(state.begin(), state.end(), ImageBuffer());
  return images->Write(shape.extent, version, ImageBuffer());
}

// The payload of an image, or its error.
inline absl::StatusOr<std::string> ReadState(ImageFile* images, const ImageShape& shape,
                                             uint64_t version) {
  if (absl::Status status = images->Read(shape.extent, version, ImageBuffer()); !status.ok()) {
    return status;
  }
  return std::string(ImageBuffer(), ImageFile::PayloadBytes(shape));
}

inline std::string Payload(const ImageShape& shape, uint64_t version, uint64_t attempt = 0) {
  return State(shape, version, attempt).substr(0, ImageFile::PayloadBytes(shape));
}

}  // namespace ballast::server
