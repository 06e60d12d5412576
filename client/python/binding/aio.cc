// The extension module ballast._aio: AioHandle and page-locked memory for ballast/ops/aio. Apart
// from ballast._core, because it needs libaio and no gRPC.
// Comes from: ballast/ops/aio, which owns the waiting loops. Goes to: client/aio. Memory is integer
// addresses. The GIL is released wherever a call can block. Thread safety: thread-safe, but a
// process forked from the owner must not use a Handle.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "client/aio/aio_handle.h"
#include "common/io/arena.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

// Raises the exception of ballast.ops.aio.errors for a status other than OK.
[[noreturn]] void Raise(const absl::Status& status) {
  const nb::object error = nb::module_::import_("ballast.ops.aio.errors")
                               .attr("from_status")(absl::StatusCodeToString(status.code()),
                                                    std::string(status.message()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

// A reference to a Python object that any thread may let go of.
std::shared_ptr<void> Reference(nb::object object) {
  return {object.release().ptr(), [](void* held) {
            nb::gil_scoped_acquire acquire;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

class Handle {
 public:
  Handle(uint64_t block_size, int queue_depth, int parallelism) {
    auto handle = AioHandle::Create(
        {.block_bytes = block_size, .queue_depth = queue_depth, .parallelism = parallelism});
    if (!handle.ok()) Raise(handle.status());
    handle_ = *std::move(handle);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (getpid() != pid_) {
      static_cast<void>(handle_.release());  // Its threads exist only in the parent.
      return;
    }
    nb::gil_scoped_release release;
    handle_.reset();
  }

  // `owner` of the memory lives until Take has returned the operation, whatever becomes of Python.
  uint64_t Start(bool write, std::string path, uint64_t offset, uintptr_t address, uint64_t bytes,
                 bool validate, nb::object owner) {
    const TransferRange range{.path = std::move(path),
                              .offset = offset,
                              .memory = reinterpret_cast<char*>(address),
                              .bytes = bytes};
    const std::shared_ptr<void> kept = Reference(std::move(owner));
    absl::StatusOr<uint64_t> number;
    {
      nb::gil_scoped_release release;
      number = write ? handle_->StartWrite(range, validate, kept)
                     : handle_->StartRead(range, validate, kept);
    }
    if (!number.ok()) Raise(number.status());
    return *number;
  }

  uint64_t Last() const { return handle_->last(); }

  bool Wait(uint64_t last, double timeout_s) {
    nb::gil_scoped_release release;
    const std::chrono::duration<double> timeout(timeout_s);
    return handle_->Wait(last, std::chrono::duration_cast<std::chrono::nanoseconds>(timeout));
  }

  // How many operations have ended since the last call. Raises their first error.
  size_t Take() {
    const AioEnded ended = handle_->Take();
    if (!ended.status.ok()) Raise(ended.status);
    return ended.numbers.size();
  }

  bool Uses(uintptr_t address, uint64_t bytes) const {
    return handle_->Uses(reinterpret_cast<const char*>(address), bytes);
  }

 private:
  std::unique_ptr<AioHandle> handle_;
  const pid_t pid_ = getpid();
};

// Zeros on huge pages that stay in memory.
class LockedMemory {
 public:
  explicit LockedMemory(size_t bytes) : bytes_(bytes) {
    absl::Status status;
    {
      nb::gil_scoped_release release;
      absl::StatusOr<Arena> arena = Arena::Create(bytes);
      status = arena.status();
      if (arena.ok()) {
        arena_ = *std::move(arena);
        locked_ = arena_.LockTouchedPages();
        arena_.TouchAll();
      }
    }
    if (!status.ok()) Raise(status);
  }

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(arena_.data()); }
  bool locked() const { return locked_; }

  // Gives the pages back; whatever still looks at them sees zeros.
  void Free() {
    munlock(arena_.data(), arena_.bytes());
    madvise(arena_.data(), arena_.bytes(), MADV_DONTNEED);
  }

  // A torch tensor of bytes over `self`, which it keeps alive.
  static nb::ndarray<nb::pytorch, uint8_t> Tensor(nb::handle self) {
    const auto* memory = nb::cast<const LockedMemory*>(self);
    const size_t shape[] = {memory->bytes_};
    return {memory->arena_.data(), 1, shape, self};
  }

 private:
  const size_t bytes_;
  Arena arena_;
  bool locked_ = false;
};

}  // namespace

NB_MODULE(_aio, module) {
  module.doc() = "Files to and from tensors for ballast/ops/aio; see client/python/binding/aio.cc.";
  nb::set_leak_warnings(false);
  nb::class_<Handle>(module, "Handle")
      .def(nb::init<uint64_t, int, int>(), nb::arg("block_size"), nb::arg("queue_depth"),
           nb::arg("parallelism"))
      .def("start", &Handle::Start, nb::arg("write"), nb::arg("path"), nb::arg("offset"),
           nb::arg("address"), nb::arg("bytes"), nb::arg("validate"), nb::arg("owner"))
      .def("last", &Handle::Last)
      .def("wait", &Handle::Wait, nb::arg("last"), nb::arg("timeout_s"))
      .def("take", &Handle::Take)
      .def("uses", &Handle::Uses, nb::arg("address"), nb::arg("bytes"));
  nb::class_<LockedMemory>(module, "LockedMemory", nb::is_weak_referenceable())
      .def(nb::init<size_t>(), nb::arg("bytes"))
      .def_prop_ro("address", &LockedMemory::address)
      .def_prop_ro("locked", &LockedMemory::locked)
      .def("free", &LockedMemory::Free)
      .def("tensor", &LockedMemory::Tensor);
}

}  // namespace ballast::python
