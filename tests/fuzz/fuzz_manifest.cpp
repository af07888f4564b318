// Any bytes as a manifest, as a signature, and as what a valid signature signs: either an Error, or names
// that stay inside and digests that are ones.
#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "export/provenance/manifest.h"
#include "export/provenance/signature.h"
#include "quant/recipe/recipe.h"
#include "tests/support/new_key.h"

namespace {

using namespace llmq;

const EcdsaKey& key() {
  static const EcdsaKey made = [] {
    std::string pem = testing::new_key().private_pem;
    return EcdsaKey::private_key(pem, "key");
  }();
  return made;
}

// A bundle that verifies, whatever it says.
Json signed_bundle(const std::string& payload) {
  const std::string type = "application/vnd.in-toto+json";
  const std::string signature =
      key().sign(fmt::format("DSSEv1 {} {} {} {}", type.size(), type, payload.size(), payload));
  return Json::object(
      {{"mediaType", "application/vnd.dev.sigstore.bundle.v0.3+json"},
       {"verificationMaterial", Json::object()},
       {"dsseEnvelope",
        Json::object({{"payload", base64(payload)},
                      {"payloadType", type},
                      {"signatures", Json::array({Json::object({{"sig", base64(signature)}})})}})}});
}

template <typename Read>
void attempt(const Read& read) {
  try {
    for (const NamedDigest& file : read())
      if (file.sha256.size() != 64) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  attempt([&] {
    const std::vector<NamedDigest> files = manifest_subjects(Json::parse(text, "manifest"), "manifest");
    for (const NamedDigest& file : files)
      if (file.name.empty() || file.name.front() == '/' || file.name.starts_with("../") ||
          file.name.find("/../") != std::string::npos)
        std::abort();
    return files;
  });
  attempt([&] {
    const ProvenanceFacts facts = manifest_facts(Json::parse(text, "manifest"), "manifest");
    Recipe::from_json(facts.recipe, "manifest");
    return facts.inputs;
  });
  attempt([&] { return read_signature(Json::parse(text, "model.sig"), key(), "model.sig").files; });
  attempt([&] { return read_signature(signed_bundle(text), key(), "model.sig").files; });
  return 0;
}
