// README.md of an output: front matter as the Hugging Face hub reads it, what was done, what was measured,
// and how to load it.
//
// Only figures that were measured appear, and only loaders whose constraints this checkpoint meets; for the
// others, why not.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "export/formats/loader_constraints.h"
#include "export/report/report.h"

namespace llmq {

// One row of the measured table: the original and each variant.
struct MeasuredRow {
  std::string name;  // "original (BF16)", "this model"
  std::uint64_t bytes = 0;
  double bits_per_weight = 0;
  double ppl = 0, ppl_stderr = 0;
  std::optional<double> kl_mean, top1_agreement;  // against the original; top-1 from 0 to 1
};

struct CardFacts {
  std::string title;  // of the page: the output directory's name
  std::string protocol,
      text;  // of the measurement: "hf-2048, 16 windows", "WikiText-2 test"; empty when nothing was measured
  std::vector<MeasuredRow> measured;
};

std::string make_model_card(const RunFacts& run, const CardFacts& card,
                            std::span<const LoaderVerdict> loaders);

}  // namespace llmq
