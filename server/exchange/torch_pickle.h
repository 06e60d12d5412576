// TorchPickle: writes the pickles of torch.save()'s files: numbers, texts, lists of fields and
// tensors, with the few names that torch.load(weights_only=True) takes.
// Comes from: TorchFile, UniversalFiles. Goes to: bytes. Protocol 2, no memo: each value is written
// where it is used. Source: Python's pickletools for the opcodes; torch/serialization.py for the
// form of a tensor.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast::server {

// Values are written one after the other; a container's values go between its Begin and its End.
class TorchPickle {
 public:
  TorchPickle();

  void None() { bytes_ += 'N'; }
  void Int(int64_t value);
  void Double(double value);
  void Text(absl::string_view text);

  // Keys and values in turn.
  void BeginDict() { bytes_ += "}("; }
  void EndDict() { bytes_ += 'u'; }
  void BeginList() { bytes_ += "]("; }
  void EndList() { bytes_ += 'e'; }
  // A torch.Size.
  void Size(const std::vector<int64_t>& shape);
  // A contiguous fp32 CPU tensor whose bytes are the file's record data/`record`.
  void Tensor(const std::vector<int64_t>& shape, uint32_t record);

  // The bytes. Nothing can be added afterwards.
  std::string Finish();

 private:
  void Global(absl::string_view module, absl::string_view name);
  void Tuple(const std::vector<int64_t>& values);

  std::string bytes_;
};

}  // namespace ballast::server
