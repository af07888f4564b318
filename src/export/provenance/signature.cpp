#include "export/provenance/signature.h"

#include <array>

#include "base/error.h"
#include "base/sha256.h"
#include "export/provenance/statement_reader.h"

namespace llmq {
namespace {

using Reader = StatementReader;

constexpr const char* kBundleType = "application/vnd.dev.sigstore.bundle.v0.3+json";
constexpr const char* kPayloadType = "application/vnd.in-toto+json";
constexpr const char* kSignatureType = "https://model_signing/signature/v1.0";
constexpr std::array<const char*, 5> kLeftOut = {kSignatureFile, ".git", ".gitattributes", ".github",
                                                 ".gitignore"};

// DSSE's pre-authentication encoding: what is signed.
std::string encoded(const std::string& type, const std::string& payload) {
  return fmt::format("DSSEv1 {} {} {} ", type.size(), type, payload.size()) + payload;
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string root_digest(const std::vector<NamedDigest>& files) {
  Sha256 digest;
  for (const NamedDigest& file : files) digest.update(bytes_of_hex(file.sha256));
  return digest.hex();
}

// How OMS names a public key: the SHA-256 of its PEM text.
std::string hint_of(const EcdsaKey& key) {
  const std::string pem = key.public_pem();
  return sha256_hex(std::as_bytes(std::span(pem)));
}

Json make_statement(const std::string& name, const std::vector<NamedDigest>& files) {
  Json resources = Json::array(), left_out = Json::array();
  for (const NamedDigest& file : files)
    resources.push_back(
        Json::object({{"name", file.name}, {"algorithm", "sha256"}, {"digest", file.sha256}}));
  for (const char* one : kLeftOut) left_out.push_back(one);
  Json serialization = Json::object(
      {{"method", "files"}, {"hash_type", "sha256"}, {"allow_symlinks", false}, {"ignore_paths", left_out}});
  return Json::object(
      {{"_type", kStatementType},
       {"subject", Json::array({Json::object(
                       {{"name", name}, {"digest", Json::object({{"sha256", root_digest(files)}})}})})},
       {"predicateType", kSignatureType},
       {"predicate", Json::object({{"serialization", serialization}, {"resources", resources}})}});
}

NamedDigest resource(const Reader& one) {
  one.expect("algorithm", "sha256");
  return {one.text("name"), 0, one.sha256("digest", one.text("name"))};
}

SignedFiles read_statement(const Reader& statement, const std::string& file) {
  statement.expect("_type", kStatementType);
  statement.expect("predicateType", kSignatureType);
  const Json::Array& subjects = statement.items("subject");
  if (subjects.size() != 1) statement.refuse("does not have one subject", "subject");
  const Reader predicate = statement.at("predicate"), serialization = predicate.at("serialization");
  serialization.expect("method", "files");
  serialization.expect("hash_type", "sha256");
  SignedFiles signed_files;
  for (const Json& one : predicate.items("resources"))
    signed_files.files.push_back(resource(Reader(one, file)));
  if (serialization.json().find("ignore_paths") != nullptr)
    for (const Json& one : serialization.items("ignore_paths"))
      if (one.is_string()) signed_files.ignored.push_back(one.as_string());
  if (Reader(subjects.front(), file).at("digest").text("sha256") != root_digest(signed_files.files))
    statement.refuse("its root digest is not that of the files it lists", "subject");
  return signed_files;
}

}  // namespace

Json make_signature(const std::string& name, const std::vector<NamedDigest>& files, const EcdsaKey& key) {
  const std::string payload = make_statement(name, files).dump();
  Json signature = Json::object({{"sig", base64(key.sign(encoded(kPayloadType, payload)))}, {"keyid", ""}});
  return Json::object(
      {{"mediaType", kBundleType},
       {"verificationMaterial", Json::object({{"publicKey", Json::object({{"hint", hint_of(key)}})},
                                              {"tlogEntries", Json::array()}})},
       {"dsseEnvelope", Json::object({{"payload", base64(payload)},
                                      {"payloadType", kPayloadType},
                                      {"signatures", Json::array({signature})}})}});
}

SignedFiles read_signature(const Json& bundle, const EcdsaKey& key, const std::string& file) {
  const Reader top(bundle, file);
  top.expect("mediaType", kBundleType);
  if (const Json* named = top.at("verificationMaterial").json().find("publicKey")) {
    const Json* hint = named->find("hint");
    if (hint != nullptr && hint->is_string() && hint->as_string() != hint_of(key))
      top.refuse("was signed with another key");
  }
  const Reader envelope = top.at("dsseEnvelope");
  envelope.expect("payloadType", kPayloadType);
  const std::optional<std::string> payload = from_base64(envelope.text("payload"));
  if (!payload) envelope.refuse("is not base64", "payload");
  bool verified = false;
  for (const Json& one : envelope.items("signatures")) {
    const std::optional<std::string> signature = from_base64(Reader(one, file).text("sig"));
    verified = verified || (signature && key.verifies(encoded(kPayloadType, *payload), *signature));
  }
  if (!verified)
    top.refuse("its signature does not fit: it was changed after signing, or signed with another key");
  const Json statement = Json::parse(*payload, file);
  return read_statement(Reader(statement, file), file);
}

}  // namespace llmq
