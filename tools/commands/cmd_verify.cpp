// llmq verify OUTPUT: every file of it hashed anew and held against its manifest, and with a key against its
// signature; with --rebuild made anew as well. llmq sign OUTPUT writes that signature.
#include "export/provenance/verify.h"

#include "base/error.h"
#include "job/rebuild.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/print.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct VerifyOptions {
  std::string output, key, model;
  bool rebuild = false;
};

std::string difference(const Mismatch& m) {
  if (!m.found) return "missing: " + m.path;
  if (!m.expected) return fmt::format("extra: {} ({})", m.path, *m.found);
  return fmt::format("differs: {}: {} was written, {} is there", m.path, *m.expected, *m.found);
}

void print_verification(const Verification& result) {
  if (result.ok()) {
    print_line(fmt::format("{}: all {} files are what {}", result.path, result.files,
                           result.signature_checked ? "was signed" : "the manifest says"));
    return;
  }
  if (!result.problem.empty()) print_line(result.problem);
  for (const Mismatch& mismatch : result.mismatches) print_line(difference(mismatch));
  print_line(result.path + ": NOT what was written");
}

void print_rebuild(const Verification& result, const Rebuild& rebuild) {
  for (const Mismatch& input : rebuild.inputs) print_line("input " + difference(input));
  if (!rebuild.inputs.empty())
    return print_line(result.path + ": not rebuilt, for its inputs are not what was read");
  for (const Mismatch& output : rebuild.files.outputs) print_line("rebuilt, " + difference(output));
  if (!rebuild.files.first_tensor.empty()) print_line("first difference: " + rebuild.files.first_tensor);
  for (const OtherMaking& one : rebuild.otherwise)
    print_line(fmt::format("{} was {} and is {}", one.what, one.then, one.now));
  print_line(rebuild.ok() ? fmt::format("{}: rebuilt, and all {} files came out the same", result.path,
                                        rebuild.files.compared)
                          : result.path + ": rebuilt, and NOT the same bytes");
}

RebuildRequest rebuild_request(const VerifyOptions& options, const Session& session) {
  const GlobalOptions& globals = session.globals;
  return {options.output,
          options.model,
          {globals.device, globals.threads, {}},
          parse_bytes(globals.memory_limit, "--memory-limit"),
          this_program(session),
          throw_if_interrupted};
}

// An output that is not what its manifest says is not worth a rebuild.
int run_verify(const VerifyOptions& options, const Session& session) {
  const GlobalOptions& globals = session.globals;
  if (!options.rebuild && (!options.model.empty() || !globals.memory_limit.empty()))
    fail(ErrorKind::kUsage, {"only a rebuild needs it",
                             {},
                             options.model.empty() ? "--memory-limit" : "--model",
                             "add --rebuild, or leave it out"});
  if (options.rebuild) watch_signals();
  const std::optional<Path> key = options.key.empty() ? std::nullopt : std::optional<Path>(options.key);
  const Verification result = verify_output(system_io(), options.output, key);
  if (!globals.json) print_verification(result);
  std::optional<Rebuild> rebuild;
  if (options.rebuild && result.ok())
    rebuild = rebuild_output(system_io(), rebuild_request(options, session));
  if (globals.json) {
    Json document = result.to_json();
    if (rebuild) {
      document["ok"] = rebuild->ok();
      document["rebuild"] = rebuild->to_json();
    }
    print_json(document);
  } else if (rebuild) {
    print_rebuild(result, *rebuild);
  }
  if (rebuild && !rebuild->inputs.empty()) return exit_code(ErrorKind::kBadInput);
  return result.ok() && (!rebuild || rebuild->ok()) ? 0 : 1;
}

int run_sign(const VerifyOptions& options, const GlobalOptions& globals) {
  const Signed made = sign_output(system_io(), options.output, options.key);
  if (globals.json)
    print_json(Json::object({{"schema", "llmq.sign/1"},
                             {"output", options.output},
                             {"signature", made.signature.string()},
                             {"files", static_cast<std::int64_t>(made.files)}}));
  else
    print_line(fmt::format("{}: {} files signed", made.signature.string(), made.files));
  return 0;
}

}  // namespace

void add_verify(CLI::App& app, Session& session) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = declare_command(app, "verify", "Check every file of an output against its manifest",
                                      "  llmq verify out/model-awq\n"
                                      "  llmq verify out/model-awq --key signer.pub.pem\n"
                                      "  llmq verify out/model-awq --rebuild\n");
  command->add_option("output", options->output, "Output directory, or .gguf file")
      ->required()
      ->type_name("");
  command
      ->add_option("--key", options->key,
                   "Check the signature as well, with this public key (PEM, ECDSA P-256)")
      ->type_name("FILE");
  command->add_flag("--rebuild", options->rebuild,
                    "Run the job of the manifest again, beside the output, and compare every file");
  command
      ->add_option("--model", options->model,
                   "For --rebuild: where the model lies now; its files must be those that were read")
      ->type_name("MODEL");
  command->callback(
      [options, &session] { session.run = [options, &session] { return run_verify(*options, session); }; });
}

void add_sign(CLI::App& app, Session& session) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = declare_command(app, "sign", "Sign an output (OpenSSF Model Signing)",
                                      "  openssl ecparam -name prime256v1 -genkey -noout -out signer.pem\n"
                                      "  openssl ec -in signer.pem -pubout -out signer.pub.pem\n"
                                      "  llmq sign out/model-awq --key signer.pem\n"
                                      "  llmq sign out/model.gguf --key signer.pem\n");
  command->add_option("output", options->output, "Output directory, or .gguf file")
      ->required()
      ->type_name("");
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
