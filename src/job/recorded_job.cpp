#include "job/recorded_job.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "export/first_difference.h"
#include "export/output/published_output.h"
#include "io/gguf.h"
#include "model/packed/quantization_config.h"

namespace llmq {
namespace {

// These say how long a run took, so that no two are alike.
bool tells_the_time(const std::string& name) {
  return name == kReportFile || name.ends_with(".gguf.report.json") || name == "report.html" ||
         name == "README.md";
}

// Two of one name, such as texts from two directories, are told apart by their order.
void number_names(std::vector<NamedDigest>& files) {
  std::map<std::string, int> seen;
  for (NamedDigest& file : files)
    if (const int number = ++seen[file.name]; number > 1) file.name += fmt::format(" ({})", number);
}

// The file of the recipe is not read again: what it meant stands in the manifest.
bool is_recipe_file(const std::string& name) { return name.starts_with("recipe/"); }

}  // namespace

ProvenanceFacts recorded_facts(Io& io, const Path& output) {
  const Path file = manifest_path(output);
  return manifest_facts(Json::parse(read_text(io, file), file.string()), file.string());
}

std::vector<NamedDigest> recorded_files(Io& io, const Path& output) {
  const Path file = manifest_path(output);
  std::vector<NamedDigest> files =
      manifest_subjects(Json::parse(read_text(io, file), file.string()), file.string());
  std::erase_if(files, [](const NamedDigest& one) { return tells_the_time(one.name); });
  return files;
}

Recipe recorded_recipe(const ProvenanceFacts& facts, const Path& output) {
  Recipe recipe = Recipe::from_json(facts.recipe, manifest_path(output).string());
  recipe.gguf.imatrix_out.clear();
  recipe.evaluate.reset();
  recipe.versioned = false;
  recipe.keep = 0;
  return recipe;
}

namespace {

// Nothing where there is no manifest, or where it cannot be read, which `llmq verify` puts into words.
std::optional<ProvenanceFacts> facts_beside(const Checkpoint& checkpoint) {
  if (!system_io().exists(manifest_path(checkpoint.path()))) return std::nullopt;
  try {
    return recorded_facts(system_io(), checkpoint.path());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::string> changes_of_linears(const Checkpoint& checkpoint) {
  std::vector<std::string> changes;
  const auto add = [&](const char* change) {
    if (std::find(changes.begin(), changes.end(), change) == changes.end()) changes.emplace_back(change);
  };
  if (const std::optional<ProvenanceFacts> facts = facts_beside(checkpoint)) {
    changes = facts->changed_before;
    const Json *const methods = facts->recipe.find("method"), *const rotate = facts->recipe.find("rotate"),
                      *const value = rotate != nullptr ? rotate->find("value") : nullptr;
    if (value != nullptr && *value == Json("hadamard")) add(kByRotation);
    if (methods != nullptr && methods->is_array())
      for (const Json& one : methods->items()) {
        if (one == Json("awq")) add(kByAwq);
        if (one == Json("smoothquant")) add(kBySmoothQuant);
      }
  } else if (!system_io().exists(manifest_path(checkpoint.path()))) {
    const Json* const packed = checkpoint.config().find("quantization_config");
    const Json* const format = packed != nullptr ? packed->find("quant_method") : nullptr;
    if (format != nullptr && *format == Json("awq")) add(kByAwq);
  }
  if (told_transforms(checkpoint.config()) != nullptr) add(kByRotation);
  return changes;
}

// Beside the output; where that is one version of several, beside them all.
Path rebuilt_directory(Io& io, const Path& output) {
  Path place = tidy_path(output);
  if (const std::string version = io.read_link(place); !version.empty()) place = parent_of(place) / version;
  const std::string name = place.filename().string();
  const std::vector<std::string> versions = versions_in(io, parent_of(place));
  if (std::find(versions.begin(), versions.end(), name) != versions.end())
    place = parent_of(place).string() + "-" + name;
  return place.string() + ".rebuild";
}

// Of NAME.gguf: NAME.rebuild.gguf beside it.
Path rebuilt_file(const Path& output) {
  return parent_of(output) / (output.stem().string() + ".rebuild.gguf");
}

std::vector<Mismatch> changed_inputs(Io& io, std::vector<NamedDigest> recorded,
                                     const std::vector<InputFile>& files,
                                     const std::function<void()>& on_file) {
  std::erase_if(recorded, [](const NamedDigest& file) { return is_recipe_file(file.name); });
  DirectoryListing found;
  for (const InputFile& file : files) {
    on_file();
    if (!is_recipe_file(file.name) && io.exists(file.path))
      found.files.push_back({file.name, 0, file_sha256(io, file.path)});
  }
  // Recorded by name, and those of one name as they came.
  std::stable_sort(found.files.begin(), found.files.end(),
                   [](const NamedDigest& a, const NamedDigest& b) { return a.name < b.name; });
  number_names(recorded);
  number_names(found.files);
  return compare_listing(recorded, found);
}

namespace {

RebuiltFiles compare_directory(Io& io, const Path& output, const Path& rebuilt) {
  const std::vector<NamedDigest> recorded = recorded_files(io, output);
  RebuiltFiles result;
  result.compared = recorded.size();
  result.outputs = compare_listing(recorded, list_directory(io, rebuilt, {}));
  for (const Mismatch& one : result.outputs) {
    if (!one.expected || !one.found || !result.first_tensor.empty()) continue;
    result.first_tensor = first_difference(io, output / one.path, rebuilt / one.path);
  }
  return result;
}

// A file, and of a split model those behind the first.
std::vector<Path> files_of_gguf(const Path& first) {
  std::vector<Path> files = {first};
  for (const std::string& part : further_gguf_parts(first.filename().string()))
    files.push_back(parent_of(first) / part);
  return files;
}

// Of a GGUF its report is not compared, which says how long a run took.
RebuiltFiles compare_file(Io& io, const Path& output, const Path& rebuilt) {
  const std::vector<Path> files = files_of_gguf(output), made = files_of_gguf(rebuilt);
  const std::vector<NamedDigest> recorded = recorded_files(io, output);
  RebuiltFiles result;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = files[i].filename().string();
    const auto file = std::find_if(recorded.begin(), recorded.end(),
                                   [&](const NamedDigest& one) { return one.name == name; });
    if (file == recorded.end()) continue;
    ++result.compared;
    if (i >= made.size()) {
      result.outputs.push_back({name, file->sha256, std::nullopt});
      continue;
    }
    const std::string sha256 = file_sha256(io, made[i]);
    if (file->sha256 == sha256) continue;
    result.outputs.push_back({name, file->sha256, sha256});
    if (result.first_tensor.empty()) result.first_tensor = first_difference(io, files[i], made[i]);
  }
  return result;
}

}  // namespace

RebuiltFiles compare_rebuilt(Io& io, const Path& output, const Path& rebuilt) {
  return (io.is_directory(rebuilt) ? compare_directory : compare_file)(io, output, rebuilt);
}

}  // namespace llmq
