// cuBLASLt by the names of its shared library, with the types of its header. The library counts by columns:
// to it y is [features, rows], x [columns, rows] and w [columns, features], so that y = w^T x; a Gram
// matrix's panel of rows i.. is x[i..] x[i..i+n]^T, [channels - i, n].
//
// Asked for: no split along the sum, no reduction, operands at multiples of 16 bytes, one workspace. A plan
// is an algorithm that the library's heuristic names for the most rows, and is used as it is for fewer.
#include "device/cuda/dense/cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <type_traits>

#include "base/disk/shared_library.h"
#include "base/error.h"
#include "device/cuda/library_places.h"
#include "device/cuda/runtime_memory.h"

namespace llmq {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
// Of eight the fastest is one of the first four, or 2 % faster (H100, 13.1.0); each kernel that is loaded
// takes tens of milliseconds.
constexpr int kMostPlans = 4;

struct Cublaslt {
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
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) configuration = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  CublasltFound found;
};

Cublaslt open_cublaslt() {
  Cublaslt library;
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  // The wheels of CUDA 13 share a folder, those of CUDA 12 have one each.
  const std::string wheel =
      CUDART_VERSION >= 13000 ? fmt::format("cu{}", CUDART_VERSION / 1000) : std::string("cublas");
  const SharedLibrary opened = open_shared_library(library_places(name, wheel, own_program()));
  if (opened.handle == nullptr) {
    library.found.missing = "cuBLASLt cannot be opened: " + opened.missing;
    return library;
  }
  library.found.path = opened.path;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened.handle, symbol));
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
  find(library.check_algorithm, "cublasLtMatmulAlgoCheck");
  find(library.configuration, "cublasLtMatmulAlgoConfigGetAttribute");
  find(library.multiply, "cublasLtMatmul");
  if (!library.found.missing.empty()) return library;
  const std::size_t version = library.version();
  library.found.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return library;
}

const Cublaslt& cublaslt() {
  static const Cublaslt library = open_cublaslt();
  return library;
}

// What a product is to the library: c [height, width] = a [height, depth] b [depth, width] (+ c), by columns.
struct Sizes {
  std::int64_t height = 0, width = 0, depth = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool a_turned = false, b_turned = false;  // stored the other way
};

[[noreturn]] void fail_call(cublasStatus_t status, const char* call, const std::string& purpose) {
  fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::kResource : ErrorKind::kDevice, "{} failed{}: {}",
       call, purpose, cublaslt().name(status));
}

void check(cublasStatus_t status, const char* call, const Sizes& s) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail_call(status, call, fmt::format(" for a product {} x {} x {}", s.width, s.height, s.depth));
}

struct CublasltDestroy {
  void operator()(cublasLtHandle_t handle) const { cublaslt().destroy(handle); }
  void operator()(cublasLtMatmulDesc_t product) const { cublaslt().destroy_product(product); }
  void operator()(cublasLtMatrixLayout_t layout) const { cublaslt().destroy_layout(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const { cublaslt().destroy_preference(preference); }
};
template <class Pointer>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, CublasltDestroy>;

// What the library is told of one shape.
struct Description {
  explicit Description(const Sizes& s) : sizes(s) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublaslt().create_product(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", s);
    product.reset(made);
    turn(CUBLASLT_MATMUL_DESC_TRANSA, s.a_turned);
    turn(CUBLASLT_MATMUL_DESC_TRANSB, s.b_turned);
    a = s.a_turned ? layout(CUDA_R_16BF, s.depth, s.height, s.a_stride)
                   : layout(CUDA_R_16BF, s.height, s.depth, s.a_stride);
    b = s.b_turned ? layout(CUDA_R_16BF, s.width, s.depth, s.b_stride)
                   : layout(CUDA_R_16BF, s.depth, s.width, s.b_stride);
    c = layout(CUDA_R_32F, s.height, s.width, s.c_stride);
  }

  Sizes sizes;
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> a, b, c;

 private:
  void turn(cublasLtMatmulDescAttributes_t which, bool turned) const {
    const cublasOperation_t operation = turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublaslt().set_product(product.get(), which, &operation, sizeof(operation)),
          "cublasLtMatmulDescSetAttribute", sizes);
  }
  Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, std::int64_t height, std::int64_t width,
                                       std::int64_t stride) const {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublaslt().create_layout(&made, type, static_cast<std::uint64_t>(height),
                                   static_cast<std::uint64_t>(width), stride),
          "cublasLtMatrixLayoutCreate", sizes);
    return Owned<cublasLtMatrixLayout_t>(made);
  }
};

