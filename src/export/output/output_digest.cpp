// The digest of an output: model_writer.h says of which files, and how it is made.
#include <map>

#include "base/sha256.h"
#include "export/output/model_writer.h"

namespace llmq {
namespace {

bool loaders_read(const std::string& name) {
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return name.ends_with(".safetensors") || name.ends_with(".gguf") ||
         name.ends_with(".safetensors.index.json") || name == "config.json" ||
         name == "quantize_config.json" || name == "hf_quant_config.json" ||
         name == "generation_config.json" || begins("tokenizer") || begins("special_tokens_map") ||
         begins("added_tokens") || begins("vocab") || begins("merges") || begins("chat_template") ||
         name == "tiktoken.model" || name.ends_with("processor_config.json");
}

}  // namespace

std::string output_digest(std::span<const NamedDigest> files) {
  std::map<std::string, std::string> read;
  for (const NamedDigest& file : files)
    if (loaders_read(file.name)) read[file.name] = file.sha256;
  Sha256 digest;
  for (const auto& [name, sha256] : read) digest.update(fmt::format("{}  {}\n", sha256, name));
  return "sha256:" + digest.hex();
}

std::string output_digest(Io& io, const Path& directory,
                          const std::function<std::string(const Path&)>& sha256_of_file) {
  std::vector<NamedDigest> files;
  for (const std::string& name : io.list(directory))
    if (loaders_read(name)) files.push_back({name, 0, sha256_of_file(directory / name)});
  return output_digest(files);
}

std::string output_digest(Io& io, const Path& directory) {
  return output_digest(io, directory, [&](const Path& path) { return file_sha256(io, path); });
}

}  // namespace llmq
