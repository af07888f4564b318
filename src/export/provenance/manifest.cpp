#include "export/provenance/manifest.h"

#include <algorithm>
#include <set>

#include "export/provenance/statement_reader.h"

namespace llmq {
namespace {

constexpr const char* kPredicateType = "https://slsa.dev/provenance/v1";
// Names, not pages.
constexpr const char* kQuantization = "https://llmq.dev/quantize/v1";
constexpr const char* kConversion = "https://llmq.dev/convert/v1";
constexpr std::size_t kMaxNameBytes = 4096, kMaxSubjects = 100'000;

Json descriptor(const NamedDigest& file) {
  return Json::object({{"name", file.name},
                       {"digest", Json::object({{"sha256", file.sha256}})},
                       {"annotations", Json::object({{"bytes", Json(file.bytes)}})}});
}

Json descriptors(std::span<const NamedDigest> files) {
  std::vector<NamedDigest> sorted(files.begin(), files.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const NamedDigest& a, const NamedDigest& b) { return a.name < b.name; });
  Json list = Json::array();
  for (const NamedDigest& file : sorted) list.push_back(descriptor(file));
  return list;
}

bool is_inside(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '/') return false;
  if (std::any_of(name.begin(), name.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; }))
    return false;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = std::string_view(name).substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

// The list of files, with their digests, that stands under `key`.
std::vector<NamedDigest> read_descriptors(const StatementReader& parent, const char* key) {
  const Json::Array& list = parent.items(key);
  if (list.size() > kMaxSubjects)
    parent.refuse(fmt::format("lists {} files, more than {}", list.size(), kMaxSubjects), key);
  std::vector<NamedDigest> found;
  for (const Json& item : list) {
    const StatementReader one = parent.at(item);
    found.push_back({one.text("name"), 0, one.at("digest").sha256("sha256", one.text("name"))});
  }
  return found;
}

Json asked_parameters(const ProvenanceFacts& facts) {
  if (facts.kind == BuildKind::kConvert)
    return Json::object({{"conversion", facts.recipe}, {"command", facts.command}});
  return Json::object(
      {{"recipe", facts.recipe}, {"allow_nonfinite", facts.allow_nonfinite}, {"command", facts.command}});
}

// A conversion computes nothing that depends on a backend.
Json found_parameters(const ProvenanceFacts& facts) {
  Json found = Json::object({});
  if (facts.kind == BuildKind::kQuantize)
    found = Json::object(
        {{"backend", facts.backend}, {"compute", facts.compute}, {"calibration", facts.calibration}});
  if (!facts.changed_before.empty()) found["changed_before"] = text_list(facts.changed_before);
  return found;
}

std::vector<std::string> read_changed_before(const StatementReader& found) {
  std::vector<std::string> changes;
  if (found.json().find("changed_before") == nullptr) return changes;
  for (const Json& change : found.items("changed_before")) {
    if (!change.is_string()) found.refuse("names a change that is not a text", "changed_before");
    changes.push_back(change.as_string());
  }
  return changes;
}

}  // namespace

Path manifest_path(const Path& output) {
  if (output.extension() == ".gguf") return output.string() + "." + kManifestFile;
  return output / kManifestFile;
}

Json make_manifest(const ProvenanceFacts& facts, std::span<const NamedDigest> outputs) {
  Json definition =
      Json::object({{"buildType", facts.kind == BuildKind::kConvert ? kConversion : kQuantization},
                    {"externalParameters", asked_parameters(facts)},
                    {"internalParameters", found_parameters(facts)},
                    {"resolvedDependencies", descriptors(facts.inputs)}});
  Json builder =
      Json::object({{"id", "https://llmq.dev/llmq@" + facts.version + "+" + facts.commit},
                    {"version", Json::object({{"llmq", facts.version}, {"commit", facts.commit}})}});
  return Json::object({{"_type", kStatementType},
                       {"subject", descriptors(outputs)},
                       {"predicateType", kPredicateType},
                       {"predicate", Json::object({{"buildDefinition", std::move(definition)},
                                                   {"runDetails", Json::object({{"builder", builder}})}})}});
}

std::vector<NamedDigest> digests_of(Io& io, const Path& directory, std::span<const std::string> names) {
  std::vector<NamedDigest> digests;
  for (const std::string& name : names) {
    const std::unique_ptr<File> file = io.open(directory / name);
    digests.push_back({name, file->size(), file_sha256(*file)});
  }
  return digests;
}

std::vector<NamedDigest> manifest_subjects(const Json& manifest, const std::string& file) {
  const StatementReader top(manifest, file);
  if (!manifest.is_object()) top.refuse("is not a statement");
  top.expect("_type", kStatementType);
  std::vector<NamedDigest> found = read_descriptors(top, "subject");
  std::set<std::string> names;
  for (const NamedDigest& one : found) {
    if (!is_inside(one.name)) top.refuse("names a file that is not inside the output", one.name);
    if (!names.insert(one.name).second) top.refuse("names a file twice", one.name);
  }
  return found;
}

Json manifest_with(Json manifest, const std::string& file, std::span<const NamedDigest> changed) {
  manifest_subjects(manifest, file);  // throws where it is no manifest
  for (Json& subject : manifest["subject"].items())
    for (const NamedDigest& one : changed)
      if (one.name == subject.at("name").as_string()) subject = descriptor(one);
  return manifest;
}

ProvenanceFacts manifest_facts(const Json& manifest, const std::string& file) {
  const StatementReader top(manifest, file), build = top.at("predicate").at("buildDefinition");
  const StatementReader asked = build.at("externalParameters"), found = build.at("internalParameters");
  const StatementReader builder = top.at("predicate").at("runDetails").at("builder").at("version");
  ProvenanceFacts facts;
  if (build.text("buildType") == kConversion)
    facts.kind = BuildKind::kConvert;
  else
    build.expect("buildType", kQuantization);
  facts.version = builder.text("llmq");
  facts.commit = builder.text("commit");
  facts.command = asked.text("command");
  facts.inputs = read_descriptors(build, "resolvedDependencies");
  facts.changed_before = read_changed_before(found);
  if (facts.kind == BuildKind::kConvert) {
    facts.recipe = asked.at("conversion").json();
    return facts;
  }
  facts.recipe = asked.at("recipe").json();
  const Json* nonfinite = asked.json().find("allow_nonfinite");
  facts.allow_nonfinite = nonfinite != nullptr && *nonfinite == Json(true);
  facts.backend = found.text("backend");
  facts.compute = found.text("compute");
  facts.calibration = found.at("calibration").json();
  return facts;
}

}  // namespace llmq
