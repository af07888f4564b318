// A library's products for calibration, where they have the bits of the own kernels: what a run computes does
// not depend on whether the library is there.
//
// A library promises the same bits for the same call, not the own kernels' bits, nor the same ones for a row
// at another place or among fewer. So each weight's shape is tried when its first weight comes
// (product_trial.h): of the algorithms that the library offers for as many rows as go at once (4,096, or what
// the scratch memory holds of results), those pass whose every row has the own kernels' bits, and the
// fastest of them is taken, for every smaller multiple of 256 rows that passes as well. Where none passes the
// own kernels multiply, said in log and report.
//
// Rows over a multiple of 256, and numbers of rows that did not pass, go through scratch memory with zeros
// behind.
//
// Gram matrices: whole sums of 4,096 rows, in panels of 1,024 rows of the upper triangle, each by the first
// algorithm that passes; what begins or ends between is the own kernels'.
//
// Cost: a few products of each algorithm a shape, once, and up to 0.6 GiB of scratch beside the weight. Small
// weights and squares, as a prediction of time tries them, are not worth it.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda/cuda_calibration.h"
#include "device/cuda/dense/dense_products.h"
#include "device/cuda/dense/product_trial.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostProductRows = 4096, kWholeSum = 4096, kPanelHeight = 1024;
static_assert(kPanelHeight % kTrialRows == 0 && kMostProductRows % kTrialRows == 0);

bool is_aligned_for_library(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kDenseAlignment == 0;
}

void copy_rows(const CudaWork& work, const TensorView& to, const TensorView& from) {
  const auto element = static_cast<std::size_t>(element_bytes(to.dtype));
  const CudaDevice::Strided copy{to.pointer,
                                 from.pointer,
                                 static_cast<std::size_t>(to.row_stride) * element,
                                 static_cast<std::size_t>(from.row_stride) * element,
                                 static_cast<std::size_t>(to.cols()) * element,
                                 static_cast<std::size_t>(to.rows())};
  if (!work.device().copy_across(work.device(), copy))
    fail(ErrorKind::kInternal, "{} does not copy within itself", work.device().name());
}

// Those that pass; `refused`: the words for the others.
template <class Algorithm, class Passes>
std::vector<std::unique_ptr<Algorithm>> passed(std::vector<std::unique_ptr<Algorithm>> offered,
                                               std::size_t most, std::vector<std::string>& refused,
                                               const Passes& passes) {
  std::vector<std::unique_ptr<Algorithm>> found;
  for (std::unique_ptr<Algorithm>& one : offered) {
    if (found.size() == most) break;
    if (passes(*one))
      found.push_back(std::move(one));
    else
      refused.push_back(one->text());
  }
  return found;
}

std::string why_none(const std::vector<std::string>& refused) {
  if (refused.empty()) return "the library has no algorithm that leaves its sums whole";
  return fmt::format(
      "{} of the library, such as {}, gives other bits",
      refused.size() == 1 ? "an algorithm" : fmt::format("each of {} algorithms", refused.size()),
      refused.front());
}

class TriedProduct final : public FixedProduct {
 public:
  // `rows`: those that passed, rising; the last is the plan's.
  TriedProduct(const CudaWork& work, const std::string& library, const DenseShape& full,
               std::unique_ptr<DensePlan> plan, std::vector<std::int64_t> rows)
      : work_(work),
        full_(full),
        plan_(std::move(plan)),
        rows_(std::move(rows)),
        text_(fmt::format("{}: {}", library, plan_->text())) {}

  std::string text() const override { return text_; }

  void multiply(const TensorView& y, const TensorView& x, const Buffer& w, const float* bias) const override {
    for (std::int64_t first = 0; first < x.rows();) {
      const std::int64_t left = std::min(x.rows() - first, full_.rows),
                         whole = left / kTrialRows * kTrialRows, count = whole > 0 ? whole : left;
      multiply_part(y.row_slice(first, count), x.row_slice(first, count), w.as<BFloat16>());
      first += count;
    }
    if (bias == nullptr || x.rows() == 0) return;
    const cuda::Rows every{const_cast<float*>(bias), 0, cuda::Element::kF32};
    work_.start("linear (bias)", work_.kernels().add,
                {y.rows() * y.cols(), y.cols(), rows_of(y), every, 1.0f}, y);
  }

