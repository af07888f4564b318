// The job that a manifest speaks of, as far as it is believed when it is run again (job/rebuild.h): its
// recipe, its inputs, and where the new files may lie meanwhile.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "export/provenance/manifest.h"
#include "export/provenance/verify.h"
#include "job/input_files.h"
#include "quant/recipe/recipe.h"

namespace llmq {

ProvenanceFacts recorded_facts(Io& io, const Path& output);
// The files that a run of the same job makes alike; not those that say how long it took.
std::vector<NamedDigest> recorded_files(Io& io, const Path& output);
// Without what it would have written elsewhere.
Recipe recorded_recipe(const ProvenanceFacts& facts, const Path& output);

// What changed the inputs of a model's linears since it was trained, each once and in this order: what its
// manifest says of its source and of its own job, and what its config.json tells of transforms, or, without a
// manifest, of AWQ. The checkpoint is as it was opened: unpacked() shows no such config.
inline constexpr const char *kByAwq = "AWQ", *kBySmoothQuant = "SmoothQuant", *kByRotation = "a rotation";
std::vector<std::string> changes_of_linears(const Checkpoint& checkpoint);

// Where the new files lie: beside the output, where nothing else does.
Path rebuilt_directory(Io& io, const Path& output);
Path rebuilt_file(const Path& output);  // of NAME.gguf: NAME.rebuild.gguf

// Recorded inputs against the files that would be read now. `on_file` before each is hashed; may throw.
std::vector<Mismatch> changed_inputs(Io& io, std::vector<NamedDigest> recorded,
                                     const std::vector<InputFile>& files,
                                     const std::function<void()>& on_file);

// The recorded files of an output against the new ones, which lie in a directory or are one file.
struct RebuiltFiles {
  std::size_t compared = 0;
  std::vector<Mismatch> outputs;  // by path; found: of the rebuilt file
  std::string first_tensor;       // of the first that differs; empty where it holds none
};
RebuiltFiles compare_rebuilt(Io& io, const Path& output, const Path& rebuilt);

}  // namespace llmq
