#include "tests/sim/tensors.h"

#include <algorithm>

#include "client/cpp/job/lent_memory.h"

namespace ballast::sim {

Tensors::Tensors(const Layout* layout, Kind kind) : layout_(layout), kind_(kind) {
  for (const LayoutTensor& tensor : layout->tensors()) {
    const size_t bytes = kind == Kind::kState ? sizeof(float) : DTypeBytes(tensor.dtype);
    tensors_.emplace_back(tensor.elements * bytes);
  }
}

size_t Tensors::ElementBytes(uint32_t extent) const {
  return kind_ == Kind::kState ? sizeof(float) : DTypeBytes(layout_->extents()[extent].dtype);
}

void Tensors::Put(uint32_t extent, const std::vector<char>& bytes) {
  auto from = bytes.begin();
  for (const client::TensorPiece& piece : client::PiecesOf(
           *layout_, extent, ElementBytes(extent), 0, static_cast<uint32_t>(bytes.size()))) {
    std::copy_n(from, piece.bytes,
                tensors_[piece.tensor].begin() + static_cast<ptrdiff_t>(piece.tensor_offset));
    from += static_cast<ptrdiff_t>(piece.bytes);
  }
}

std::vector<char> Tensors::Get(uint32_t extent) const {
  const size_t element_bytes = ElementBytes(extent);
  const size_t all = layout_->extents()[extent].elements * element_bytes;
  std::vector<char> bytes;
  for (const client::TensorPiece& piece :
       client::PiecesOf(*layout_, extent, element_bytes, 0, static_cast<uint32_t>(all))) {
    const auto from = tensors_[piece.tensor].begin() + static_cast<ptrdiff_t>(piece.tensor_offset);
    bytes.insert(bytes.end(), from, from + static_cast<ptrdiff_t>(piece.bytes));
  }
  return bytes;
}

std::vector<void*> Tensors::pointers() {
  std::vector<void*> pointers;
  for (std::vector<char>& tensor : tensors_) pointers.push_back(tensor.data());
  return pointers;
}

}  // namespace ballast::sim
