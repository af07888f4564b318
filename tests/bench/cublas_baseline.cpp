// cuBLASLt by the names of its shared library, with the types of its header. The library counts by columns:
// to it y is [n, m], x [k, m] and w [k, n], so that y = w^T x.
#include "bench/cublas_baseline.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <type_traits>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

struct Cublas {
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) name = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  CublasFound found;
};

Cublas open_cublas() {
  Cublas library;
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* const opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    library.found.missing = fmt::format("cuBLASLt cannot be opened: {}", dlerror());
    return library;
  }
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, symbol));
    if (function == nullptr) library.found.missing = fmt::format("{} has no {}", name, symbol);
  };
  find(library.version, "cublasLtGetVersion");
  find(library.name, "cublasLtGetStatusName");
  find(library.create, "cublasLtCreate");
  find(library.destroy, "cublasLtDestroy");
  find(library.create_product, "cublasLtMatmulDescCreate");
  find(library.destroy_product, "cublasLtMatmulDescDestroy");
  find(library.set_product, "cublasLtMatmulDescSetAttribute");
  find(library.create_layout, "cublasLtMatrixLayoutCreate");
  find(library.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(library.create_preference, "cublasLtMatmulPreferenceCreate");
  find(library.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(library.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(library.choose, "cublasLtMatmulAlgoGetHeuristic");
  find(library.multiply, "cublasLtMatmul");
  if (!library.found.missing.empty()) return library;
  const std::size_t version = library.version();
  library.found.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return library;
}

const Cublas& cublas() {
  static const Cublas library = open_cublas();
  return library;
}

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    fail(ErrorKind::kDevice, "{} failed beside cuBLASLt: {} ({})", call, cudaGetErrorString(error),
         cudaGetErrorName(error));
}

struct Size {
  std::int64_t m = 0, n = 0, k = 0;
  bool operator==(const Size&) const = default;
};

void check(cublasStatus_t status, const char* call, const Size& size) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorKind::kDevice, "{} failed for a product {} x {} x {}: {}", call, size.m, size.n, size.k,
       cublas().name(status));
}

struct Destroy {
  void operator()(cublasLtHandle_t handle) const { cublas().destroy(handle); }
  void operator()(cublasLtMatmulDesc_t product) const { cublas().destroy_product(product); }
  void operator()(cublasLtMatrixLayout_t layout) const { cublas().destroy_layout(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const { cublas().destroy_preference(preference); }
  void operator()(void* memory) const { cudaFree(memory); }
};
template <class Pointer>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy>;

// What cublasLtMatmul is told of one shape.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Size& s) : size(s) {
    cublasLtMatmulDesc_t product_made = nullptr;
    check(cublas().create_product(&product_made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
          s);
    product.reset(product_made);
    const cublasOperation_t turned = CUBLAS_OP_T;
    check(cublas().set_product(product_made, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned)),
          "cublasLtMatmulDescSetAttribute", s);
    w = layout(CUDA_R_16BF, s.k, s.n);
    x = layout(CUDA_R_16BF, s.k, s.m);
    y = layout(CUDA_R_32F, s.n, s.m);
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublas().create_preference(&preference), "cublasLtMatmulPreferenceCreate", s);
    const Owned<cublasLtMatmulPreference_t> kept(preference);
    check(cublas().set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                  sizeof(kWorkspaceBytes)),
          "cublasLtMatmulPreferenceSetAttribute", s);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    check(cublas().choose(handle, product.get(), w.get(), x.get(), y.get(), y.get(), preference, 1, &result,
                          &found),
          "cublasLtMatmulAlgoGetHeuristic", s);
    check(found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state, "cublasLtMatmulAlgoGetHeuristic", s);
    algorithm = result.algo;
  }

  const Size size;
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> w, x, y;
  cublasLtMatmulAlgo_t algorithm{};

 private:
  // by columns, one after another
  Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, std::int64_t height, std::int64_t width) const {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublas().create_layout(&made, type, static_cast<std::uint64_t>(height),
                                 static_cast<std::uint64_t>(width), height),
          "cublasLtMatrixLayoutCreate", size);
    return Owned<cublasLtMatrixLayout_t>(made);
  }
};

class LegacyStreamBaseline final : public CublasBaseline {
 public:
  explicit LegacyStreamBaseline(int index) : index_(index) {
    use();
    cublasLtHandle_t handle = nullptr;
    check(cublas().create(&handle), "cublasLtCreate", {});
    handle_.reset(handle);
    void* workspace = nullptr;
    check(cudaMalloc(&workspace, kWorkspaceBytes), "cudaMalloc");
    workspace_.reset(workspace);
  }

  void multiply(const TensorView& y, const TensorView& x, const TensorView& w) override {
    use();
    const Size size{x.rows(), w.rows(), x.cols()};
    if (!plan_ || plan_->size != size) plan_ = std::make_unique<Plan>(handle_.get(), size);
    const float one = 1, zero = 0;
    check(cublas().multiply(handle_.get(), plan_->product.get(), &one, w.pointer, plan_->w.get(), x.pointer,
                            plan_->x.get(), &zero, y.pointer, plan_->y.get(), y.pointer, plan_->y.get(),
                            &plan_->algorithm, workspace_.get(), kWorkspaceBytes, nullptr),
          "cublasLtMatmul", size);
  }
  void dequantize(const cuda::Dequantize4& codes) override {
    use();
    check(static_cast<cudaError_t>(cuda::launch_dequantize4(codes, nullptr)),
          "the launch of the dequantization");
  }
  void wait() override {
    use();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  void use() const { check(cudaSetDevice(index_), "cudaSetDevice"); }

  const int index_;
  Owned<cublasLtHandle_t> handle_;
  Owned<void*> workspace_;
  std::unique_ptr<Plan> plan_;
};

}  // namespace

const CublasFound& find_cublas() { return cublas().found; }

std::unique_ptr<CublasBaseline> make_cublas_baseline(int index) {
  return std::make_unique<LegacyStreamBaseline>(index);
}

}  // namespace llmq