 private:
  void multiply_part(const TensorView& y, const TensorView& x, const BFloat16* w) const {
    const std::int64_t count = x.rows(), rows = *std::lower_bound(rows_.begin(), rows_.end(), count);
    const bool whole = rows == count,
               x_lies = whole && x.row_stride == full_.columns && is_aligned_for_library(x.pointer),
               y_lies = whole && y.row_stride == full_.features && is_aligned_for_library(y.pointer);
    Buffer padded, results;
    const BFloat16* from = x.as<const BFloat16>();
    if (!x_lies) {
      padded = work_.scratch(static_cast<std::size_t>(rows * full_.columns) * sizeof(BFloat16));
      const TensorView all = padded.view(DType::kBF16, {rows, full_.columns});
      copy_rows(work_, all.row_slice(0, count), x);
      if (!whole) {
        const TensorView behind = all.row_slice(count, rows - count);
        work_.device().zero(behind.pointer, behind.bytes());
      }
      from = padded.as<BFloat16>();
    }
    if (!y_lies) results = work_.scratch(static_cast<std::size_t>(rows * full_.features) * sizeof(float));
    plan_->multiply(y_lies ? y.as<float>() : results.as<float>(), from, w, rows);
    if (!y_lies) copy_rows(work_, y, results.view(DType::kF32, {rows, full_.features}).row_slice(0, count));
  }

  const CudaWork& work_;
  const DenseShape full_;
  const std::unique_ptr<DensePlan> plan_;
  const std::vector<std::int64_t> rows_;
  const std::string text_;
};

class LibraryProducts final : public DenseProducts {
 public:
  LibraryProducts(CudaWork& work, DenseLibrary& library) : work_(work), library_(library) {}

  const FixedProduct* find(std::int64_t features, std::int64_t columns) override {
    if (features * columns < std::max<std::int64_t>(1, library_.least_numbers())) return nullptr;
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = shapes_.try_emplace({features, columns});
    if (fresh) decide(shapes_, at, [&] { return try_shape({planned_rows(features), features, columns}); });
    ++at->second.asked;
    return at->second.product.get();
  }

