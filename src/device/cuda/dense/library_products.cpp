// A library's products for calibration, where they have the bits of the own kernels: what a run computes does
// not depend on whether the library is there.
//
// A library promises the same bits for the same call, not the own kernels' bits, nor the same ones for a row
// at another place or among fewer. So each weight's shape is tried when its first weight comes
// (product_trial.h): of the algorithms that the library offers for as many rows as go at once (4,096, or what
// the scratch memory holds of results), those pass whose every row has the own kernels' bits, and the
// fastest of them is taken, for every smaller multiple of 256 rows that passes as well. An algorithm whose
// call fails does not pass. Where none passes, or there is no memory to try one, the own kernels multiply,
// said in log and report.
//
// Rows over a multiple of 256, and numbers of rows that did not pass, go through scratch memory with zeros
// behind.
//
// Gram matrices: sums of 4,096 rows, in panels of 1,024 rows of the upper triangle, each by the first
// algorithm that passes. From 2,048 rows on a sum goes through scratch memory with rows of zeros behind. They
// add +0, by which no sum changes but -0, which becomes +0. A sum, which begins at +0, is -0 only where a
// negative product too small for FP32 was added to a zero; and what it is drained into begins at +0 and is
// the same after either zero. Fewer rows, and what goes on with a sum that was begun, are the own kernels'.
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
// On an H100 the own kernels take two to three times what the library takes (docs/measurements/gpu.md): for
// fewer rows they are done before the library has added the zeros.
constexpr std::int64_t kLeastPaddedSum = 2048;
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

// x and zeros behind it, `rows` together, in memory where they lie as the library wants them.
Buffer padded_rows(const CudaWork& work, const TensorView& x, std::int64_t rows) {
  Buffer padded = work.scratch(static_cast<std::size_t>(rows * x.cols()) * sizeof(BFloat16));
  const TensorView all = padded.view(DType::kBF16, {rows, x.cols()}),
                   behind = all.row_slice(x.rows(), rows - x.rows());
  copy_rows(work, all.row_slice(0, x.rows()), x);
  if (behind.rows() > 0) work.device().zero(behind.pointer, behind.bytes());
  return padded;
}

// A call of the library that fails, or memory that is not there: the own kernels do without either.
bool is_without_library(const Error& error) {
  return error.kind() == ErrorKind::kDevice || error.kind() == ErrorKind::kResource;
}

struct Refused {
  std::string algorithm, error;  // empty: it gives other bits
};

// Those that pass; the others are `refused`.
template <class Algorithm, class Passes>
std::vector<std::unique_ptr<Algorithm>> passed(std::vector<std::unique_ptr<Algorithm>> offered,
                                               std::size_t most, std::vector<Refused>& refused,
                                               const Passes& passes) {
  std::vector<std::unique_ptr<Algorithm>> found;
  for (std::unique_ptr<Algorithm>& one : offered) {
    if (found.size() == most) break;
    try {
      if (passes(*one))
        found.push_back(std::move(one));
      else
        refused.push_back({one->text(), {}});
    } catch (const Error& error) {
      if (!is_without_library(error)) throw;
      refused.push_back({one->text(), error.what()});
    }
  }
  return found;
}

