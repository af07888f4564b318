#include "job/input_files.h"

#include <set>

#include "base/checked.h"
#include "calibration/calibration_text.h"
#include "export/formats/output_format.h"
#include "model/adapters/lora_adapter.h"

namespace llmq {
namespace {

InputFile named(const std::string& role, const Path& path) {
  return {role + "/" + path.filename().string(), path, role == "model" || role == "adapter"};
}

void add_adapter_files(Io& io, const std::string& adapter, std::vector<InputFile>& files) {
  if (adapter.empty()) return;
  for (const Path& path : LoraAdapter::files(io, adapter)) files.push_back(named("adapter", path));
}

}  // namespace

std::vector<InputFile> model_files(Io& io, const Checkpoint& checkpoint) {
  std::vector<InputFile> files;
  for (const Path& shard : checkpoint.shards()) files.push_back(named("model", shard));
  for (const Path& config : checkpoint.config_files()) files.push_back(named("model", config));
  if (const Path index = checkpoint.path() / "model.safetensors.index.json";
      !checkpoint.is_gguf() && io.exists(index))
    files.push_back(named("model", index));
  for (const Path& companion : checkpoint.companion_files()) files.push_back(named("model", companion));
  return files;
}

std::vector<InputFile> conversion_files(Io& io, const Checkpoint& checkpoint, const ConvertRequest& request) {
  std::vector<InputFile> files = model_files(io, checkpoint);
  add_adapter_files(io, request.adapter, files);
  return files;
}

std::vector<InputFile> input_files(Io& io, const Recipe& recipe, bool calibrates,
                                   const Checkpoint& checkpoint) {
  std::vector<InputFile> files = model_files(io, checkpoint);
  add_adapter_files(io, recipe.adapter, files);
  const auto add = [&](const std::string& role, const Path& path) { files.push_back(named(role, path)); };
  if (calibrates)
    for (const std::string& text : recipe.calibration.text) add("calibration", resolve_text(io, text));
  const std::string& importance = recipe.gguf.importance;
  if (is_one_file(recipe.format) && !importance.empty() && importance != "none" &&
      importance != "calibration")
    add("importance", importance);
  if (io.exists(recipe.source)) add("recipe", recipe.source);
  return files;
}

std::vector<ReadPass> whole_file_reads(const LoadedModel& model, Io& model_io, DigestCache& digests) {
  const Checkpoint& checkpoint = model.checkpoint;
  std::uint64_t opening = 0, hashing = 0;
  const std::set<Path> shards(checkpoint.shards().begin(), checkpoint.shards().end());
  std::vector<InputFile> files = model_files(model_io, checkpoint);
  if (model.adapter) add_adapter_files(model_io, model.adapter->directory, files);
  for (const InputFile& file : files) {
    const std::uint64_t bytes = round_up(model_io.open(file.path)->size(), kIoBlock);
    hashing += bytes * static_cast<std::uint64_t>(digests.readings(file.path, model_io));
    if (shards.count(file.path) == 0 && file.name.starts_with("model/")) opening += bytes;
  }
  std::vector<ReadPass> passes = {
      {"headers, configuration and tokenizer", opening + checkpoint.header_bytes()}};
  if (model.adapter) passes.push_back({"the adapter, checked", model.adapter->opening_bytes});
  if (hashing != 0) passes.push_back({"SHA-256 of the model's files", hashing});
  return passes;
}

std::uint64_t companion_bytes(const Checkpoint& checkpoint, Io& model_io) {
  std::uint64_t bytes = 0;
  for (const Path& companion : checkpoint.companion_files()) bytes += model_io.open(companion)->size();
  return bytes;
}

}  // namespace llmq