  void add_gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_gram_start(before);
    std::int64_t summed = 0;
    const bool whole = before == 0 && x.rows() >= kWholeSum && sums(x.dtype, x.cols()),
               lies = x.row_stride == x.cols() && is_aligned_for_library(x.pointer) &&
                      g.row_stride % kDenseStep == 0 && is_aligned_for_library(g.pointer);
    if (whole && lies)
      for (const Panel& panel : panels(x.cols(), g.row_stride)) {
        panel.plan->add(g.as<float>() + panel.first * (g.row_stride + 1), x.as<const BFloat16>());
        summed = kWholeSum;
      }
    if (summed < x.rows()) accumulate_gram(work_, g, x.row_slice(summed, x.rows() - summed));
  }

  // Of the widest weights and Gram matrices that are usual: results, inputs and a panel of a trial, and what
  // the library works in.
  std::uint64_t reserved_bytes() const override { return std::uint64_t{640} << 20; }

  std::vector<KernelChoice> choices() const override {
    const std::lock_guard lock(mutex_);
    std::vector<KernelChoice> choices;
    for (const auto& [shape, choice] : shapes_)
      choices.push_back({weights_text(shape.first, shape.second),
                         choice.product ? choice.product->text() : kOwn, choice.why, choice.asked});
    for (const auto& [square, choice] : squares_)
      choices.push_back(
          {gram_text(square.first), choice.panels.empty() ? kOwn : choice.text, choice.why, choice.asked});
    return choices;
  }

 private:
  struct Choice {
    std::unique_ptr<const FixedProduct> product;  // null: the own kernels
    std::string why;
    std::int64_t asked = 0;
  };
  struct Panel {
    std::int64_t first = 0;
    std::unique_ptr<PanelPlan> plan;
  };
  struct SquareChoice {
    std::vector<Panel> panels;  // none: the own kernels
    std::string text, why;
    std::int64_t asked = 0;
  };
  inline static const std::string kOwn = "own kernels";

  // Where a trial fails for want of memory nothing was decided.
  template <class Map, class Try>
  static void decide(Map& map, typename Map::iterator at, const Try& attempt) {
    try {
      at->second = attempt();
    } catch (...) {
      map.erase(at);
      throw;
    }
  }

  bool sums(DType dtype, std::int64_t channels) const {
    return dtype == DType::kBF16 && channels % kDenseStep == 0 &&
           channels * channels >= std::max<std::int64_t>(1, library_.least_numbers());
  }

  std::int64_t planned_rows(std::int64_t features) const {
    const std::int64_t held = work_.device().scratch_bytes() / (std::max<std::int64_t>(features, 1) * 4);
    return std::clamp(held / kTrialRows * kTrialRows, kTrialRows, kMostProductRows);
  }

  Choice try_shape(const DenseShape& full) {
    if (full.features % kDenseStep != 0 || full.columns % kDenseStep != 0)
      return {nullptr, fmt::format("the library is asked for multiples of {} alone", kDenseStep)};
    ProductTrial trial(work_, full);
    std::vector<std::string> refused;
    std::vector<std::unique_ptr<DensePlan>> plans =
        passed(library_.plans(full), SIZE_MAX, refused,
               [&](DensePlan& one) { return trial.passes(one, full.rows); });
    if (plans.empty()) return {nullptr, warned(weights_text(full.features, full.columns), refused)};
    std::vector<double> times;
    for (const std::unique_ptr<DensePlan>& one : plans)
      times.push_back(plans.size() == 1 ? 0 : trial.seconds(*one));
    const auto best = std::min_element(times.begin(), times.end()) - times.begin();
    std::unique_ptr<DensePlan> plan = std::move(plans[static_cast<std::size_t>(best)]);
    std::vector<std::int64_t> rows;
    for (std::int64_t fewer = kTrialRows; fewer < full.rows; fewer += kTrialRows)
      if (plan->takes(fewer) && trial.passes(*plan, fewer)) rows.push_back(fewer);
    rows.push_back(full.rows);
    return {std::make_unique<TriedProduct>(work_, library_.name(), full, std::move(plan), std::move(rows)),
            {}};
  }

  const std::vector<Panel>& panels(std::int64_t channels, std::int64_t stride) {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = squares_.try_emplace({channels, stride});
    if (fresh) decide(squares_, at, [&] { return try_square({kWholeSum, channels, stride, 0, 0}); });
    ++at->second.asked;
    return at->second.panels;
  }

  SquareChoice try_square(GramPanel panel) {
    PanelTrial trial(work_, panel, kPanelHeight);
    SquareChoice choice;
    for (panel.first = 0; panel.first < panel.channels; panel.first += kPanelHeight) {
      panel.count = std::min(kPanelHeight, panel.channels - panel.first);
      std::vector<std::string> refused;
      std::vector<std::unique_ptr<PanelPlan>> plan =
          passed(library_.plans(panel), 1, refused, [&](PanelPlan& one) { return trial.passes(one, panel); });
      if (plan.empty()) {
        choice.panels.clear();
        choice.why = warned(gram_text(panel.channels), refused);
        return choice;
      }
      if (panel.first == 0) choice.text = fmt::format("{}: {}", library_.name(), plan.front()->text());
      choice.panels.push_back({panel.first, std::move(plan.front())});
    }
    return choice;
  }

  static std::string weights_text(std::int64_t features, std::int64_t columns) {
    return fmt::format("weights of {} by {}", features, columns);
  }
  static std::string gram_text(std::int64_t channels) {
    return fmt::format("Gram matrices of {} channels", channels);
  }
  static std::string warned(const std::string& what, const std::vector<std::string>& refused) {
    const std::string why = why_none(refused);
    Log::get().warn(fmt::format("{} have the own kernels: {}", what, why));
    return why;
  }

  CudaWork& work_;
  DenseLibrary& library_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::int64_t, std::int64_t>, Choice> shapes_;         // by features and columns
  std::map<std::pair<std::int64_t, std::int64_t>, SquareChoice> squares_;  // by channels and stride
};

}  // namespace

std::unique_ptr<DenseProducts> make_library_products(CudaWork& work, DenseLibrary& library) {
  return std::make_unique<LibraryProducts>(work, library);
}

}  // namespace llmq
