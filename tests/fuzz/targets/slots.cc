// Target slots: the image file of a job as a restarted server opens it, with headers whose
// checksums are right whatever stands in them. A header that is taken is written the same; an image
// is read or damaged; and a file that opens takes newer images and keeps them.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/bytes/crc32c.h"
#include "common/io/arena.h"
#include "server/durability/images/image_file.h"
#include "server/durability/images/image_format.h"
#include "server/durability/records/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/targets/pages.h"

namespace ballast::fuzz {
namespace {

using server::ImageFile;
using server::ImageShape;

constexpr char kPath[] = "slots";
constexpr size_t kHeaderBytes = 128;
constexpr size_t kCrcs = 96;  // docs/formats/images.md: where those of chunks begin
constexpr uint64_t kVersionMax = uint64_t{1} << 62;

server::ImageOptions Options() {
  return {.job = 77,
          .server = 2,
          .optimizer = 1,
          .formula_id = 5,
          .tile_elements = 64,
          .direct = false,
          .open_threads = 1};
}

// Each image is a page of header and a page of payload: pages 1 and 2, 3 and 4 of the first extent.
const std::vector<ImageShape>& Shapes() {
  static const std::vector<ImageShape> shapes = {{.extent = 4, .elements = 100, .array_count = 3},
                                                 {.extent = 1, .elements = 64, .array_count = 1}};
  return shapes;
}
constexpr size_t kImagePages = 2;
constexpr size_t kPlaces = 2;
size_t Pages() { return 1 + Shapes().size() * kPlaces * kImagePages; }
const ImageShape& ShapeAt(size_t page) {
  return Shapes()[std::min((page - 1) / (kPlaces * kImagePages), Shapes().size() - 1)];
}

char* Buffer() {
  static const Arena buffer = *Arena::Create(size_t{1} << 20);
  return buffer.data();
}

void SealPage(char* page) {
  server::StoreNumber(Crc32c(page, kPageBytes - 4), page + kPageBytes - 4);
}

// Forms the checksums that the items ask for.
void Seal(const std::vector<PageItem>& items, std::string* file) {
  for (const PageItem& item : items) {
    const size_t page = item.page % Pages();
    char* const at = file->data() + page * kPageBytes;
    if (item.bytes.compare(0, 4, "BALL") != 0) continue;
    if ((item.flags & PageItem::kSealHeader) != 0) SealPage(at);
    if (page == 0 || page + 1 == Pages() || (item.flags & PageItem::kSealPayload) == 0) continue;
    const auto header = server::DecodeImageHeader(ShapeAt(page), at);
    if (!header.ok() || header->chunk_crcs.size() != 1) continue;
    const uint64_t bytes = std::min<uint64_t>(ImageFile::PayloadBytes(header->shape), kPageBytes);
    server::StoreNumber(server::ImageChunkCrc(*header, 0, at + kPageBytes, bytes), at + kCrcs);
    SealPage(at);
  }
}

void CheckPages(const std::string& file) {
  std::string page(kPageBytes, '\0');
  if (const auto options = server::DecodeImageFilePage(file.data()); options.ok()) {
    server::EncodeImageFilePage(*options, page.data());
    BALLAST_CHECK(file.compare(0, kPageBytes, page) == 0);
  }
  for (size_t i = 1; i < Pages(); ++i) {
    const auto header = server::DecodeImageHeader(ShapeAt(i), file.data() + i * kPageBytes);
    if (!header.ok()) continue;
    BALLAST_CHECK(server::ImageHeaderBytes(header->shape) == kPageBytes);
    server::EncodeImageHeader(*header, page.data());
    BALLAST_CHECK(file.compare(i * kPageBytes, kPageBytes, page) == 0);
  }
}

absl::StatusOr<std::unique_ptr<ImageFile>> Open(MemoryDisk* disk) {
  auto images = ImageFile::Open(disk, kPath, Options(), Shapes());
  if (!images.ok()) {
    const absl::StatusCode code = images.status().code();
    BALLAST_CHECK(code == absl::StatusCode::kDataLoss ||
                  code == absl::StatusCode::kFailedPrecondition);
  }
  return images;
}

// The newest version of the extent that can be read; 0: none.
uint64_t Readable(ImageFile* images, const ImageShape& shape) {
  const std::vector<uint64_t> versions = images->Versions(shape.extent);
  BALLAST_CHECK(versions.size() <= kPlaces);
  BALLAST_CHECK(std::is_sorted(versions.rbegin(), versions.rend()));
  const uint64_t flushed = images->Flushed(shape.extent);
  BALLAST_CHECK(flushed == 0 ||
                std::find(versions.begin(), versions.end(), flushed) != versions.end());
  for (const uint64_t version : versions) {
    const absl::Status status = images->Read(shape.extent, version, Buffer());
    BALLAST_CHECK(status.ok() || absl::IsDataLoss(status));
    if (status.ok()) return version;
  }
  return 0;
}

// Writes an image newer than the existing ones, which must be found when the file is opened again.
void Continue(MemoryDisk* disk, std::unique_ptr<ImageFile> images) {
  std::vector<uint64_t> written;
  for (const ImageShape& shape : Shapes()) {
    const std::vector<uint64_t> versions = images->Versions(shape.extent);
    const uint64_t version = versions.empty() ? 1 : versions.front() + 1;
    if (version > kVersionMax || version == 0) return;
    std::memset(Buffer(), 7, ImageFile::BufferBytes(shape));
    if (!images->Write(shape.extent, version, Buffer()).ok()) return;
    written.push_back(version);
  }
  BALLAST_CHECK(images->Sync().ok());
  images.reset();
  const auto again = Open(disk);
  BALLAST_CHECK(again.ok());
  for (size_t i = 0; i < written.size(); ++i) {
    BALLAST_CHECK(Readable(again->get(), Shapes()[i]) == written[i]);
  }
}

class Slots : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override { return {Seed(1), Seed(2), Seed(5)}; }

  void Run(absl::string_view input) const override {
    const std::vector<PageItem> items = ParseItems(input);
    std::string file = FilesOf(items, 1, Pages())[0];
    Seal(items, &file);
    CheckPages(file);
    MemoryDisk disk;
    PutFile(&disk, kPath, file);
    auto images = Open(&disk);
    if (!images.ok()) return;
    for (const ImageShape& shape : Shapes()) Readable(images->get(), shape);
    Continue(&disk, *std::move(images));
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    return MutateItems(input, random);
  }

 private:
  // A file with images of so many versions, the newest two of which it keeps.
  static std::string Seed(uint64_t versions) {
    MemoryDisk disk;
    auto images = ImageFile::Create(&disk, kPath, Options(), Shapes());
    BALLAST_CHECK(images.ok());
    for (uint64_t version = 1; version <= versions; ++version) {
      for (const ImageShape& shape : Shapes()) {
        std::memset(Buffer(), static_cast<int>(version), ImageFile::BufferBytes(shape));
        std::memset(Buffer() + 8, 0, ImageFile::BufferBytes(shape) - 8);
        BALLAST_CHECK((*images)->Write(shape.extent, version, Buffer()).ok());
      }
      BALLAST_CHECK((*images)->Sync().ok());
    }
    images->reset();
    return JoinItems(ItemsOf(&disk, {kPath}, kHeaderBytes));
  }
};

}  // namespace

std::unique_ptr<FuzzTarget> SlotsTarget() { return std::make_unique<Slots>(); }

}  // namespace ballast::fuzz
