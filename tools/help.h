// The words of --help, and everything made from the same option table: shell completion and the man page.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace llmq::tools {

// Name, description, formatter and footer of the program itself.
void declare_application(CLI::App& app);
// A command with its summary (one line, for lists) and examples (for its own help).
CLI::App* declare_command(CLI::App& app, const std::string& name, const std::string& summary,
                          const std::string& examples);

std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace llmq::tools
