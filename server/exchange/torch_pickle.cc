#include "server/exchange/torch_pickle.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes/little_endian.h"

namespace ballast::server {
namespace {

// Opcodes by their names in pickletools.
constexpr char kMark = '(';
constexpr char kTuple = 't';
constexpr char kReduce = 'R';
constexpr char kBinPersId = 'Q';
constexpr char kNewFalse = '\x89';
constexpr char kEmptyTuple = ')';

}  // namespace

TorchPickle::TorchPickle() : bytes_("\x80\x02") {}

void TorchPickle::Int(int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    return AppendLittleEndian(static_cast<uint32_t>(value), &bytes_);
  }
  bytes_ += "\x8a\x08";  // LONG1 of 8 bytes
  AppendLittleEndian(static_cast<uint64_t>(value), &bytes_);
}

void TorchPickle::Double(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bytes_ += 'G';  // the highest byte first
  for (int i = 7; i >= 0; --i) bytes_.push_back(static_cast<char>(bits >> (8 * i)));
}

void TorchPickle::Text(absl::string_view text) {
  bytes_ += 'X';
  AppendLittleEndian(static_cast<uint32_t>(text.size()), &bytes_);
  bytes_.append(text.data(), text.size());
}

void TorchPickle::Size(const std::vector<int64_t>& shape) {
  Global("torch", "Size");
  bytes_ += kMark;
  Tuple(shape);
  bytes_ += kTuple;
  bytes_ += kReduce;
}

void TorchPickle::Tensor(const std::vector<int64_t>& shape, uint32_t record) {
  std::vector<int64_t> strides(shape.size());
  int64_t elements = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = elements == 0 ? 1 : elements;
    elements *= shape[i];
  }
  Global("torch._utils", "_rebuild_tensor_v2");
  bytes_ += kMark;
  bytes_ += kMark;
  Text("storage");
  Global("torch", "FloatStorage");
  Text(absl::StrCat(record));
  Text("cpu");
  Int(elements);
  bytes_ += kTuple;
  bytes_ += kBinPersId;
  Int(0);  // The tensor begins with its storage.
  Tuple(shape);
  Tuple(strides);
  bytes_ += kNewFalse;  // requires_grad
  Global("collections", "OrderedDict");
  bytes_ += kEmptyTuple;
  bytes_ += kReduce;
  bytes_ += kTuple;
  bytes_ += kReduce;
}

std::string TorchPickle::Finish() {
  bytes_ += '.';
  return std::move(bytes_);
}

void TorchPickle::Global(absl::string_view module, absl::string_view name) {
  absl::StrAppend(&bytes_, "c", module, "\n", name, "\n");
}

void TorchPickle::Tuple(const std::vector<int64_t>& values) {
  bytes_ += kMark;
  for (const int64_t value : values) Int(value);
  bytes_ += kTuple;
}

}  // namespace ballast::server
