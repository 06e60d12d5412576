#include "server/durability/slot_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"
#include "server/durability/bytes.h"
#include "server/durability/log_format.h"

namespace ballast::server {
namespace {

constexpr std::array<char, 8> kFileMagic = {'B', 'A', 'L', 'L', 'S', 'L', 'F', '\n'};
constexpr std::array<char, 8> kSlotMagic = {'B', 'A', 'L', 'L', 'S', 'L', 'T', '\n'};
constexpr uint32_t kSlotVersion = 2;
constexpr size_t kVersionAt = 8;
constexpr size_t kCrcBytes = 4;  // at the end of each header

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

enum SlotField : size_t {
  kSlotServer = 12,
  kSlotJob = 16,
  kSlotOffset = 24,
  kSlotStateVersion = 32,
  kSlotExtent = 40,
  kSlotElements = 44,
  kSlotArrays = 48,
  kSlotOptimizer = 52,
  kSlotFormula = 56,
  kSlotTileElements = 60,
  kSlotPayloadBytes = 64,
  kSlotChunkCount = 72,
  kSlotReserved = 76,
  kSlotSerial = 80,
  kSlotFlushedSerial = 88,
  kSlotCrcs = 96,
};

bool AllZero(const char* begin, const char* end) {
  return std::all_of(begin, end, [](char c) { return c == 0; });
}

void Seal(char* header, uint64_t bytes) {
  StoreNumber(Crc32c(header, bytes - kCrcBytes), header + bytes - kCrcBytes);
}

absl::Status CheckHeader(const char* header, uint64_t bytes, const std::array<char, 8>& magic) {
  if (std::memcmp(header, magic.data(), magic.size()) != 0) {
    return absl::DataLossError("no header begins here");
  }
  if (LoadNumber<uint32_t>(header + bytes - kCrcBytes) != Crc32c(header, bytes - kCrcBytes)) {
    return absl::DataLossError("the header's checksum does not match");
  }
  const uint32_t version = LoadNumber<uint32_t>(header + kVersionAt);
  if (version == kSlotVersion) return absl::OkStatus();
  if (version == 0) return absl::DataLossError("the header has no version");
  return absl::FailedPreconditionError(absl::StrCat("slot file of format version ", version,
                                                    "; this program reads version ", kSlotVersion,
                                                    "; use the program that wrote it"));
}

// Everything in front of the checksums.
void PutSlotFields(const SlotHeader& header, char* to) {
  std::memcpy(to, kSlotMagic.data(), kSlotMagic.size());
  StoreNumber(kSlotVersion, to + kVersionAt);
  StoreNumber(header.server, to + kSlotServer);
  StoreNumber(header.job, to + kSlotJob);
  StoreNumber(header.offset, to + kSlotOffset);
  StoreNumber(header.version, to + kSlotStateVersion);
  StoreNumber(header.shape.extent, to + kSlotExtent);
  StoreNumber(header.shape.elements, to + kSlotElements);
  StoreNumber(header.shape.array_count, to + kSlotArrays);
  StoreNumber(header.optimizer, to + kSlotOptimizer);
  StoreNumber(header.formula_id, to + kSlotFormula);
  StoreNumber(header.tile_elements, to + kSlotTileElements);
  StoreNumber(SlotFile::PayloadBytes(header.shape), to + kSlotPayloadBytes);
  StoreNumber(static_cast<uint32_t>(SlotChunks(header.shape)), to + kSlotChunkCount);
  StoreNumber(header.serial, to + kSlotSerial);
  StoreNumber(header.flushed_serial, to + kSlotFlushedSerial);
}

// Where a chunk's checksum starts from: CRC32C over the identity of the slot and the chunk's place.
uint32_t ChunkSeed(const SlotHeader& header, uint32_t index) {
  std::array<char, kSlotCrcs> identity = {};
  PutSlotFields(header, identity.data());
  StoreNumber(index, identity.data() + kSlotReserved);
  return Crc32c(identity.data(), identity.size());
}

}  // namespace

uint64_t SlotChunks(const SlotShape& shape) {
  return (SlotFile::PayloadBytes(shape) + kSlotChunkBytes - 1) / kSlotChunkBytes;
}

uint64_t SlotHeaderBytes(const SlotShape& shape) {
  return PaddedBytes(kSlotCrcs + SlotChunks(shape) * sizeof(uint32_t) + kCrcBytes);
}

void EncodeSlotFilePage(const SlotOptions& options, char* page) {
  std::memset(page, 0, kPageBytes);
  std::memcpy(page, kFileMagic.data(), kFileMagic.size());
  StoreNumber(kSlotVersion, page + kVersionAt);
  StoreNumber(options.server, page + kFileServer);
  StoreNumber(options.job, page + kFileJob);
  StoreNumber(options.optimizer, page + kFileOptimizer);
  StoreNumber(options.formula_id, page + kFileFormula);
  StoreNumber(options.tile_elements, page + kFileTileElements);
  if (options.places != kPlacesUsual) StoreNumber(options.places, page + kFilePlaces);
  Seal(page, kPageBytes);
}

absl::StatusOr<SlotOptions> DecodeSlotFilePage(const char* page) {
  BALLAST_RETURN_IF_ERROR(CheckHeader(page, kPageBytes, kFileMagic));
  if (!AllZero(page + kFileEnd, page + kPageBytes - kCrcBytes)) {
    return absl::DataLossError("the header is not one that this format has");
  }
  const auto places = LoadNumber<uint32_t>(page + kFilePlaces);
  if (places > 1) return absl::DataLossError("the header is not one that this format has");
  return SlotOptions{.job = LoadNumber<uint64_t>(page + kFileJob),
                     .server = LoadNumber<uint32_t>(page + kFileServer),
                     .optimizer = LoadNumber<uint32_t>(page + kFileOptimizer),
                     .formula_id = LoadNumber<uint32_t>(page + kFileFormula),
                     .tile_elements = LoadNumber<uint32_t>(page + kFileTileElements),
                     .places = places == 0 ? kPlacesUsual : places};
}

void EncodeSlotHeader(const SlotHeader& header, char* to) {
  BALLAST_CHECK(header.chunk_crcs.size() == SlotChunks(header.shape));
  const uint64_t bytes = SlotHeaderBytes(header.shape);
  std::memset(to, 0, bytes);
  PutSlotFields(header, to);
  char* at = to + kSlotCrcs;
  for (const uint32_t crc : header.chunk_crcs) {
    StoreNumber(crc, at);
    at += sizeof(crc);
  }
  Seal(to, bytes);
}

absl::StatusOr<SlotHeader> DecodeSlotHeader(const SlotShape& shape, const char* from) {
  const uint64_t bytes = SlotHeaderBytes(shape);
  BALLAST_RETURN_IF_ERROR(CheckHeader(from, bytes, kSlotMagic));
  SlotHeader header{.job = LoadNumber<uint64_t>(from + kSlotJob),
                    .server = LoadNumber<uint32_t>(from + kSlotServer),
                    .offset = LoadNumber<uint64_t>(from + kSlotOffset),
                    .version = LoadNumber<uint64_t>(from + kSlotStateVersion),
                    .serial = LoadNumber<uint64_t>(from + kSlotSerial),
                    .flushed_serial = LoadNumber<uint64_t>(from + kSlotFlushedSerial),
                    .shape = {.extent = LoadNumber<uint32_t>(from + kSlotExtent),
                              .elements = LoadNumber<uint32_t>(from + kSlotElements),
                              .array_count = LoadNumber<uint32_t>(from + kSlotArrays)},
                    .optimizer = LoadNumber<uint32_t>(from + kSlotOptimizer),
                    .formula_id = LoadNumber<uint32_t>(from + kSlotFormula),
                    .tile_elements = LoadNumber<uint32_t>(from + kSlotTileElements)};
  const uint64_t chunks = LoadNumber<uint32_t>(from + kSlotChunkCount);
  const uint64_t crcs_end = kSlotCrcs + chunks * sizeof(uint32_t);
  if (LoadNumber<uint32_t>(from + kSlotReserved) != 0 || crcs_end > bytes - kCrcBytes ||
      chunks != SlotChunks(header.shape) ||
      LoadNumber<uint64_t>(from + kSlotPayloadBytes) != SlotFile::PayloadBytes(header.shape) ||
      !AllZero(from + crcs_end, from + bytes - kCrcBytes)) {
    return absl::DataLossError("the slot header is not one that this format has");
  }
  header.chunk_crcs.resize(chunks);
  std::memcpy(header.chunk_crcs.data(), from + kSlotCrcs, chunks * sizeof(uint32_t));
  return header;
}

uint32_t SlotChunkCrc(const SlotHeader& header, uint32_t index, const char* chunk, uint64_t bytes) {
  return Crc32c(chunk, bytes, ChunkSeed(header, index));
}

uint32_t SlotChunkCrc(const SlotHeader& header, uint32_t index, uint32_t crc, uint64_t bytes) {
  return Crc32cJoin(ChunkSeed(header, index), crc, bytes);
}

}  // namespace ballast::server
