// What a CUDA device does beyond Backend (device/extensions.h).
#pragma once
#include <memory>

#include "device/cuda/cuda_calibration.h"
#include "device/cuda/cuda_peaks.h"
#include "device/cuda/cuda_placed_gram.h"
#include "device/cuda/cuda_rounding.h"
#include "device/cuda/device_factor.h"
#include "device/device_peaks.h"
#include "device/extensions.h"
#include "device/token_drawer.h"

namespace llmq {

class CudaPeaks final : public DevicePeaks {
 public:
  explicit CudaPeaks(CudaDevice& device) : device_(device) {}
  double measure_reading() override { return measure_cuda_reading(device_); }
  double measure_products(ArithmeticKind kind) override { return measure_cuda_products(device_, kind); }

 private:
  CudaDevice& device_;
};

class CudaFactorizer final : public Factorizer {
 public:
  explicit CudaFactorizer(CudaWork& work) : work_(work) {}
  std::string why_the_host() const override { return work_.device().why_no_cholesky(); }
  std::unique_ptr<DeviceFactor> factorize(const LowerTriangle& matrix) override {
    return factorize_on(work_.device(), matrix, work_.pool());
  }
  std::unique_ptr<PlacedGram> place(std::span<const double> triangle, std::int64_t channels) override {
    return place_on(work_, triangle, channels);
  }

 private:
  CudaWork& work_;
};

class CudaTokenDrawer final : public TokenDrawer {
 public:
  explicit CudaTokenDrawer(CudaWork& work) : work_(work) {}
  void draw_tokens(const TensorView& logits, std::span<const TokenDraw> draws,
                   std::span<std::int32_t> tokens) override {
    require_on(work_.place(), "draw_tokens", {&logits});
    const Buffer on_device = work_.copy_of(draws), drawn = work_.scratch(tokens.size_bytes());
    work_.start("draw_tokens", work_.kernels().draw_token,
                {static_cast<std::int64_t>(draws.size()), logits.cols(), rows_of(logits),
                 on_device.as<TokenDraw>(), drawn.as<std::int32_t>()},
                logits);
    work_.device().copy_out(tokens.data(), drawn.get(), tokens.size_bytes());
  }

 private:
  CudaWork& work_;
};

class CudaExtensions {
 public:
  explicit CudaExtensions(CudaWork& work)
      : rounding_(work), peaks_(work.device()), factorizer_(work), totals_(work), drawer_(work) {}
  const Extensions& all() const { return all_; }

 private:
  CudaRounding rounding_;
  CudaPeaks peaks_;
  CudaFactorizer factorizer_;
  CudaGramTotals totals_;
  CudaTokenDrawer drawer_;
  const Extensions all_ = {
      .column_rounder = &rounding_,
      .device_peaks = &peaks_,
      .difference_maker = &rounding_,
      .factorizer = &factorizer_,
      .gram_totals = &totals_,
      .row_sums = &rounding_,
      .token_drawer = &drawer_,
  };
};

}  // namespace llmq