std::string why_none(const std::vector<Refused>& refused) {
  if (refused.empty()) return "the library has no algorithm that leaves its sums whole";
  std::string fault;
  if (std::any_of(refused.begin(), refused.end(), [](const Refused& one) { return one.error.empty(); }))
    fault = "gives other bits";
  for (const Refused& one : refused)
    if (!one.error.empty()) {
      fault += (fault.empty() ? "fails: " : " or fails: ") + one.error;
      break;
    }
  return fmt::format(
      "{} of the library, such as {}, {}",
      refused.size() == 1 ? "an algorithm" : fmt::format("each of {} algorithms", refused.size()),
      refused.front().algorithm, fault);
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
                         whole = left / kTrialRows * kTrialRows,
                         count = std::min(left, rows_for(whole > 0 ? whole : left));
      multiply_part(y.row_slice(first, count), x.row_slice(first, count), w.as<BFloat16>());
      first += count;
    }
    if (bias == nullptr || x.rows() == 0) return;
    const cuda::Rows every{const_cast<float*>(bias), 0, cuda::Element::kF32};
    work_.start("linear (bias)", work_.kernels().add,
                {y.rows() * y.cols(), y.cols(), rows_of(y), every, 1.0f}, y);
  }

 private:
  // The fewest that passed and are not fewer than `count`.
  std::int64_t rows_for(std::int64_t count) const {
    return *std::lower_bound(rows_.begin(), rows_.end(), count);
  }

  void multiply_part(const TensorView& y, const TensorView& x, const BFloat16* w) const {
    const std::int64_t count = x.rows(), rows = rows_for(count);
    const bool whole = rows == count,
               x_lies = whole && x.row_stride == full_.columns && is_aligned_for_library(x.pointer),
               y_lies = whole && y.row_stride == full_.features && is_aligned_for_library(y.pointer);
    Buffer padded, results;
    const BFloat16* from = x.as<const BFloat16>();
    if (!x_lies) {
      padded = padded_rows(work_, x, rows);
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
    Choice& choice = decided(shapes_, {features, columns}, weights_text(features, columns), [&] {
      return try_shape({planned_rows(features), features, columns});
    });
    ++choice.asked;
    return choice.product.get();
  }

  void add_gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_gram_start(before);
    std::int64_t summed = 0;
    if (sums(x.dtype, x.cols()) && g.row_stride % kDenseStep == 0 && is_aligned_for_library(g.pointer)) {
      if (before == 0 && x.rows() >= kLeastPaddedSum)
        summed = add_whole_sum(g, x.row_slice(0, std::min(x.rows(), kWholeSum)));
      else if (x.rows() > 0)
        note_own_sum(x.cols(), fmt::format("fewer than {} rows came at once", kLeastPaddedSum));
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
    for (const auto& [sum, asked] : own_sums_)
      choices.push_back({"some " + gram_text(sum.first), kOwn, sum.second, asked});
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

  // What is decided for the key, once. A trial that fails as a whole leaves it to the own kernels, for good:
  // a run should not try each weight anew.
  template <class Map, class Try>
  static typename Map::mapped_type& decided(Map& map, const typename Map::key_type& key,
                                            const std::string& what, const Try& attempt) {
    if (const auto at = map.find(key); at != map.end()) return at->second;
    typename Map::mapped_type choice;
    try {
      choice = attempt();
    } catch (const Error& error) {
      if (!is_without_library(error)) throw;
      choice = {};
      choice.why = warned(what, fmt::format("the trial failed: {}", error.what()));
    }
    return map.emplace(key, std::move(choice)).first->second;
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
    std::vector<Refused> refused;
    std::vector<std::unique_ptr<DensePlan>> plans =
        passed(library_.plans(full), SIZE_MAX, refused,
               [&](DensePlan& one) { return trial.passes(one, full.rows); });
    if (plans.empty()) return {nullptr, warned(weights_text(full.features, full.columns), why_none(refused))};
    std::vector<double> times;
    for (const std::unique_ptr<DensePlan>& one : plans)
      times.push_back(plans.size() == 1 ? 0 : trial.seconds(*one));
    const auto best = std::min_element(times.begin(), times.end()) - times.begin();
    std::unique_ptr<DensePlan> plan = std::move(plans[static_cast<std::size_t>(best)]);
    std::vector<std::int64_t> rows;
    for (std::int64_t fewer = kTrialRows; fewer < full.rows; fewer += kTrialRows)
      if (passes_too(trial, *plan, fewer)) rows.push_back(fewer);
    rows.push_back(full.rows);
    return {std::make_unique<TriedProduct>(work_, library_.name(), full, std::move(plan), std::move(rows)),
            {}};
  }

  static bool passes_too(ProductTrial& trial, DensePlan& plan, std::int64_t fewer) {
    try {
      return plan.takes(fewer) && trial.passes(plan, fewer);
    } catch (const Error& error) {
      if (!is_without_library(error)) throw;
      return false;
    }
  }

  const std::vector<Panel>& panels(std::int64_t channels, std::int64_t stride) {
    const std::lock_guard lock(mutex_);
    SquareChoice& choice = decided(squares_, {channels, stride}, gram_text(channels), [&] {
      return try_square({kWholeSum, channels, stride, 0, 0});
    });
    ++choice.asked;
    return choice.panels;
  }

  // g, which holds nothing yet, is the sum over x, at most kWholeSum rows. Returns how many rows were summed:
  // 0 where the own kernels are to.
  std::int64_t add_whole_sum(const TensorView& g, const TensorView& x) {
    const std::vector<Panel>& tried = panels(x.cols(), g.row_stride);
    if (tried.empty()) return 0;
    Buffer padded;
    const BFloat16* from = x.as<const BFloat16>();
    if (x.rows() < kWholeSum || x.row_stride != x.cols() || !is_aligned_for_library(x.pointer)) {
      try {
        padded = padded_rows(work_, x, kWholeSum);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kResource) throw;
        note_own_sum(x.cols(), "there was no memory for the zeros behind their rows");
        return 0;
      }
      from = padded.as<BFloat16>();
    }
    for (const Panel& panel : tried) panel.plan->add(g.as<float>() + panel.first * (g.row_stride + 1), from);
    return x.rows();
  }

  void note_own_sum(std::int64_t channels, const std::string& why) {
    const std::lock_guard lock(mutex_);
    ++own_sums_[{channels, why}];
  }

  SquareChoice try_square(GramPanel panel) {
    PanelTrial trial(work_, panel, kPanelHeight);
    SquareChoice choice;
    for (panel.first = 0; panel.first < panel.channels; panel.first += kPanelHeight) {
      panel.count = std::min(kPanelHeight, panel.channels - panel.first);
      std::vector<Refused> refused;
      std::vector<std::unique_ptr<PanelPlan>> plan =
          passed(library_.plans(panel), 1, refused, [&](PanelPlan& one) { return trial.passes(one, panel); });
      if (plan.empty()) {
        choice.panels.clear();
        choice.why = warned(gram_text(panel.channels), why_none(refused));
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
  static std::string warned(const std::string& what, const std::string& why) {
    Log::get().warn(fmt::format("{} have the own kernels: {}", what, why));
    return why;
  }

  CudaWork& work_;
  DenseLibrary& library_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::int64_t, std::int64_t>, Choice> shapes_;         // by features and columns
  std::map<std::pair<std::int64_t, std::int64_t>, SquareChoice> squares_;  // by channels and stride
  std::map<std::pair<std::int64_t, std::string>, std::int64_t> own_sums_;  // by channels and why
};

}  // namespace

std::unique_ptr<DenseProducts> make_library_products(CudaWork& work, DenseLibrary& library) {
  return std::make_unique<LibraryProducts>(work, library);
}

}  // namespace llmq
