// llmq publish DIR --to vNNNN: which version `latest` names; to roll back, an older one.
#include "export/output/published_output.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct PublishOptions {
  std::string directory, version;
};

int run(const PublishOptions& options, bool json) {
  const Path directory = tidy_path(options.directory);
  const std::string before = latest_version(system_io(), directory);
  const std::string now = move_latest(system_io(), directory, options.version);
  if (json)
    print_json(Json::object({{"schema", "llmq.publish/1"},
                             {"output", directory.string()},
                             {"latest", now},
                             {"before", before.empty() ? Json() : Json(before)}}));
  else
    print_line(fmt::format("{}: latest is {}{}", directory.string(), now,
                           before == now    ? ", as it was"
                           : before.empty() ? ""
                                            : ", and was " + before));
  return 0;
}

}  // namespace

void add_publish(CLI::App& app, Session& session) {
  auto options = std::make_shared<PublishOptions>();
  CLI::App* command = declare_command(app, "publish", "Choose the version that `latest` names",
                                      "  llmq publish out/qwen3-32b-awq --to v0003\n");
  command->add_option("directory", options->directory, "A versioned output")->required()->type_name("DIR");
  command->add_option("--to", options->version, "The version: v0003, or its whole name")
      ->required()
      ->type_name("vNNNN");
  command->callback([options, &session] {
    session.run = [options, &session] { return run(*options, session.globals.json); };
  });
}

}  // namespace llmq::tools
