// What multiplies weights of BF16 and sums Gram matrices on a device: the own kernels (own_products.cpp), or
// for calibration a library where it has their bits (library_products.cpp).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/cuda/cuda_work.h"
#include "device/cuda/dense/dense_library.h"

namespace llmq {

// A library's products with weights of one shape.
class FixedProduct {
 public:
  virtual ~FixedProduct() = default;
  virtual std::string text() const = 0;
  // y = x w^T + bias as Backend::linear(): x BF16 [any rows, in], w BF16 [out, in] where it was prepared.
  virtual void multiply(const TensorView& y, const TensorView& x, const Buffer& w,
                        const float* bias) const = 0;
};

class DenseProducts {
 public:
  virtual ~DenseProducts() = default;
  // What multiplies BF16 weights [features, columns], which lasts as long as this; null: the own kernels.
  // Asked before the weight is in memory, because other numbers stand in its place while a shape is tried.
  virtual const FixedProduct* find(std::int64_t features, std::int64_t columns) = 0;
  // Backend::gram().
  virtual void add_gram(const TensorView& g, const TensorView& x, std::int64_t before) = 0;
  // What trials and the library itself may take, which nobody plans.
  virtual std::uint64_t reserved_bytes() const = 0;
  // Backend::kernel_choices().
  virtual std::vector<KernelChoice> choices() const = 0;
};

// `why`: of a library that is not there, for choices(); empty where none was wanted.
std::unique_ptr<DenseProducts> make_own_products(CudaWork& work, std::string why);
// `library` is of the work's device.
std::unique_ptr<DenseProducts> make_library_products(CudaWork& work, DenseLibrary& library);

}  // namespace llmq
