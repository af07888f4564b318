// The files that a job reads, by the names that its manifest gives them, and what reading them costs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "export/convert.h"
#include "io/checkpoint.h"
#include "io/digest_cache.h"
#include "job/loaded_model.h"
#include "quant/plan/plan_costs.h"
#include "quant/recipe/recipe.h"

namespace llmq {

struct InputFile {
  std::string name;  // "model/config.json", "calibration/c4.utf8"
  Path path;
  bool of_model = false;  // or of the adapter in it
};
// Of those below the model's: shards, configuration and index, and what lies beside them.
std::vector<InputFile> model_files(Io& io, const Checkpoint& checkpoint);
// The model's files, an adapter's, the calibration text, an importance matrix, and the recipe's own file
// where there is one.
std::vector<InputFile> input_files(Io& io, const Recipe& recipe, bool calibrates,
                                   const Checkpoint& checkpoint);

// The model's, and an adapter's that is folded in.
std::vector<InputFile> conversion_files(Io& io, const Checkpoint& checkpoint, const ConvertRequest& request);

// What opening the model and hashing its files read, beside its tensors; what is remembered of a file is not
// read.
std::vector<ReadPass> whole_file_reads(const LoadedModel& model, Io& model_io, DigestCache& digests);
// Of the files that lie beside the model's tensors and are copied as they are.
std::uint64_t companion_bytes(const Checkpoint& checkpoint, Io& model_io);

}  // namespace llmq
