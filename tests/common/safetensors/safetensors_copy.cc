// safetensors_copy FROM TO: reads a safetensors file with our reader and writes it with our writer,
// for a test that asks the format's own library about both.
// Comes from: tests/python/test_safetensors.py. Goes to: the file TO, errors to standard error.
// Thread safety: one thread.
#include <cstdio>
#include <string>

#include "common/base/status_macros.h"
#include "common/safetensors/reader.h"
#include "common/safetensors/writer.h"

namespace ballast {
namespace {

absl::Status Copy(const std::string& from, const std::string& to) {
  BALLAST_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::Open(PosixFileSystem(), from));
  const SafetensorsHeader& header = reader->header();
  BALLAST_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(PosixFileSystem(), to, header.tensors, header.metadata));
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    std::string bytes(header.tensors[i].bytes(), '\0');
    BALLAST_RETURN_IF_ERROR(reader->ReadAt(i, 0, bytes.size(), bytes.data()));
    BALLAST_RETURN_IF_ERROR(writer->WriteAt(i, 0, {ConstBytes{bytes.data(), bytes.size()}}));
  }
  return writer->Finish();
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: safetensors_copy FROM TO\n");
    return 2;
  }
  const absl::Status status = ballast::Copy(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
