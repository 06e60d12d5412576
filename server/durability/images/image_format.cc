#include "server/durability/images/image_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/faults/planted.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {
namespace {

constexpr std::array<char, 8> kFileMagic = {'B', 'A', 'L', 'L', 'S', 'L', 'F', '\n'};
constexpr std::array<char, 8> kImageMagic = {'B', 'A', 'L', 'L', 'S', 'L', 'T', '\n'};
constexpr uint32_t kImageVersion = 2;
constexpr size_t kImageVersionAt = 8;
constexpr size_t kHeaderCrcBytes = 4;  // at the end of each header

enum FileField : size_t {
  kFileServer = 12,
  kFileJob = 16,
  kFileOptimizer = 24,
  kFileFormula = 28,
  kFileTileElements = 32,
  kFilePlaces = 36,  // 0 for two
  kFileEnd = 40,
};

constexpr uint32_t kPlacesUsual = 2;

enum ImageField : size_t {
  kImageServer = 12,
  kImageJob = 16,
  kImageOffset = 24,
  kImageStateVersion = 32,
  kImageExtent = 40,
  kImageElements = 44,
  kImageArrays = 48,
  kImageOptimizer = 52,
  kImageFormula = 56,
  kImageTileElements = 60,
  kImagePayloadBytes = 64,
  kImageChunkCount = 72,
  kImageReserved = 76,
  kImageSerial = 80,
  kImageFlushedSerial = 88,
  kImageCrcs = 96,
};

bool AllZero(const char* begin, const char* end) {
  return std::all_of(begin, end, [](char c) { return c == 0; });
}

void Seal(char* header, uint64_t bytes) {
  StoreNumber(Crc32c(header, bytes - kHeaderCrcBytes), header + bytes - kHeaderCrcBytes);
}

absl::Status CheckHeader(const char* header, uint64_t bytes, const std::array<char, 8>& magic) {
  if (std::memcmp(header, magic.data(), magic.size()) != 0) {
    return absl::DataLossError("no header begins here");
  }
  if (LoadNumber<uint32_t>(header + bytes - kHeaderCrcBytes) !=
      Crc32c(header, bytes - kHeaderCrcBytes)) {
    return absl::DataLossError("the header's checksum does not match");
  }
  const uint32_t version = LoadNumber<uint32_t>(header + kImageVersionAt);
  if (version == kImageVersion) return absl::OkStatus();
  if (version == 0) return absl::DataLossError("the header has no version");
  return absl::FailedPreconditionError(absl::StrCat("image file of format version ", version,
                                                    "; this program reads version ", kImageVersion,
                                                    "; use the program that wrote it"));
}

// Everything in front of the checksums.
void PutImageFields(const ImageHeader& header, char* to) {
  std::memcpy(to, kImageMagic.data(), kImageMagic.size());
  StoreNumber(kImageVersion, to + kImageVersionAt);
  StoreNumber(header.server, to + kImageServer);
  StoreNumber(header.job, to + kImageJob);
  StoreNumber(header.offset, to + kImageOffset);
  StoreNumber(header.version, to + kImageStateVersion);
  StoreNumber(header.shape.extent, to + kImageExtent);
  StoreNumber(header.shape.elements, to + kImageElements);
  StoreNumber(header.shape.array_count, to + kImageArrays);
  StoreNumber(header.optimizer, to + kImageOptimizer);
  StoreNumber(header.formula_id, to + kImageFormula);
  StoreNumber(header.tile_elements, to + kImageTileElements);
  StoreNumber(ImageFile::PayloadBytes(header.shape), to + kImagePayloadBytes);
  StoreNumber(static_cast<uint32_t>(ImageChunks(header.shape)), to + kImageChunkCount);
  StoreNumber(header.serial, to + kImageSerial);
  StoreNumber(header.flushed_serial, to + kImageFlushedSerial);
}

// Initial value of a chunk's checksum: CRC32C over the identity of the image and the chunk's place.
uint32_t ChunkSeed(const ImageHeader& header, uint32_t index) {
  std::array<char, kImageCrcs> identity = {};
  PutImageFields(header, identity.data());
  StoreNumber(index, identity.data() + kImageReserved);
  return Crc32c(identity.data(), identity.size());
}

}  // namespace

uint64_t ImageBytes(const ImageShape& shape) {
  return ImageHeaderBytes(shape) + ImageFile::BufferBytes(shape);
}

uint64_t ImageChunks(const ImageShape& shape) {
  return (ImageFile::PayloadBytes(shape) + kImageChunkBytes - 1) / kImageChunkBytes;
}

uint64_t ImageHeaderBytes(const ImageShape& shape) {
  return PaddedBytes(kImageCrcs + ImageChunks(shape) * sizeof(uint32_t) + kHeaderCrcBytes);
}

