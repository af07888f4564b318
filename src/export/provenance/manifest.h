// manifest.json: which bytes made which. An in-toto Statement (v1) whose subjects are the files of an output
// and whose predicate is SLSA provenance (v1): the recipe as it was resolved (of a conversion: what was
// asked), the command, the program's version and commit, the calibration tokens' hash, and the SHA-256 of
// every file that was read.
//
//   https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
//   https://slsa.dev/spec/v1.0/provenance
//
// No time, host or user enters, so that the same job gives the same statement about the files that loaders
// read. A directory's manifest lies in it; that of NAME.gguf beside it, as NAME.gguf.manifest.json.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "io/digest_cache.h"

namespace llmq {

inline constexpr const char* kManifestFile = "manifest.json";

// Where the manifest of an output, a directory or a .gguf file, lies.
Path manifest_path(const Path& output);

enum class BuildKind : std::uint8_t { kQuantize, kConvert };

struct ProvenanceFacts {
  BuildKind kind = BuildKind::kQuantize;
  std::string version, commit;  // of llmq
  std::string command;          // as typed
  Json recipe;                  // resolved; of a conversion {source, to, dtype}, and what follows is empty
  Json calibration;             // {samples, tokens, sha256, ...}; null without
  std::string compute, backend;
  bool allow_nonfinite = false;  // NaN and infinities were let through
  // What had changed the inputs of the source's linears before (job/recorded_job.h); written where it is
  // something.
  std::vector<std::string> changed_before;
  std::vector<NamedDigest> inputs;  // "model/model.safetensors", "calibration/c4.utf8", ...
};

Json make_manifest(const ProvenanceFacts& facts, std::span<const NamedDigest> outputs);

// Given the digests of the other files of an output, the text of its manifest.
using ManifestText = std::function<std::string(const std::vector<NamedDigest>& outputs)>;

// The digests of `names` in `directory`, in their order.
std::vector<NamedDigest> digests_of(Io& io, const Path& directory, std::span<const std::string> names);

// Subjects of a manifest that may come from anybody: names are relative, without "..", control characters or
// duplicates; digests are SHA-256. Error(kBadInput) naming `file` otherwise.
std::vector<NamedDigest> manifest_subjects(const Json& manifest, const std::string& file);

// The manifest with other digests for the subjects of these names; a name that it does not have is left out.
Json manifest_with(Json manifest, const std::string& file, std::span<const NamedDigest> changed);

// The job that such a manifest speaks of; Error(kBadInput) naming `file` where something is missing or of
// another kind. The recipe is as it stands there, and its paths are whatever somebody wrote.
ProvenanceFacts manifest_facts(const Json& manifest, const std::string& file);

}  // namespace llmq
