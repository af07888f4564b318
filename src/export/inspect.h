// What a checkpoint is, from headers and a few numbers (export/formats/fused_scales.h): family, sizes,
// scheme, bits per weight, tensors; errors per module from report.json when there is one.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "export/formats/loader_constraints.h"
#include "export/output/model_writer.h"

namespace llmq {

struct ListedTensor {
  std::string name, dtype;
  Shape shape;
  std::uint64_t bytes = 0;
};

struct InspectedModule {
  PlannedModule planned;
  double bits_per_weight = 0;
  Json quality;  // this module's entry of report.json; null without
};

struct Inspection {
  std::string path, family, architecture, format, scheme;  // scheme of a dense checkpoint: its type, "bf16"
  std::string note;  // why the model's structure is not known to llmq, when it is not
  std::int64_t parameters = 0;
  std::optional<WrapperSpec> wrapper;
  CarriedSpec carried;      // what lies beside the decoder; its parameters are among those above
  std::uint64_t bytes = 0;  // of all tensors
  double bits_per_weight = 0,
         bits_per_weight_total =
             0;  // over the quantized linears (dense: all linears of blocks), over the model
  std::vector<ListedTensor> tensors;
  std::vector<InspectedModule> modules;  // packed linears
  std::vector<LoaderVerdict> loaders;    // of a packed checkpoint in a container that llmq writes
  Json report;                           // report.json; null without

  // Schema llmq.inspect/1. Tensors and modules are listed when asked for.
  Json to_json(bool with_tensors, bool with_quality) const;
};

// Error(kBadInput) when `with_quality` is asked of a checkpoint without report.json.
Inspection inspect(Io& io, const std::string& model, bool with_quality);

}  // namespace llmq
