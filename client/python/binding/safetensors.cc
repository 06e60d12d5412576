#include "client/python/binding/safetensors.h"

#include <nanobind/stl/map.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/python/binding/convert.h"
#include "common/base/reason.h"
#include "common/io/file.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

constexpr size_t kIndexBytesMax = 100'000'000;

// The next step for a script's author, whatever went wrong.
[[noreturn]] void RaiseBadFile(const absl::Status& status) {
  Raise(ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                      std::string(status.message())));
}

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) {
    absl::StatusOr<std::unique_ptr<SafetensorsReader>> reader =
        SafetensorsReader::Open(PosixFileSystem(), path);
    if (!reader.ok()) RaiseBadFile(reader.status());
    reader_ = *std::move(reader);
  }

  // (name, dtype, shape) each.
  nb::list Tensors() const {
    nb::list tensors;
    for (const TensorEntry& entry : reader_->header().tensors) {
      tensors.append(nb::make_tuple(entry.name, SafeDTypeName(entry.dtype), entry.shape));
    }
    return tensors;
  }
  std::map<std::string, std::string> Metadata() const { return reader_->header().metadata; }

  // All of a tensor, to memory of its bytes.
  void Read(size_t tensor, uintptr_t to) const {
    const std::vector<TensorEntry>& tensors = reader_->header().tensors;
    absl::Status status;
    if (tensor >= tensors.size()) {
      RaiseBadFile(absl::InvalidArgumentError(absl::StrCat("there is no tensor ", tensor)));
    }
    {
      nb::gil_scoped_release release;
      // The address is one of a tensor that Python has made.
      status = reader_->ReadAt(tensor, 0, tensors[tensor].bytes(), reinterpret_cast<void*>(to));
    }
    if (!status.ok()) RaiseBadFile(status);
  }

 private:
  std::unique_ptr<SafetensorsReader> reader_;
};

// Names of the files that an index lists.
std::vector<std::string> ReadIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(PosixFileSystem(), path, kIndexBytesMax);
  if (!text.ok()) RaiseBadFile(text.status());
  const absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(*text);
  if (!index.ok()) {
    RaiseBadFile(absl::InvalidArgumentError(absl::StrCat(path, ": ", index.status().message())));
  }
  std::vector<std::string> files;
  for (const auto& [tensor, file] : index->files) files.push_back(file);
  return files;
}

}  // namespace

void DefineSafetensors(nb::module_& module) {
  nb::class_<SafetensorsFile>(module, "SafetensorsFile")
      .def(nb::init<const std::string&>(), nb::arg("path"))
      .def_prop_ro("tensors", &SafetensorsFile::Tensors)
      .def_prop_ro("metadata", &SafetensorsFile::Metadata)
      .def("read", &SafetensorsFile::Read, nb::arg("tensor"), nb::arg("to"));
  module.def("read_safetensors_index", &ReadIndex, nb::arg("path"));
}

}  // namespace ballast::python
