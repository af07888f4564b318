// The FP64 triangle of one input: chunk sums from the backend are added in order, so nothing depends on
// threads.
//
// Memory: K (K + 1) / 2 doubles on the host; while an input is collected, F32 [K, K] on the device, and
// kGramTokens rows, or those that a device sums at once (Backend::gram_rows()), where views end between
// multiples of them. Where devices share an input, each has
// that square, and the triangle of FP32 sums passes through the host when a view does not end at a multiple
// of kGramChunkRows.
#include "calibration/input_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

constexpr std::int64_t kBandNumbers = std::int64_t{1} << 20;  // of a square on its way through the host

constexpr std::uint64_t kMagic = 0x3174617473716c6c;  // "llqstat1"
constexpr std::int64_t kMostChannels = 1 << 20;

std::size_t triangle_size(std::int64_t channels) {
  return static_cast<std::size_t>(channels * (channels + 1) / 2);
}

template <typename T>
void put(std::vector<std::byte>& bytes, const T* values, std::size_t count) {
  const auto* raw = reinterpret_cast<const std::byte*>(values);
  bytes.insert(bytes.end(), raw, raw + count * sizeof(T));
}

// `from` has at least count * sizeof(T) bytes: load() checked the whole size.
template <typename T>
void take(std::span<const std::byte>& from, T* values, std::size_t count) {
  std::memcpy(values, from.data(), count * sizeof(T));
  from = from.subspan(count * sizeof(T));
}

}  // namespace

InputStats::InputStats(std::int64_t channels)
    : channels_(channels),
      absolute_sum_(static_cast<std::size_t>(channels)),
      absolute_max_(static_cast<std::size_t>(channels)),
      triangle_(triangle_size(channels)) {}

StatsCollector::StatsCollector(Backend& backend, InputStats& into, std::int64_t gram_tokens, bool alone)
    : backend_(backend), into_(into), gram_tokens_(gram_tokens), alone_(alone) {
  const std::int64_t channels = into.channels_;
  if (gram_tokens == 0) return;
  square_ = backend.allocate(static_cast<std::size_t>(channels * channels) * sizeof(float));
  gram_ = square_.view(DType::kF32, {channels, channels});
  clear();
  GramTotals* const totals = backend.extensions().gram_totals;
  if (alone && totals != nullptr && into.tokens_ == 0) total_ = totals->gram_total(channels);
}

// Some rows at a time, and memory for them on the host.
void StatsCollector::each_band(const std::function<void(const TensorView& rows, std::vector<float>& band,
                                                        std::int64_t first)>& visit) const {
  const std::int64_t channels = gram_.cols(), most = std::max<std::int64_t>(1, kBandNumbers / channels);
  std::vector<float> band;
  for (std::int64_t first = 0; first < channels; first += most) {
    const TensorView rows = gram_.row_slice(first, std::min(most, channels - first));
    band.assign(static_cast<std::size_t>(rows.shape.elements()), 0.0f);
    visit(rows, band, first);
  }
}

void StatsCollector::clear() {
  if (backend_.device().kind != DeviceKind::kHost) return backend_.clear(gram_);
  // On the host memory below the diagonal is not touched, and so takes no room, before the square is drained
  // or handed on.
  const std::int64_t channels = gram_.cols();
  const std::vector<float> zeros(static_cast<std::size_t>(channels));
  for (std::int64_t i = 0; i < channels; ++i)
    backend_.upload(TensorView(gram_.row<float>(i) + i, DType::kF32, {1, channels - i}, gram_.device),
                    zeros.data());
}

void StatsCollector::add(const TensorView& x) {
  backend_.channel_stats(x, into_.absolute_sum_, into_.absolute_max_);
  const std::int64_t wanted = std::min(x.rows(), gram_tokens_ - summed_ - waiting_);
  const std::int64_t begun = std::exchange(begun_, 0);
  if (begun > 0) count(begun);
  if (wanted > begun) sum(x.row_slice(begun, wanted - begun));
  into_.tokens_ += x.rows();
  seen_ += x.rows();
}

void StatsCollector::begin(const TensorView& x, std::int64_t before) {
  if (before % kGramChunkRows != 0) return;  // its first rows go into a sum that others began
  const std::int64_t wanted = std::min({x.rows(), gram_tokens_ - before, kGramChunkRows});
  begun_ = std::max<std::int64_t>(wanted, 0) / step(x.dtype) * step(x.dtype);
  if (begun_ > 0) backend_.gram(gram_, x.row_slice(0, begun_), 0);
}

StatsCollector::Undrained StatsCollector::hand_over() {
  Undrained left{pending_, summed_, seen_, waiting_, {}, {}, odd_rows_.dtype};
  if (pending_ > 0) {
    left.triangle.resize(into_.triangle_.size());
    float* to = left.triangle.data();
    each_band([&](const TensorView& rows, std::vector<float>& band, std::int64_t first) {
      backend_.download(band.data(), rows);
      for (std::int64_t i = 0; i < rows.rows(); ++i)
        to = std::copy(band.begin() + i * rows.cols() + first + i, band.begin() + (i + 1) * rows.cols(), to);
    });
    clear();
  }
  if (waiting_ > 0) {
    const TensorView rows = odd_rows_.row_slice(0, waiting_);
    left.rows.resize(static_cast<std::size_t>(rows.bytes()));
    backend_.download(left.rows.data(), rows);
  }
  return left;
}

