// The kernels of kernels/cuda for every weight and every sum.
#include "device/cuda/cuda_calibration.h"
#include "device/cuda/dense/dense_products.h"

namespace llmq {
namespace {

class OwnProducts final : public DenseProducts {
 public:
  OwnProducts(CudaWork& work, std::string why) : work_(work), why_(std::move(why)) {}
  const FixedProduct* find(std::int64_t, std::int64_t) override { return nullptr; }
  void add_gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_gram_start(before);
    accumulate_gram(work_, g, x);
  }
  std::uint64_t reserved_bytes() const override { return 0; }
  std::vector<KernelChoice> choices() const override {
    if (why_.empty()) return {};
    return {{"dense products", "own kernels", why_}};
  }

 private:
  const CudaWork& work_;
  const std::string why_;
};

}  // namespace

std::unique_ptr<DenseProducts> make_own_products(CudaWork& work, std::string why) {
  return std::make_unique<OwnProducts>(work, std::move(why));
}

}  // namespace llmq
