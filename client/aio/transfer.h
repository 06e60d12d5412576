// Transfer: one read or write between memory and a range of a file, cut into parts that several
// threads begin. Whole pages of the file go past the page cache through an IoEngine; when the
// memory is not on a page, through Staging. The rest at both ends, less than a page each, goes
// through the page cache, which Linux keeps coherent with direct I/O of other pages. A file without
// direct I/O is read and written by the calling threads.
// Comes from: aio_handle.h. Goes to: common/io. Thread safety: RunPart may run on several threads
// at once; the rest is for one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/aio/staging.h"
#include "common/base/sync.h"
#include "common/io/file.h"
#include "common/io/io_engine.h"

namespace ballast {

// `bytes` bytes at `memory` and at `offset` of the file `path`. The caller owns the memory.
struct TransferRange {
  std::string path;  // for errors, too
  uint64_t offset = 0;
  char* memory = nullptr;
  uint64_t bytes = 0;
};

// Whether `file` has all bytes of a read. OUT_OF_RANGE, with both sizes, when the range passes its
// end; those of File::Size.
absl::Status CheckReadSize(File* file, const TransferRange& range);

class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  using Ended = std::function<void(std::shared_ptr<Transfer>, const absl::Status&)>;

  // kind: kRead or kWrite. parts >= 1. `ended` runs once, on any thread, when all parts have run
  // and nothing of them is under way, with this and the first error.
  Transfer(IoKind kind, TransferRange range, std::unique_ptr<File> file, int parts, Ended ended);
  ~Transfer();

  // Reserves the bytes that a write adds to the file, so that a full disk is found before the first
  // byte and blocks after the old end can be written in parallel. RESOURCE_EXHAUSTED when there is
  // no room; the file is then as it was, unless others took the room meanwhile. OK where the file
  // system cannot reserve.
  absl::Status Reserve() const;

  // Begins part `index` of the parts; each runs once. May wait for the disk.
  void RunPart(int index, IoEngine* engine, Staging* staging);

  // Ends the transfer with `status` in place of all its parts, none of which has run.
  void Fail(const absl::Status& status);

  // Reads the range again, through the page cache, and compares it with the memory. DATA_LOSS, with
  // the first byte that differs.
  absl::Status Validate() const;

 private:
  // Bytes of the file.
  struct Piece {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t bytes() const { return end - begin; }
  };
  // The whole pages of part `index`, or all of its bytes where the file has no direct I/O.
  Piece PartOf(int index) const;
  char* MemoryAt(uint64_t offset) const { return range_.memory + (offset - range_.offset); }

  // Through the file, before it returns.
  void RunPlain(const Piece& piece);
  // Whole pages from and to memory on a page.
  void RunDirect(const Piece& piece, IoEngine* engine);
  // Whole pages through `staging`.
  void RunStaged(const Piece& piece, IoEngine* engine, Staging* staging);
  void SubmitStaged(const Piece& piece, IoEngine* engine, Staging* staging, char* chunk);
  IoRequest RequestOf(const Piece& piece, char* memory) const;

  void Note(const absl::Status& status);
  // One part or request less.
  void Release();

  const IoKind kind_;
  const TransferRange range_;
  const std::unique_ptr<File> file_;
  const int parts_;
  const Ended ended_;
  Piece middle_;  // shared by the parts; the rest of the range is at most two edges
  std::atomic<uint64_t> open_;
  Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // the first error
};

}  // namespace ballast
