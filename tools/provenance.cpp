#include "tools/provenance.h"

#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "calibration/calibration_text.h"
#include "model/lora_adapter.h"
#include "tools/version.h"

namespace llmq::tools {

namespace {

InputFile named(const std::string& role, const Path& path) {
  return {role + "/" + path.filename().string(), path, role == "model"};
}

}  // namespace

std::vector<InputFile> model_files(Io& io, const Checkpoint& checkpoint) {
  std::vector<InputFile> files;
  for (const Path& shard : checkpoint.shards()) files.push_back(named("model", shard));
  if (!checkpoint.is_gguf())
    for (const char* name : {"config.json", "model.safetensors.index.json"})
      if (io.exists(checkpoint.path() / name)) files.push_back(named("model", checkpoint.path() / name));
  for (const Path& companion : checkpoint.companion_files()) files.push_back(named("model", companion));
  return files;
}

std::vector<InputFile> conversion_files(Io& io, const Checkpoint& checkpoint, const ConvertRequest& request) {
  std::vector<InputFile> files = model_files(io, checkpoint);
  if (request.adapter.empty()) return files;
  for (const Path& path : LoraAdapter::files(io, request.adapter)) files.push_back(named("adapter", path));
  return files;
}

std::vector<InputFile> input_files(Io& io, const Recipe& recipe, bool calibrates,
                                   const Checkpoint& checkpoint) {
  std::vector<InputFile> files = model_files(io, checkpoint);
  const auto add = [&](const std::string& role, const Path& path) { files.push_back(named(role, path)); };
  if (calibrates)
    for (const std::string& text : recipe.calibration.text) add("calibration", resolve_text(io, text));
  const std::string& importance = recipe.gguf.importance;
  if (recipe.format == "gguf" && !importance.empty() && importance != "none" && importance != "calibration")
    add("importance", importance);
  if (io.exists(recipe.source)) add("recipe", recipe.source);
  return files;
}

std::vector<ReadPass> whole_file_reads(const Checkpoint& checkpoint, Io& model_io, DigestCache& digests) {
  std::uint64_t opening = 0, hashing = 0;
  const std::set<Path> shards(checkpoint.shards().begin(), checkpoint.shards().end());
  for (const InputFile& file : model_files(model_io, checkpoint)) {
    const std::uint64_t bytes = round_up(model_io.open(file.path)->size(), kIoBlock);
    hashing += bytes * static_cast<std::uint64_t>(digests.readings(file.path, model_io));
    if (shards.count(file.path) == 0) opening += bytes;
  }
  std::vector<ReadPass> passes = {
      {"headers, configuration and tokenizer", opening + checkpoint.header_bytes()}};
  if (hashing != 0) passes.push_back({"SHA-256 of the model's files", hashing});
  return passes;
}

std::uint64_t companion_bytes(const Checkpoint& checkpoint, Io& model_io) {
  std::uint64_t bytes = 0;
  for (const Path& companion : checkpoint.companion_files()) bytes += model_io.open(companion)->size();
  return bytes;
}

std::string wanted_arithmetic(const Recipe& recipe) { return recipe.portable ? kPortableArithmetic : ""; }

ProvenanceFacts provenance_facts(const Recipe& recipe, const Backend& backend, Compute compute,
                                 const Session& session) {
  ProvenanceFacts facts;
  facts.version = version_text();
  facts.commit = commit_text();
  facts.command = session.command_line;
  facts.recipe = recipe.to_json();
  facts.compute = compute_name(compute);
  facts.backend = backend.arithmetic();
  return facts;
}

RunProvenance::RunProvenance(Io& io, Io& model_io, DigestCache& digests, std::vector<InputFile> files,
                             ProvenanceFacts facts)
    : io_(io), model_io_(model_io), digests_(digests), files_(std::move(files)), facts_(std::move(facts)) {
  hashing_ = std::async(std::launch::async, [this] { return hash_all(); });
}

RunProvenance::~RunProvenance() {
  stop_ = true;
  if (hashing_.valid()) hashing_.wait();
}

std::vector<RunProvenance::Hashed> RunProvenance::hash_all() {
  std::vector<Hashed> hashed;
  for (const InputFile& file : files_) {
    if (stop_) break;
    Io& io = io_of(file);
    const FileStamp stamp = io.open(file.path)->stamp();
    hashed.push_back({{file.name, stamp.size, digests_.sha256(file.path, io)}, stamp});
  }
  digests_.save();
  return hashed;
}

std::string RunProvenance::manifest(const std::vector<NamedDigest>& outputs) {
  const std::vector<Hashed> hashed = hashing_.get();
  facts_.inputs.clear();
  for (std::size_t i = 0; i < hashed.size(); ++i) {
    if (io_of(files_[i]).open(files_[i].path)->stamp() != hashed[i].stamp)
      fail(ErrorKind::kBadInput, {"was changed while the run read it",
                                  files_[i].path.string(),
                                  {},
                                  "run again when nothing writes to it"});
    facts_.inputs.push_back(hashed[i].digest);
  }
  return make_manifest(facts_, outputs).dump(1) + "\n";
}

}  // namespace llmq::tools
