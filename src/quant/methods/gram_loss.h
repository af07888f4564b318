// What a change of weights costs on the calibration inputs, row by row, without running them:
//
//   loss[n] = d[n] G d[n]^T = sum_t (x_t . d[n])^2,   d = W_quantized - W,  G = sum_t x_t^T x_t
//
// Rows are made a chunk at a time, by the callers' function or, where rounding to nearest is judged, on the
// device (device/difference_maker.h), and judged by Backend::quadratic_form: nothing of the size of W is
// kept. Cost: 2 K^2 products per row; each chunk reads G.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/threads.h"
#include "calibration/input_stats.h"
#include "device/backend.h"
#include "device/difference_maker.h"
#include "quant/methods/rounding.h"
#include "ranks/ranks.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

class GramLoss {
 public:
  // `gram` is a full symmetric square [channels, channels]; products in `compute`. Further devices that have
  // memory of their own judge rows beside the backend; no row's loss depends on where it is judged. So ranks
  // that all have the matrix are dealt rows, too, and tell each other what they lose: evaluate() and the like
  // are of all of them, with the same rows.
  GramLoss(std::span<const float> gram, std::int64_t channels, Backend& backend, Compute compute,
           std::span<const std::shared_ptr<Backend>> further_devices = {}, Ranks& ranks = alone());
  GramLoss(const InputStats& stats, Backend& backend, Compute compute,
           std::span<const std::shared_ptr<Backend>> further_devices = {}, Ranks& ranks = alone())
      : GramLoss(stats.gram_square(backend.workers()), stats.channels(), backend, compute, further_devices,
                 ranks) {}

  // How many rows of differences are judged in one call of Backend::quadratic_form, which reads the whole
  // square: as many as stay in the cache of the host, kHostBytes; a quarter of the scratch of a device that
  // has memory of its own, for its matrix units are fed by rows that share what is read of the square. No
  // row's loss depends on it. device_scratch: bytes that operations may take of a device's own memory; 0: it
  // has none.
  static constexpr std::int64_t kHostBytes = std::int64_t{2} << 20;
  static std::int64_t rows_at_once(std::int64_t channels, std::uint64_t device_scratch);
  // Those rows and their products, on a device rounded to BF16, too; the backend keeps their memory.
  static std::uint64_t buffer_bytes(std::uint64_t channels, std::uint64_t device_scratch);

  // loss[i] for i in [0, loss.size()): make_row(i, d) writes the `channels` differences of item i; called
  // from the threads of the pool, which is the backend's, and of further devices.
  void evaluate(std::span<double> loss, const std::function<void(std::int64_t item, float* d)>& make_row,
                ThreadPool& pool);

  // What rounding rows to nearest loses. loss[c][i]: row i of rows_of(), scaled by s[c] before and by 1 /
  // s[c] after (scaled_difference()).
  struct Row {
    const float* weight;
    const QuantScheme* scheme;  // one object for all rows that share it: those are judged at once
  };
  std::vector<std::vector<double>> scaled_losses(std::int64_t rows,
                                                 const std::function<Row(std::int64_t row)>& row_of,
                                                 std::span<const std::vector<float>* const> s,
                                                 ThreadPool& pool);
  // loss[i * shrinks + j]: row i, one group, its range shrunk by shrinks[j] (round_difference()).
  struct Shrink {
    float low, high;
  };
  struct RangedRow {
    const float* weight;
    GroupRange range;
  };
  std::vector<double> shrunk_losses(std::int64_t rows,
                                    const std::function<RangedRow(std::int64_t row)>& row_of,
                                    std::span<const Shrink> shrinks, const QuantScheme& scheme,
                                    ThreadPool& pool);

 private:
  struct OnDevice {
    Backend* backend = nullptr;
    DifferenceMaker* maker = nullptr;  // where differences are made there
    std::unique_ptr<PreparedWeight> gram;
    // F32 [the most at once so far, channels] on the device: differences, and what they are made of
    Buffer rows, weight;
    std::unique_ptr<float[]> staging;  // either on the host, where the device's memory is closed to it
    std::int64_t staged = 0;           // rows that it has room for
  };
  // Whose scales the devices' makers do not choose.
  static bool has_float_groups(std::int64_t rows, const std::function<Row(std::int64_t row)>& row_of);
  bool makes_differences() const;
  // work(device, first, count, pool) for every chunk of this rank's of `total` items, on all devices side by
  // side.
  template <class Work>
  void each_chunk(std::int64_t total, ThreadPool& pool, const Work& work);
  Buffer& with_room(OnDevice& device, Buffer OnDevice::*held, std::int64_t rows) const;
  float* staging(OnDevice& device, std::int64_t rows) const;
  void judge(OnDevice& device, std::span<double> loss) const;  // of device.rows
  void evaluate_on(OnDevice& device, std::int64_t first, std::span<double> loss,
                   const std::function<void(std::int64_t item, float* d)>& make_row, ThreadPool& pool) const;

  std::int64_t channels_, chunk_;
  Ranks& ranks_;
  std::vector<OnDevice> devices_;
};

// The loss of each row of `matrix` against the weight it came from, differences times in_scale per channel
// where given.
std::vector<double> row_losses(const QuantizedMatrix& matrix, std::span<const float> weight, GramLoss& gram,
                               ThreadPool& pool, std::span<const float> in_scale = {});
// The loss of the weight itself, tr(W G W^T), for relative errors.
double output_energy(std::span<const float> weight, std::int64_t rows, std::int64_t channels, GramLoss& gram,
                     ThreadPool& pool);
double sum_in_order(std::span<const double> values);

// The Gram matrix that the readers of an input share; where nobody does, one of the problem's statistics,
// which `made` holds.
template <class Problem>
GramLoss& gram_of(const Problem& problem, std::optional<GramLoss>& made, Backend& backend, Compute compute) {
  return problem.gram != nullptr ? *problem.gram : made.emplace(*problem.stats, backend, compute);
}

}  // namespace llmq
