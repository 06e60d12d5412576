#include "tests/fakes/nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace fake_nccl {
namespace {

// Also of a process that its parent has not waited for.
bool HasEnded(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::ostringstream text;
  text << file.rdbuf();
  const size_t name_end = text.str().rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.str().size()) return true;
  const char state = text.str()[name_end + 2];
  return state == 'Z' || state == 'X';
}

}  // namespace

Segment* Segment::Map(const std::string& path, int world) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  const size_t bytes =
      sizeof(Head) + sizeof(Row) * kRanksMax + kSlotBytes * static_cast<size_t>(world);
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  return new Segment(path, world, static_cast<char*>(memory), bytes);
}

Segment::Segment(std::string path, int world, char* memory, size_t bytes)
    : path_(std::move(path)),
      world_(world),
      memory_(memory),
      bytes_(bytes),
      head_(reinterpret_cast<Head*>(memory)),
      rows_(reinterpret_cast<Row*>(memory + sizeof(Head))),
      slots_(memory + sizeof(Head) + sizeof(Row) * kRanksMax) {}

Segment::~Segment() { munmap(memory_, bytes_); }

void Segment::Unlink() { unlink(path_.c_str()); }

bool Segment::AllHere() {
  if (head_->complete.load()) return true;
  for (int rank = 0; rank < world_; ++rank) {
    if (rows_[rank].process.load() <= 0) return false;
  }
  head_->complete.store(true);
  return true;
}

bool Segment::AllGiven(uint64_t count) {
  for (int rank = 0; rank < world_; ++rank) {
    if (rows_[rank].given.load() < count) return false;
  }
  return true;
}

bool Segment::AllDone(uint64_t count) {
  for (int rank = 0; rank < world_; ++rank) {
    if (rows_[rank].done.load() < count) return false;
  }
  return true;
}

bool Segment::OneIsGone() {
  for (int rank = 0; rank < world_; ++rank) {
    const int process = rows_[rank].process.load();
    if (process < 0 || (process > 0 && HasEnded(process))) return true;
  }
  return false;
}

}  // namespace fake_nccl
