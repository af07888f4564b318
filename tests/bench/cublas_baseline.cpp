#include "bench/cublas_baseline.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "device/cuda/runtime_memory.h"

namespace llmq {
namespace {

class LibraryBaseline final : public CublasBaseline {
 public:
  explicit LibraryBaseline(int index)
      : memory_(std::make_shared<PoolMemory>(index)), library_(make_cublaslt(memory_, memory_->stream())) {}

  void multiply(const TensorView& y, const TensorView& x, const TensorView& w) override {
    if (!plan_ || x.rows() != shape_.rows || w.rows() != shape_.features || x.cols() != shape_.columns) {
      shape_ = {x.rows(), w.rows(), x.cols()};
      std::vector<std::unique_ptr<DensePlan>> plans = library_->plans(shape_);
      if (plans.empty()) fail(ErrorKind::kDevice, "cuBLASLt has no plan for {}", y.shape.text());
      plan_ = std::move(plans.front());
    }
    plan_->multiply(y.as<float>(), x.as<BFloat16>(), w.as<BFloat16>(), x.rows());
  }
  void dequantize(const cuda::Dequantize4& codes) override {
    memory_->use();
    check_cuda(static_cast<cudaError_t>(cuda::launch_dequantize4(codes, memory_->stream())), "the launch",
               "the dequantization");
  }
  void wait() override {
    memory_->use();
    check_cuda(cudaStreamSynchronize(memory_->stream()), "cudaStreamSynchronize", "the baseline");
  }

 private:
  const std::shared_ptr<PoolMemory> memory_;
  const std::unique_ptr<DenseLibrary> library_;
  std::unique_ptr<DensePlan> plan_;
  DenseShape shape_;
};

}  // namespace

std::unique_ptr<CublasBaseline> make_cublas_baseline(int index) {
  return std::make_unique<LibraryBaseline>(index);
}

}  // namespace llmq
