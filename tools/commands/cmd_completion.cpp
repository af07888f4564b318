// llmq completion bash|zsh|fish and llmq man: words made from the option table.
#include <iostream>

#include "tools/command.h"
#include "tools/help.h"
#include "tools/version.h"

namespace llmq::tools {

void add_completion(CLI::App& app, Session& session) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = declare_command(app, "completion", "Print a completion script for a shell",
                                      "  llmq completion bash > /etc/bash_completion.d/llmq\n");
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("");
  command->callback([&app, &session, shell] {
    session.only_prints = true;
    session.run = [&app, shell] {
      std::cout << (*shell == "bash"  ? bash_completion(app)
                    : *shell == "zsh" ? zsh_completion(app)
                                      : fish_completion(app));
      return 0;
    };
  });
}

void add_man(CLI::App& app, Session& session) {
  CLI::App* command = declare_command(app, "man", "Print the manual page", "  llmq man | man -l -\n");
  command->callback([&app, &session] {
    session.only_prints = true;
    session.run = [&app] {
      std::cout << man_page(app, version_text());
      return 0;
    };
  });
}

}  // namespace llmq::tools
