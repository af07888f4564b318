// cuSOLVER's 64-bit interface by the names of its shared library, with the types of its header. The library
// stores by columns: the lower triangle of a square by rows is its upper one, L L^T = U^T U.
//
// Its deterministic mode is asked for. Every call waits for its end, since what the library says of the
// numbers is known only then.
#include "device/cuda/cusolver.h"

#include <cuda_runtime_api.h>
#include <cusolverDn.h>
#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "base/disk/shared_library.h"
#include "base/error.h"
#include "device/cuda/library_places.h"
#include "device/cuda/runtime_memory.h"

namespace llmq {
namespace {

struct Cusolver {
  decltype(&cusolverGetVersion) version = nullptr;
  decltype(&cusolverDnCreate) create = nullptr;
  decltype(&cusolverDnDestroy) destroy = nullptr;
  decltype(&cusolverDnCreateParams) create_params = nullptr;
  decltype(&cusolverDnDestroyParams) destroy_params = nullptr;
  decltype(&cusolverDnSetStream) set_stream = nullptr;
  decltype(&cusolverDnSetDeterministicMode) set_deterministic = nullptr;
  decltype(&cusolverDnXpotrf_bufferSize) factor_bytes = nullptr;
  decltype(&cusolverDnXpotrf) factor = nullptr;
  decltype(&cusolverDnXpotrs) solve = nullptr;
  CusolverFound found;
};

Cusolver open_cusolver() {
  Cusolver library;
  const std::string name = fmt::format("libcusolver.so.{}", CUSOLVER_VER_MAJOR);
  // The wheels of CUDA 13 share a folder, those of CUDA 12 have one each.
  const std::string wheel =
      CUDART_VERSION >= 13000 ? fmt::format("cu{}", CUDART_VERSION / 1000) : std::string("cusolver");
  const SharedLibrary opened = open_shared_library(library_places(name, wheel, own_program()));
  if (opened.handle == nullptr) {
    library.found.missing = "cuSOLVER cannot be opened: " + opened.missing;
    return library;
  }
  library.found.path = opened.path;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened.handle, symbol));
    if (function == nullptr) library.found.missing = fmt::format("{} has no {}", name, symbol);
  };
  find(library.version, "cusolverGetVersion");
  find(library.create, "cusolverDnCreate");
  find(library.destroy, "cusolverDnDestroy");
  find(library.create_params, "cusolverDnCreateParams");
  find(library.destroy_params, "cusolverDnDestroyParams");
  find(library.set_stream, "cusolverDnSetStream");
  find(library.set_deterministic, "cusolverDnSetDeterministicMode");
  find(library.factor_bytes, "cusolverDnXpotrf_bufferSize");
  find(library.factor, "cusolverDnXpotrf");
  find(library.solve, "cusolverDnXpotrs");
  int version = 0;
  if (library.found.missing.empty() && library.version(&version) != CUSOLVER_STATUS_SUCCESS)
    library.found.missing = name + " does not say its version";
  if (library.found.missing.empty())
    library.found.version = fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return library;
}

const Cusolver& cusolver() {
  static const Cusolver library = open_cusolver();
  return library;
}

void check(cudaError_t error, const char* call, std::int64_t size) {
  check_cuda(error, call, fmt::format("{} by {} numbers", size, size));
}

void check(cusolverStatus_t status, const char* call, std::int64_t size) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  fail(status == CUSOLVER_STATUS_ALLOC_FAILED ? ErrorKind::kResource : ErrorKind::kDevice,
       "{} failed for {} by {} numbers: cuSOLVER's status {}", call, size, size, static_cast<int>(status));
}

struct Destroy {
  void operator()(cusolverDnHandle_t handle) const { cusolver().destroy(handle); }
  void operator()(cusolverDnParams_t parameters) const { cusolver().destroy_params(parameters); }
};

class CusolverCholesky final : public SquareCholesky {
 public:
  CusolverCholesky(std::shared_ptr<MemoryResource> memory, cudaStream_t stream)
      : memory_(std::move(memory)), stream_(stream), answer_(memory_, sizeof(int)) {
    cusolverDnHandle_t handle = nullptr;
    check(cusolver().create(&handle), "cusolverDnCreate", 0);
    handle_.reset(handle);
    cusolverDnParams_t parameters = nullptr;
    check(cusolver().create_params(&parameters), "cusolverDnCreateParams", 0);
    parameters_.reset(parameters);
    check(cusolver().set_stream(handle, stream), "cusolverDnSetStream", 0);
    check(cusolver().set_deterministic(handle, CUSOLVER_DETERMINISTIC_RESULTS),
          "cusolverDnSetDeterministicMode", 0);
  }

  int factor(double* square, std::int64_t size) override {
    use(size);
    std::size_t on_device = 0, on_host = 0;
    check(cusolver().factor_bytes(handle_.get(), parameters_.get(), CUBLAS_FILL_MODE_UPPER, size, CUDA_R_64F,
                                  square, size, CUDA_R_64F, &on_device, &on_host),
          "cusolverDnXpotrf_bufferSize", size);
    const Buffer workspace(memory_, on_device);
    std::vector<char> host_workspace(on_host);
    check(cusolver().factor(handle_.get(), parameters_.get(), CUBLAS_FILL_MODE_UPPER, size, CUDA_R_64F,
                            square, size, CUDA_R_64F, workspace.get(), on_device, host_workspace.data(),
                            on_host, answer_.as<int>()),
          "cusolverDnXpotrf", size);
    return answer(size);
  }

  int solve(const double* square, std::int64_t size, double* rows, std::int64_t stride,
            std::int64_t count) override {
    use(size);
    check(cusolver().solve(handle_.get(), parameters_.get(), CUBLAS_FILL_MODE_UPPER, size, count, CUDA_R_64F,
                           square, size, CUDA_R_64F, rows, stride, answer_.as<int>()),
          "cusolverDnXpotrs", size);
    return answer(size);
  }

 private:
  void use(std::int64_t size) const { check(cudaSetDevice(memory_->device().index), "cudaSetDevice", size); }
  int answer(std::int64_t size) const {
    int answer = 0;
    check(cudaMemcpyAsync(&answer, answer_.get(), sizeof(answer), cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync", size);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", size);
    return answer;
  }

  const std::shared_ptr<MemoryResource> memory_;
  const cudaStream_t stream_;
  Buffer answer_;
  std::unique_ptr<std::remove_pointer_t<cusolverDnHandle_t>, Destroy> handle_;
  std::unique_ptr<std::remove_pointer_t<cusolverDnParams_t>, Destroy> parameters_;
};

}  // namespace

const CusolverFound& find_cusolver() { return cusolver().found; }

std::unique_ptr<SquareCholesky> make_cusolver(std::shared_ptr<MemoryResource> memory, void* stream) {
  return std::make_unique<CusolverCholesky>(std::move(memory), static_cast<cudaStream_t>(stream));
}

}  // namespace llmq
