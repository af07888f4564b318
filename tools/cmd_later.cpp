// Commands of the contract that this version does not have yet: each is refused plainly, by name, with exit 2.
#include "base/error.h"
#include "tools/command.h"

namespace llmq::tools {

void add_later_commands(CLI::App& app, Session& session) {
  for (const char* name : {"merge"}) {
    CLI::App* command = app.add_subcommand(name, "");
    command->group("")->allow_extras()->fallthrough(false)->set_help_flag();
    command->callback([&session, name] {
      session.run = [name]() -> int {
        fail(ErrorKind::kUnsupported, {fmt::format("`llmq {}` is not part of this version", name), {}, {}, "llmq --help lists the commands there are"});
      };
    });
  }
}

}  // namespace llmq::tools
