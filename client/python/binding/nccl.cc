// The extension module ballast._nccl: communicators of NCCL for ballast/torch/nccl.py. Apart from
// ballast._core, because it needs neither gRPC nor a session.
// Comes from: ballast/torch/nccl.py. Goes to: client/collective, on the GPU of the CUDA part, or on
// the host. Memory is integer addresses; the caller keeps it until the call returns. Errors are
// RuntimeError, whose text begins with the status code. The GIL is released while a call waits.
// Thread safety: one Python thread at a time, except abort().
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/collective/nccl_collective.h"
#include "client/device/cuda_device.h"
#include "client/device/host_device.h"

namespace ballast::python {
namespace nb = nanobind;
namespace {

[[noreturn]] void Raise(const absl::Status& status) {
  PyErr_SetString(PyExc_RuntimeError, status.ToString().c_str());
  throw nb::python_error();
}

void RaiseUnlessOk(const absl::Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // of look()
  if (!status.ok()) Raise(status);
}

template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Where the tensors are; outlives the communicators.
struct Memory {
  std::unique_ptr<device::Device> device;
  device::Stream stream{};
};

// The host, or the GPU `ordinal` with the framework's `stream`.
std::shared_ptr<Memory> Host() {
  auto memory = std::make_shared<Memory>();
  memory->device = std::make_unique<device::HostDevice>();
  memory->stream = *memory->device->NewStream();
  return memory;
}

std::shared_ptr<Memory> OnGpu(const std::string& library, int ordinal, uintptr_t stream) {
  auto opened = device::CudaLibrary::Open(library);
  if (!opened.ok()) Raise(opened.status());
  auto gpu = device::CudaDevice::Create(*std::move(opened), ordinal, nullptr);
  if (!gpu.ok()) Raise(gpu.status());
  auto memory = std::make_shared<Memory>();
  memory->stream = (*gpu)->Adopt(At<void>(stream));
  memory->device = *std::move(gpu);
  return memory;
}

// A communicator of one epoch. `look` is called while a call waits; an exception from it ends the
// call.
class Communicator {
 public:
  Communicator(std::shared_ptr<collective::NcclComms> comms, std::shared_ptr<Memory> memory,
               const nb::bytes& id, std::pair<uint32_t, uint32_t> seat, uint64_t epoch,
               double timeout_s, nb::object look)
      : memory_(std::move(memory)), look_(std::move(look)) {
    collective::nccl::UniqueId unique{};
    if (id.size() != sizeof unique) Raise(absl::InvalidArgumentError("an id has 128 bytes"));
    std::copy_n(id.c_str(), sizeof unique, unique.internal);
    collective::NcclConfig config{.rank = seat.first, .world = seat.second, .epoch = epoch};
    config.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
    config.look = [this] { return Look(); };
    absl::Status status;
    {
      nb::gil_scoped_release release;
      auto made = collective::NcclCollective::Create(std::move(comms), memory_->device.get(),
                                                     memory_->stream, unique, std::move(config));
      status = made.status();
      if (made.ok()) collective_ = *std::move(made);
    }
    RaiseUnlessOk(status);
  }

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    // A process forked from the owner has no part in the communicator.
    getpid() == pid_ ? Close() : static_cast<void>(collective_.release());
  }

  void ReduceScatter(uintptr_t bucket, uintptr_t share, size_t count, int dtype, uint64_t round,
                     uint32_t number) {
    Run([&](collective::Collective& c) {
      return c.ReduceScatter({round, number}, static_cast<DType>(dtype), At<void>(bucket),
                             At<void>(share), count);
    });
  }
  void AllGather(uintptr_t share, uintptr_t bucket, size_t bytes, uint64_t round, uint32_t number) {
    Run([&](collective::Collective& c) {
      return c.AllGather({round, number}, At<void>(share), At<void>(bucket), bytes);
    });
  }
  void Abort(const std::string& why) { collective_->Abort(absl::AbortedError(why)); }
  void Close() {
    nb::gil_scoped_release release;
    collective_.reset();
  }

 private:
  template <typename Call>
  void Run(const Call& call) {
    absl::Status status = absl::FailedPreconditionError("this communicator is closed");
    if (collective_ != nullptr) {
      nb::gil_scoped_release release;
      status = call(*collective_);
    }
    RaiseUnlessOk(status);
  }

  // The Python error stays set for RaiseUnlessOk: the calling thread is the same.
  absl::Status Look() {
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) return absl::CancelledError("interrupted");
    PyObject* const answer = PyObject_CallNoArgs(look_.ptr());
    if (answer == nullptr) return absl::CancelledError("interrupted");
    Py_DECREF(answer);
    return absl::OkStatus();
  }

  const std::shared_ptr<Memory> memory_;
  const nb::object look_;
  const pid_t pid_ = getpid();
  std::unique_ptr<collective::NcclCollective> collective_;
};

std::shared_ptr<collective::NcclComms> OpenNccl() {
  auto library = collective::NcclLibrary::Open();
  if (!library.ok()) Raise(library.status());
  return std::make_shared<collective::NcclComms>(*std::move(library));
}

nb::bytes NewId(const collective::NcclComms& comms) {
  auto id = comms.library().NewId();
  if (!id.ok()) Raise(id.status());
  return nb::bytes(id->internal, sizeof id->internal);
}

}  // namespace

NB_MODULE(_nccl, module) {
  module.doc() = "Communicators of NCCL. Use ballast.torch, which hides this module.";
  nb::class_<Memory>(module, "Memory");
  module.def("host", &Host);
  module.def("gpu", &OnGpu, nb::arg("library"), nb::arg("ordinal"), nb::arg("stream"));
  nb::class_<collective::NcclComms>(module, "Comms")
      .def_prop_ro("version",
                   [](const collective::NcclComms& self) {
                     return collective::NcclVersionText(self.library().version());
                   })
      .def("new_id", &NewId);
  module.def("open", &OpenNccl);
  nb::class_<Communicator>(module, "Communicator")
      .def(
          nb::init<std::shared_ptr<collective::NcclComms>, std::shared_ptr<Memory>,
                   const nb::bytes&, std::pair<uint32_t, uint32_t>, uint64_t, double, nb::object>(),
          nb::arg("comms"), nb::arg("memory"), nb::arg("id"), nb::arg("seat"), nb::arg("epoch"),
          nb::arg("timeout_s"), nb::arg("look"))
      .def("reduce_scatter", &Communicator::ReduceScatter, nb::arg("bucket"), nb::arg("share"),
           nb::arg("count"), nb::arg("dtype"), nb::arg("round"), nb::arg("number"))
      .def("all_gather", &Communicator::AllGather, nb::arg("share"), nb::arg("bucket"),
           nb::arg("bytes"), nb::arg("round"), nb::arg("number"))
      .def("abort", &Communicator::Abort, nb::arg("why"))
      .def("close", &Communicator::Close);
}

}  // namespace ballast::python
