// What the stages of one block share while it is quantized: its weights on every device, the planned linears
// on their way, and what calibration saw of an input.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "calibration/row_sample.h"
#include "quant/methods/gram_loss.h"
#include "quant/pipeline/fold.h"
#include "quant/pipeline/quantize_run.h"

namespace llmq {

// Statistics of all rows of an input, and some rows themselves.
struct SeenInput {
  InputStats stats;
  RowSample rows;
  void divide_channels(std::span<const float> s) {
    stats.divide_channels(s);
    rows.divide_channels(s);
  }
};

// A seen input with its Gram matrix as the backend holds it: made once for all linears that read the input.
struct InputWithGram {
  InputWithGram(SeenInput of, const QuantizeRun& run)
      : seen(std::move(of)),
        stats(seen.stats),
        gram(stats, run.backend, run.plan.compute, run.options.further_devices, run.ranks()) {}
  InputWithGram(const InputWithGram&) = delete;
  InputWithGram& operator=(const InputWithGram&) = delete;
  SeenInput seen;
  const InputStats& stats;
  GramLoss gram;
  std::unique_ptr<PreparedInput> prepared;  // by the rounding, at the first linear
};

class BlockState {
 public:
  BlockState(QuantizeRun& run, int block);

  QuantizeRun& run;
  const int number;
  const BlockSpec& spec;
  std::vector<BlockWeights> weights;  // on every device
  LinearWorks works;                  // those of the sublayer at hand that are opened and not yet quantized
  std::map<SiteId, std::vector<float>> moved;  // scales out of a site's producer into its readers

  std::map<std::string, float> global_scales;  // of schemes of two levels, by what the linears are fused to

  bool is_planned(LinearId id) const { return run.planned.count(spec.at(id).module) != 0; }
  // The linears that read a site and are at work.
  std::vector<LinearId> at_work(SiteId site) const;

  // Reads a planned linear, with its part of what moved before; false where it is not planned.
  bool open(LinearId id);
  // A linear on the devices, as its readers' inputs run through it before it is quantized: read once, also
  // where it is to be quantized.
  void load(LinearId id);
  // The same of a linear that nothing runs through before it is quantized.
  void load_output(LinearId id);
  void put_on_devices(std::span<const float> weight, LinearId id);
  void put_on_devices(const QuantizedMatrix& matrix, LinearId id);
  // A linear as the samples run through it, and away again: of those whose readers are at work later.
  void lend(LinearId id);
  void take_back(LinearId id);
  // What the linear's weight is divided by, if its scheme has two levels, with those at work that an engine
  // fuses it with; 0 for other schemes. Asked for by the first of them, while all are at work.
  float global_scale(LinearId id);
  // The linears of a sublayer that is done leave the devices.
  void release(const SublayerSpec& part);

 private:
  void load_biases(const LinearSpec& linear);
  void warn_of_cut_weights(const LinearWork& work, float global);
  template <class Visit>
  void on_each_device(const Visit& visit) {
    const std::vector<Backend*> devices = run.devices();
    for (std::size_t i = 0; i < devices.size(); ++i) visit(*devices[i], weights[i]);
  }

  std::set<std::string> warned_of_cuts_;
};

// All linears of a sublayer, in the order of its sites.
std::vector<LinearId> linears_of(const BlockSpec& block, const SublayerSpec& part);

}  // namespace llmq
