// Products with weights on a CUDA device, and the quadratic forms that they make.
#pragma once
#include <span>
#include <string>

#include "device/cuda/cuda_work.h"

namespace llmq {

// y = x w^T + bias by the first kernel that takes the weight; bias may be null.
void multiply(CudaWork& work, const TensorView& y, const TensorView& x, const CudaWeight& w,
              const float* bias);
// What is wrong with a device's products of E2M1 by E2M1, as a clause, tried by four of them; empty where
// nothing is (float4_trial.cpp). The device has them (float4_linear()).
std::string float4_fault(CudaWork& work);
// Backend::quadratic_form.
void evaluate_form(CudaWork& work, std::span<double> loss, const TensorView& d, const CudaWeight& g);

}  // namespace llmq