std::uint32_t configured(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what) {
  std::uint32_t value = 0;
  std::size_t written = 0;
  // Two of them have 16 bits.
  const bool narrow =
      what == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  if (cublaslt().configuration(&algorithm, what, &value, narrow ? 2 : 4, &written) != CUBLAS_STATUS_SUCCESS)
    return 0;
  return value;
}

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  return fmt::format("algorithm {}, tile {}, stages {}, cluster {}, order {}, option {}",
                     configured(algorithm, CUBLASLT_ALGO_CONFIG_ID),
                     configured(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                     configured(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                     configured(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
                     configured(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                     configured(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
}

// The library on one device and stream.
struct Place {
  Place(std::shared_ptr<MemoryResource> resource, cudaStream_t on)
      : memory(std::move(resource)), stream(on), workspace(memory, kWorkspaceBytes) {
    use();
    cublasLtHandle_t made = nullptr;
    const cublasStatus_t status = cublaslt().create(&made);
    if (status != CUBLAS_STATUS_SUCCESS) fail_call(status, "cublasLtCreate", {});
    handle.reset(made);
  }
  void use() const { check_cuda(cudaSetDevice(memory->device().index), "cudaSetDevice", "a dense product"); }

  std::vector<cublasLtMatmulAlgo_t> choose(const Description& d) const {
    use();
    cublasLtMatmulPreference_t made = nullptr;
    check(cublaslt().create_preference(&made), "cublasLtMatmulPreferenceCreate", d.sizes);
    const Owned<cublasLtMatmulPreference_t> preference(made);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(cublaslt().set_preference(made, what, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute", d.sizes);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    for (const auto what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(what, std::uint32_t{kDenseAlignment});
    cublasLtMatmulHeuristicResult_t results[kMostPlans] = {};
    int found = 0;
    const cublasStatus_t status = cublaslt().choose(handle.get(), d.product.get(), d.a.get(), d.b.get(),
                                                    d.c.get(), d.c.get(), made, kMostPlans, results, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check(status, "cublasLtMatmulAlgoGetHeuristic", d.sizes);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i)
      if (results[i].state == CUBLAS_STATUS_SUCCESS &&
          configured(results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1 &&
          configured(results[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
              CUBLASLT_REDUCTION_SCHEME_NONE)
        algorithms.push_back(results[i].algo);
    return algorithms;
  }

  bool takes(const Description& d, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublaslt().check_algorithm(handle.get(), d.product.get(), d.a.get(), d.b.get(), d.c.get(),
                                      d.c.get(), &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }

  void multiply(const Description& d, const cublasLtMatmulAlgo_t& algorithm, float* c, const BFloat16* a,
                const BFloat16* b, float of_c) const {
    use();
    const float one = 1;
    check(cublaslt().multiply(handle.get(), d.product.get(), &one, a, d.a.get(), b, d.b.get(), &of_c, c,
                              d.c.get(), c, d.c.get(), &algorithm, workspace.get(), kWorkspaceBytes, stream),
          "cublasLtMatmul", d.sizes);
  }

  const std::shared_ptr<MemoryResource> memory;
  const cudaStream_t stream;
  const Buffer workspace;
  Owned<cublasLtHandle_t> handle;
};

Sizes sizes_of(const DenseShape& s, std::int64_t rows) {
  return {s.features, rows, s.columns, s.columns, s.columns, s.features, true, false};
}

class CublasltPlan final : public DensePlan {
 public:
  CublasltPlan(std::shared_ptr<const Place> place, const DenseShape& shape,
               const cublasLtMatmulAlgo_t& algorithm)
      : place_(std::move(place)), shape_(shape), algorithm_(algorithm) {}
  std::string text() const override { return text_of(algorithm_); }
  bool takes(std::int64_t rows) const override {
    place_->use();
    return place_->takes(of(rows), algorithm_);
  }
  void multiply(float* y, const BFloat16* x, const BFloat16* w, std::int64_t rows) override {
    place_->multiply(of(rows), algorithm_, y, w, x, 0);
  }

 private:
  const Description& of(std::int64_t rows) const {
    const std::lock_guard lock(mutex_);
    return described_.try_emplace(rows, sizes_of(shape_, rows)).first->second;
  }

  const std::shared_ptr<const Place> place_;
  const DenseShape shape_;
  const cublasLtMatmulAlgo_t algorithm_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, Description> described_;
};

class CublasltPanel final : public PanelPlan {
 public:
  CublasltPanel(std::shared_ptr<const Place> place, const Sizes& sizes, const cublasLtMatmulAlgo_t& algorithm,
                std::int64_t first)
      : place_(std::move(place)), described_(sizes), algorithm_(algorithm), first_(first) {}
  std::string text() const override { return text_of(algorithm_); }
  void add(float* panel, const BFloat16* x) override {
    place_->multiply(described_, algorithm_, panel, x + first_, x + first_, 1);
  }

 private:
  const std::shared_ptr<const Place> place_;
  const Description described_;
  const cublasLtMatmulAlgo_t algorithm_;
  const std::int64_t first_;
};

class CublasltLibrary final : public DenseLibrary {
 public:
  CublasltLibrary(std::shared_ptr<MemoryResource> memory, cudaStream_t stream)
      : place_(std::make_shared<const Place>(std::move(memory), stream)) {}

  std::string name() const override { return "cuBLASLt " + find_cublaslt().version; }

  std::vector<std::unique_ptr<DensePlan>> plans(const DenseShape& full) override {
    std::vector<std::unique_ptr<DensePlan>> plans;
    for (const cublasLtMatmulAlgo_t& algorithm : place_->choose(Description(sizes_of(full, full.rows))))
      plans.push_back(std::make_unique<CublasltPlan>(place_, full, algorithm));
    return plans;
  }

  std::vector<std::unique_ptr<PanelPlan>> plans(const GramPanel& panel) override {
    const Sizes sizes{panel.channels - panel.first,
                      panel.count,
                      panel.rows,
                      panel.channels,
                      panel.channels,
                      panel.stride,
                      false,
                      true};
    std::vector<std::unique_ptr<PanelPlan>> plans;
    for (const cublasLtMatmulAlgo_t& algorithm : place_->choose(Description(sizes)))
      plans.push_back(std::make_unique<CublasltPanel>(place_, sizes, algorithm, panel.first));
    return plans;
  }

 private:
  const std::shared_ptr<const Place> place_;
};

}  // namespace

const CublasltFound& find_cublaslt() { return cublaslt().found; }

std::unique_ptr<DenseLibrary> make_cublaslt(std::shared_ptr<MemoryResource> memory, void* stream) {
  return std::make_unique<CublasltLibrary>(std::move(memory), static_cast<cudaStream_t>(stream));
}

}  // namespace llmq