void EncodeImageFilePage(const ImageOptions& options, char* page) {
  std::memset(page, 0, kPageBytes);
  std::memcpy(page, kFileMagic.data(), kFileMagic.size());
  StoreNumber(kImageVersion, page + kImageVersionAt);
  StoreNumber(options.server, page + kFileServer);
  StoreNumber(options.job, page + kFileJob);
  StoreNumber(options.optimizer, page + kFileOptimizer);
  StoreNumber(options.formula_id, page + kFileFormula);
  StoreNumber(options.tile_elements, page + kFileTileElements);
  if (options.places != kPlacesUsual) StoreNumber(options.places, page + kFilePlaces);
  Seal(page, kPageBytes);
}

absl::StatusOr<ImageOptions> DecodeImageFilePage(const char* page) {
  BALLAST_RETURN_IF_ERROR(CheckHeader(page, kPageBytes, kFileMagic));
  if (!AllZero(page + kFileEnd, page + kPageBytes - kHeaderCrcBytes)) {
    return absl::DataLossError("the header is not one that this format has");
  }
  const auto places = LoadNumber<uint32_t>(page + kFilePlaces);
  if (places > 1) return absl::DataLossError("the header is not one that this format has");
  return ImageOptions{.job = LoadNumber<uint64_t>(page + kFileJob),
                      .server = LoadNumber<uint32_t>(page + kFileServer),
                      .optimizer = LoadNumber<uint32_t>(page + kFileOptimizer),
                      .formula_id = LoadNumber<uint32_t>(page + kFileFormula),
                      .tile_elements = LoadNumber<uint32_t>(page + kFileTileElements),
                      .places = places == 0 ? kPlacesUsual : places};
}

void EncodeImageHeader(const ImageHeader& header, char* to) {
  BALLAST_CHECK(header.chunk_crcs.size() == ImageChunks(header.shape));
  const uint64_t bytes = ImageHeaderBytes(header.shape);
  std::memset(to, 0, bytes);
  PutImageFields(header, to);
  char* at = to + kImageCrcs;
  for (const uint32_t crc : header.chunk_crcs) {
    StoreNumber(crc, at);
    at += sizeof(crc);
  }
  Seal(to, bytes);
}

absl::StatusOr<ImageHeader> DecodeImageHeader(const ImageShape& shape, const char* from) {
  const uint64_t bytes = ImageHeaderBytes(shape);
  BALLAST_RETURN_IF_ERROR(CheckHeader(from, bytes, kImageMagic));
  ImageHeader header{.job = LoadNumber<uint64_t>(from + kImageJob),
                     .server = LoadNumber<uint32_t>(from + kImageServer),
                     .offset = LoadNumber<uint64_t>(from + kImageOffset),
                     .version = LoadNumber<uint64_t>(from + kImageStateVersion),
                     .serial = LoadNumber<uint64_t>(from + kImageSerial),
                     .flushed_serial = LoadNumber<uint64_t>(from + kImageFlushedSerial),
                     .shape = {.extent = LoadNumber<uint32_t>(from + kImageExtent),
                               .elements = LoadNumber<uint32_t>(from + kImageElements),
                               .array_count = LoadNumber<uint32_t>(from + kImageArrays)},
                     .optimizer = LoadNumber<uint32_t>(from + kImageOptimizer),
                     .formula_id = LoadNumber<uint32_t>(from + kImageFormula),
                     .tile_elements = LoadNumber<uint32_t>(from + kImageTileElements)};
  const uint64_t chunks = LoadNumber<uint32_t>(from + kImageChunkCount);
  const uint64_t crcs_end = kImageCrcs + chunks * sizeof(uint32_t);
  const bool reserved = LoadNumber<uint32_t>(from + kImageReserved) != 0 && !BALLAST_PLANTED;
  if (reserved || crcs_end > bytes - kHeaderCrcBytes || chunks != ImageChunks(header.shape) ||
      LoadNumber<uint64_t>(from + kImagePayloadBytes) != ImageFile::PayloadBytes(header.shape) ||
      !AllZero(from + crcs_end, from + bytes - kHeaderCrcBytes)) {
    return absl::DataLossError("the image header is not one that this format has");
  }
  header.chunk_crcs.resize(chunks);
  if (chunks > 0) {  // memcpy takes no null pointer, not even for no bytes.
    std::memcpy(header.chunk_crcs.data(), from + kImageCrcs, chunks * sizeof(uint32_t));
  }
  return header;
}

uint32_t ImageChunkCrc(const ImageHeader& header, uint32_t index, const char* chunk,
                       uint64_t bytes) {
  return Crc32c(chunk, bytes, ChunkSeed(header, index));
}

uint32_t ImageChunkCrc(const ImageHeader& header, uint32_t index, uint32_t crc, uint64_t bytes) {
  return Crc32cJoin(ChunkSeed(header, index), crc, bytes);
}

}  // namespace ballast::server