void StatsCollector::take_over(const Undrained& left) {
  pending_ = left.pending;
  summed_ = left.summed;
  seen_ = left.seen;
  waiting_ = left.waiting;
  if (pending_ > 0) {
    const float* from = left.triangle.data();
    each_band([&](const TensorView& rows, std::vector<float>& band, std::int64_t first) {
      for (std::int64_t i = 0; i < rows.rows(); ++i) {
        const std::int64_t count = rows.cols() - first - i;
        std::copy_n(from, count, band.begin() + i * rows.cols() + first + i);
        from += count;
      }
      backend_.upload(rows, band.data());
    });
  }
  if (waiting_ > 0) {
    make_odd(left.dtype);
    backend_.upload(odd_rows_.row_slice(0, waiting_), left.rows.data());
  }
}

void StatsCollector::count(std::int64_t rows) {
  pending_ += rows;
  summed_ += rows;
  if (pending_ == kGramChunkRows) drain();
}

// Rows are summed so many at a time, counted from the first of all: what is over at the end of a view waits
// for the next.
void StatsCollector::sum(const TensorView& x) {
  const std::int64_t at_once = step(x.dtype);
  std::int64_t first = 0;
  if (waiting_ > 0) {
    first = std::min(at_once - waiting_, x.rows());
    keep(x.row_slice(0, first));
    if (waiting_ < at_once) return;
    waiting_ = 0;
    sum_whole(odd_rows_);
  }
  const std::int64_t whole = (x.rows() - first) / at_once * at_once, rest = x.rows() - first - whole;
  if (whole > 0) sum_whole(x.row_slice(first, whole));
  if (rest > 0) keep(x.row_slice(first + whole, rest));
}

void StatsCollector::sum_whole(const TensorView& x) {
  for (std::int64_t first = 0; first < x.rows();) {
    const std::int64_t rows = std::min(kGramChunkRows - pending_, x.rows() - first);
    backend_.gram(gram_, x.row_slice(first, rows), pending_);
    first += rows;
    count(rows);
  }
}

void StatsCollector::make_odd(DType dtype) {
  if (odd_.bytes() != 0) return;
  const Shape shape{step(dtype), into_.channels_};
  odd_ = backend_.allocate(static_cast<std::size_t>(shape.elements() * element_bytes(dtype)));
  odd_rows_ = odd_.view(dtype, shape);
}

void StatsCollector::keep(const TensorView& x) {
  if (x.rows() == 0) return;
  make_odd(x.dtype);
  const TensorView to = odd_rows_.row_slice(waiting_, x.rows());
  if (!backend_.copy_from(to, backend_, x)) {
    std::vector<std::byte> rows(static_cast<std::size_t>(x.bytes()));
    backend_.download(rows.data(), x);
    backend_.upload(to, rows.data());
  }
  waiting_ += x.rows();
}

void StatsCollector::drain() {
  if (pending_ != 0 && total_) total_->drain(gram_);
  if (pending_ != 0 && !total_) backend_.drain_gram(into_.triangle_, gram_);
  pending_ = 0;
}

void StatsCollector::finish() {
  if (waiting_ > 0) sum_whole(odd_rows_.row_slice(0, waiting_));
  waiting_ = 0;
  drain();
  if (total_) total_->read(into_.triangle_);
  total_.reset();
  if (summed_ == seen_ || summed_ == 0) return;
  const double share = static_cast<double>(seen_) / static_cast<double>(summed_);
  for (double& sum : into_.triangle_) sum *= share;
}

void InputStats::add(Backend& backend, const TensorView& x) {
  StatsCollector collector(backend, *this);
  collector.add(x);
  collector.finish();
}

void InputStats::merge(const InputStats& other) {
  if (other.channels_ != channels_)
    fail(ErrorKind::kInternal, "statistics of {} and {} channels do not merge", channels_, other.channels_);
  tokens_ += other.tokens_;
  for (std::size_t i = 0; i < absolute_sum_.size(); ++i) {
    absolute_sum_[i] += other.absolute_sum_[i];
    absolute_max_[i] = std::max(absolute_max_[i], other.absolute_max_[i]);
  }
  for (std::size_t i = 0; i < triangle_.size(); ++i) triangle_[i] += other.triangle_[i];
}

