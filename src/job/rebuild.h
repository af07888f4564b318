// llmq verify --rebuild: the job that a manifest speaks of, run again beside the output and held against it
// file by file.
//
// Of the manifest, the recipe is believed as far as a recipe file would be: it names a model, texts and an
// importance matrix to be read, all of them held against the recorded digests before anything is computed.
// Where it would have something written (`output`, `gguf.imatrix_out`) it is not asked. The new files lie in
// "<output>.rebuild.unfinished/" until they have been compared; they never get a name, and go with the
// process's end, however it ends but by a kill, after which the next rebuild removes them.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "job/job_settings.h"
#include "job/recorded_job.h"

namespace llmq {

// Something that the manifest says of the making and that is otherwise here.
struct OtherMaking {
  std::string what, then, now;  // "llmq", "0.1.0 (abc1234)", "0.2.0 (def5678)"
};

struct Rebuild {
  std::vector<OtherMaking> otherwise;
  std::vector<Mismatch> inputs;  // read then and not the same now; nothing was rebuilt where there are any
  RebuiltFiles files;
  bool ok() const { return inputs.empty() && files.outputs.empty(); }
  Json to_json() const;
};

struct RebuildRequest {
  Path output;
  std::string model;       // in place of the recipe's, unless empty
  BackendRequest backend;  // its arithmetic is the recorded one's, where that can be had
  std::uint64_t memory_limit = 0;
  Program program;
  std::function<void()> on_step = [] {};  // between two steps; may throw to stop
};
Rebuild rebuild_output(Io& io, const RebuildRequest& asked);

}  // namespace llmq
