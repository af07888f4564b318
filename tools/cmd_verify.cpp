// llmq verify DIR: every file of an output hashed anew and held against its manifest, and with a key against its
// signature; llmq sign DIR writes that signature.
#include "export/verify.h"

#include "base/error.h"
#include "export/signature.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct Options {
  std::string output, key;
};

std::string difference(const Mismatch& m) {
  if (!m.found) return "missing: " + m.path;
  if (!m.expected) return fmt::format("extra: {} ({})", m.path, *m.found);
  return fmt::format("differs: {}: {} was written, {} is there", m.path, *m.expected, *m.found);
}

int run_verify(const Options& options, const GlobalOptions& globals) {
  const std::optional<Path> key = options.key.empty() ? std::nullopt : std::optional<Path>(options.key);
  const Verification result = verify_output(system_io(), options.output, key);
  if (globals.json) {
    print_json(result.to_json());
  } else if (result.ok()) {
    print_line(fmt::format("{}: all {} files are what {}", result.path, result.files,
                           result.signature_checked ? "was signed" : "the manifest says"));
  } else {
    if (!result.problem.empty()) print_line(result.problem);
    for (const Mismatch& mismatch : result.mismatches) print_line(difference(mismatch));
    print_line(result.path + ": NOT what was written");
  }
  return result.ok() ? 0 : 1;
}

int run_sign(const Options& options, const GlobalOptions& globals) {
  const std::size_t files = sign_output(system_io(), options.output, options.key);
  const Path signature = Path(options.output) / kSignatureFile;
  if (globals.json)
    print_json(Json::object({{"schema", "llmq.sign/1"},
                             {"output", options.output},
                             {"signature", signature.string()},
                             {"files", static_cast<std::int64_t>(files)}}));
  else
    print_line(fmt::format("{}: {} files signed", signature.string(), files));
  return 0;
}

}  // namespace

void add_verify(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = declare_command(app, "verify", "Check every file of an output against its manifest",
                                      "  llmq verify out/model-awq\n"
                                      "  llmq verify out/model-awq --key signer.pub.pem\n");
  command->add_option("output", options->output, "Output directory, or .gguf file")
      ->required()
      ->type_name("");
  command
      ->add_option("--key", options->key, "Check model.sig as well, with this public key (PEM, ECDSA P-256)")
      ->type_name("FILE");
  command->callback([options, &session] {
    session.run = [options, &session] { return run_verify(*options, session.globals); };
  });
}

void add_sign(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = declare_command(app, "sign", "Sign an output directory (OpenSSF Model Signing)",
                                      "  openssl ecparam -name prime256v1 -genkey -noout -out signer.pem\n"
                                      "  openssl ec -in signer.pem -pubout -out signer.pub.pem\n"
                                      "  llmq sign out/model-awq --key signer.pem\n");
  command->add_option("output", options->output, "Output directory")->required()->type_name("");
  command
      ->add_option("--key", options->key,
                   "Private key (PEM, ECDSA P-256); an encrypted one is opened with LLMQ_KEY_PASSPHRASE")
      ->required()
      ->type_name("FILE");
  command->callback([options, &session] {
    session.run = [options, &session] { return run_sign(*options, session.globals); };
  });
}

}  // namespace llmq::tools
