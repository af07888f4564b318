// An output against its manifest and its signature: every file hashed anew, nothing remembered, nothing
// outside looked at.
//
// The files that are there are listed and hashed, and their names compared with those of the manifest as
// texts: a name in a manifest is never opened, and a symbolic link in an output is reported, not followed.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "io/digest_cache.h"

namespace llmq {

struct Mismatch {
  std::string path;
  std::optional<std::string> expected;  // SHA-256; absent: a file nobody vouches for
  std::optional<std::string>
      found;  // SHA-256, or what stands there instead ("a symbolic link"); absent: nothing
};

Json mismatches_json(const std::vector<Mismatch>& mismatches);  // [{path, expected, found}]

struct Verification {
  std::string path;
  std::size_t files = 0;  // that were hashed
  std::string problem;    // why the manifest says nothing that could be checked; empty when it does
  std::vector<Mismatch> mismatches;  // by path
  bool signature_checked = false;
  bool ok() const { return problem.empty() && mismatches.empty(); }
  Json to_json() const;  // schema llmq.verify/1
};

// What stands in a directory and below: digests of the files, and everything that is neither file nor
// directory. Left out: git's own files, and `skip` at the top. At most 100,000 entries, 16 deep;
// Error(kBadInput) beyond.
struct DirectoryListing {
  std::vector<NamedDigest> files;                          // by name
  std::vector<std::pair<std::string, std::string>> other;  // name, "a symbolic link" or "not a regular file"
};
DirectoryListing list_directory(Io& io, const Path& directory, const std::vector<std::string>& skip);

// By name: what `expected` and `listing` disagree on.
std::vector<Mismatch> compare_listing(const std::vector<NamedDigest>& expected,
                                      const DirectoryListing& listing);

// `output`: a directory or a .gguf file. Error(kBadInput) when there is nothing to verify it by. With a
// public key (PEM) the signature must be of that key and speak of every file: of a directory, or of a .gguf,
// its report and its manifest.
Verification verify_output(Io& io, const Path& output, const std::optional<Path>& public_key = std::nullopt);

struct Signed {
  Path signature;         // model.sig in a directory, NAME.gguf.sig beside a file
  std::size_t files = 0;  // that it speaks of
};
// Error(kBadInput) when the output is not what its manifest says.
Signed sign_output(Io& io, const Path& output, const Path& private_key);

}  // namespace llmq
