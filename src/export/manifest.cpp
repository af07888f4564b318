#include "export/manifest.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace llmq {
namespace {

constexpr const char* kStatementType = "https://in-toto.io/Statement/v1";
constexpr const char* kPredicateType = "https://slsa.dev/provenance/v1";
constexpr const char* kBuildType = "https://llmq.dev/quantize/v1";  // a name, not a page
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

}  // namespace

Path manifest_path(const Path& output) {
  if (output.extension() == ".gguf") return output.string() + "." + kManifestFile;
  return output / kManifestFile;
}

Json make_manifest(const ProvenanceFacts& facts, std::span<const NamedDigest> outputs) {
  Json definition = Json::object(
      {{"buildType", kBuildType},
       {"externalParameters", Json::object({{"recipe", facts.recipe}, {"command", facts.command}})},
       {"internalParameters",
        Json::object(
            {{"backend", facts.backend}, {"compute", facts.compute}, {"calibration", facts.calibration}})},
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
  for (const std::string& name : names)
    digests.push_back({name, io.open(directory / name)->size(), file_sha256(io, directory / name)});
  return digests;
}

std::vector<NamedDigest> manifest_subjects(const Json& manifest, const std::string& file) {
  const auto refuse = [&](const std::string& message, const std::string& where) {
    fail(ErrorKind::kBadInput, {message, file, where, {}});
  };
  const auto text = [&](const Json& object, const char* key) -> std::string {
    const Json* value = object.find(key);
    if (value == nullptr || !value->is_string()) refuse(fmt::format("has no text '{}'", key), key);
    return value->as_string();
  };
  if (!manifest.is_object()) refuse("is not a statement", {});
  if (text(manifest, "_type") != kStatementType) refuse("is not an in-toto statement (v1)", "_type");
  const Json* subjects = manifest.find("subject");
  if (subjects == nullptr || !subjects->is_array()) refuse("has no list of subjects", "subject");
  if (subjects->items().size() > kMaxSubjects)
    refuse(fmt::format("lists {} files, more than {}", subjects->items().size(), kMaxSubjects), "subject");
  std::vector<NamedDigest> found;
  std::set<std::string> names;
  for (const Json& subject : subjects->items()) {
    NamedDigest one;
    one.name = text(subject, "name");
    if (!is_inside(one.name)) refuse("names a file that is not inside the output", one.name);
    if (!names.insert(one.name).second) refuse("names a file twice", one.name);
    const Json* digest = subject.find("digest");
    if (digest == nullptr) refuse("has no digest of a file", one.name);
    one.sha256 = text(*digest, "sha256");
    if (one.sha256.size() != 64 || one.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
      refuse("holds a digest that is no SHA-256 in hexadecimal digits", one.name);
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace llmq
