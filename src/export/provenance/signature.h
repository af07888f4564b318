// model.sig: a signature of a whole directory, or of a .gguf file and its documents, as OpenSSF Model Signing
// (OMS) 1.0 writes and reads it.
//
//   Sigstore bundle 0.3 { hint of the public key,
//     DSSE envelope { in-toto statement v1 { subject: name and root digest of the directory,
//       predicate https://model_signing/signature/v1.0 { each file's name and SHA-256 } },
//       ECDSA P-256 over "DSSEv1 <length> <type> <length> <payload>" } }
//
// The root digest is the SHA-256 of all files' digests one after the other, by name; model.sig itself and
// git's files are left out. No time enters; ECDSA draws a random number, so that two signatures differ.
//
// That of NAME.gguf, NAME.gguf.sig, speaks in the same form of the file, its report and its manifest, by
// their names. What model_signing makes of a single file calls it "." and speaks of nothing else.
#pragma once
#include <string>
#include <vector>

#include "base/ecdsa.h"
#include "base/io.h"
#include "base/json.h"
#include "io/digest_cache.h"

namespace llmq {

inline constexpr const char* kSignatureFile = "model.sig";
inline constexpr const char* kSignatureSuffix = ".sig";  // of a .gguf file's

// `files`: of the directory called `name`, by name.
Json make_signature(const std::string& name, const std::vector<NamedDigest>& files, const EcdsaKey& key);

struct SignedFiles {
  std::vector<NamedDigest> files;
  std::vector<std::string> ignored;  // names at the top that the signer left out
};
// Checks the bundle against the key. Error(kBadInput) in words about `file`: of another key, changed after
// signing, or not of this form.
SignedFiles read_signature(const Json& bundle, const EcdsaKey& key, const std::string& file);

}  // namespace llmq