void InputStats::add_prior(const InputStats& other, std::int64_t tokens, double square) {
  if (other.channels_ != channels_ || other.tokens_ == 0)
    fail(ErrorKind::kInternal, "statistics of {} rows and {} channels are no prior for {} channels",
         other.tokens_, other.channels_, channels_);
  const double share = static_cast<double>(tokens) / static_cast<double>(other.tokens_);
  tokens_ += tokens;
  for (std::size_t i = 0; i < absolute_sum_.size(); ++i) {
    absolute_sum_[i] += share * std::sqrt(square) * other.absolute_sum_[i];
    absolute_max_[i] = std::max(absolute_max_[i], other.absolute_max_[i]);
  }
  for (std::size_t i = 0; i < triangle_.size(); ++i) triangle_[i] += share * square * other.triangle_[i];
}

std::vector<double> InputStats::mean_absolute() const {
  std::vector<double> mean = absolute_sum_;
  for (double& value : mean) value /= static_cast<double>(std::max<std::int64_t>(tokens_, 1));
  return mean;
}

std::vector<double> InputStats::gram_diagonal() const {
  std::vector<double> diagonal;
  for (std::int64_t k = 0; k < channels_; ++k) diagonal.push_back(gram_at(k, k));
  return diagonal;
}

ZeroedNumbers<float> InputStats::gram_square(ThreadPool& pool) const {
  const std::int64_t k = channels_;
  ZeroedNumbers<float> square(static_cast<std::size_t>(k * k));
  // a line of the cache: the mirror image would miss it with every element
  constexpr std::int64_t kTile = 16;
  // [j] for j >= i
  const auto row_of = [&](std::int64_t i) { return triangle_.data() + (i * (k - 1) - i * (i - 1) / 2); };
  pool.parallel_for(static_cast<std::size_t>((k + kTile - 1) / kTile), [&](std::size_t item, int) {
    const std::int64_t top = static_cast<std::int64_t>(item) * kTile, end = std::min(k, top + kTile);
    for (std::int64_t j = 0; j < end; ++j)
      for (std::int64_t i = std::max(top, j + 1); i < end; ++i)
        square[static_cast<std::size_t>(i * k + j)] = static_cast<float>(row_of(j)[i]);
    for (std::int64_t i = top; i < end; ++i)
      for (std::int64_t j = i; j < k; ++j)
        square[static_cast<std::size_t>(i * k + j)] = static_cast<float>(row_of(i)[j]);
  });
  return square;
}

void InputStats::divide_channels(std::span<const float> s) {
  const auto k = static_cast<std::size_t>(channels_);
  for (std::size_t i = 0, at = 0; i < k; ++i) {
    absolute_sum_[i] /= static_cast<double>(s[i]);
    absolute_max_[i] /= s[i];
    for (std::size_t j = i; j < k; ++j)
      triangle_[at++] /= static_cast<double>(s[i]) * static_cast<double>(s[j]);
  }
}

std::vector<std::byte> InputStats::save() const {
  std::vector<std::byte> bytes;
  put(bytes, &kMagic, 1);
  put(bytes, &channels_, 1);
  put(bytes, &tokens_, 1);
  put(bytes, absolute_sum_.data(), absolute_sum_.size());
  put(bytes, absolute_max_.data(), absolute_max_.size());
  put(bytes, triangle_.data(), triangle_.size());
  return bytes;
}

InputStats InputStats::load(std::span<const std::byte> bytes, const std::string& file) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorKind::kBadInput, {what, file, {}, "take the statistics again"});
  };
  std::uint64_t magic = 0;
  std::int64_t channels = 0, tokens = 0;
  constexpr std::size_t kHeader = sizeof magic + sizeof channels + sizeof tokens;
  if (bytes.size() < kHeader)
    bad(fmt::format("{} bytes are too few for calibration statistics", bytes.size()));
  std::span<const std::byte> rest = bytes;
  take(rest, &magic, 1);
  take(rest, &channels, 1);
  take(rest, &tokens, 1);
  if (magic != kMagic) bad("this is not a file of calibration statistics");
  if (channels < 1 || channels > kMostChannels || tokens < 0)
    bad(fmt::format("it claims {} channels and {} tokens", channels, tokens));
  const std::size_t expected = static_cast<std::size_t>(channels) * (sizeof(double) + sizeof(float)) +
                               triangle_size(channels) * sizeof(double);
  if (rest.size() != expected)
    bad(fmt::format("{} channels need {} bytes, it has {}", channels, expected + kHeader, bytes.size()));
  InputStats stats(channels);
  stats.tokens_ = tokens;
  take(rest, stats.absolute_sum_.data(), stats.absolute_sum_.size());
  take(rest, stats.absolute_max_.data(), stats.absolute_max_.size());
  take(rest, stats.triangle_.data(), stats.triangle_.size());
  const auto negative_or_odd = [](auto value) { return !(std::isfinite(value) && value >= 0); };
  if (std::any_of(stats.absolute_sum_.begin(), stats.absolute_sum_.end(), negative_or_odd) ||
      std::any_of(stats.absolute_max_.begin(), stats.absolute_max_.end(), negative_or_odd) ||
      !std::all_of(stats.triangle_.begin(), stats.triangle_.end(), [](double v) { return std::isfinite(v); }))
    bad("it holds a value that no statistics have");
  return stats;
}

}  // namespace llmq
