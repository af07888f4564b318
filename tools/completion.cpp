// Completion for bash, zsh and fish, and the man page: all generated from the CLI::App that --help prints.
#include <algorithm>

#include "tools/help.h"

namespace llmq::tools {
namespace {

std::vector<const CLI::App*> commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<const CLI::Option*> flags(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return option->nonpositional() && !option->get_group().empty(); });
}

std::string long_flags(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : flags(app))
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  return words;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// `quote` doubled as '\'' for shells that read single-quoted strings.
std::string single_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : one_line(text)) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string roff(const std::string& text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '-')
      out += "\\-";
    else if (c == '\\')
      out += "\\e";
    else
      out += c;
    line_start = c == '\n';
  }
  return out;
}

std::string man_options(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option :
       app.get_options([](const CLI::Option* o) { return !o->get_group().empty(); }))
    text += ".TP\n.B " + roff(option->get_name(option->get_positional(), true)) +
            (option->get_type_name().empty() || option->get_type_size() == 0
                 ? ""
                 : " " + roff(option->get_type_name())) +
            "\n" + roff(option->get_description()) + "\n";
  return text;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : commands(app)) {
    names += " " + command->get_name();
    cases += "    " + command->get_name() + ") words=\"" + long_flags(*command).substr(1) + "\" ;;\n";
  }
  return "# bash completion for llmq: llmq completion bash > /etc/bash_completion.d/llmq\n"
         "_llmq() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} command= words= i\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case ${COMP_WORDS[i]} in -*) ;; *) command=${COMP_WORDS[i]}; break ;; esac\n"
         "  done\n"
         "  case $command in\n"
         "    '') words=\"" +
         names.substr(1) + "\" ;;\n" + cases +
         "  esac\n"
         "  if [[ $current == -* || -z $command ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words" +
         long_flags(app) +
         "\" -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _llmq llmq\n";
}

std::string zsh_completion(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : commands(app)) {
    names += "    " + single_quoted(command->get_name() + ":" + command->get_description()) + "\n";
    cases += "    " + command->get_name() + ") _values 'flag'";
    for (const CLI::Option* option : flags(*command))
      for (const std::string& name : option->get_lnames()) cases += " '--" + name + "'";
    cases += "; _files ;;\n";
  }
  return "#compdef llmq\n# zsh completion for llmq: llmq completion zsh > \"${fpath[1]}/_llmq\"\n"
         "_llmq() {\n"
         "  local -a commands\n"
         "  commands=(\n" +
         names +
         "  )\n"
         "  if (( CURRENT == 2 )); then _describe 'command' commands; return; fi\n"
         "  case $words[2] in\n" +
         cases +
         "    *) _files ;;\n  esac\n"
         "}\n"
         "_llmq \"$@\"\n";
}

std::string fish_completion(const CLI::App& app) {
  std::string text =
      "# fish completion for llmq: llmq completion fish > ~/.config/fish/completions/llmq.fish\n";
  for (const CLI::App* command : commands(app)) {
    text += "complete -c llmq -n __fish_use_subcommand -a " + command->get_name() + " -d " +
            single_quoted(command->get_description()) + "\n";
    for (const CLI::Option* option : flags(*command))
      for (const std::string& name : option->get_lnames())
        text += "complete -c llmq -n '__fish_seen_subcommand_from " + command->get_name() + "' -l " + name +
                " -d " + single_quoted(option->get_description()) + "\n";
  }
  for (const CLI::Option* option : flags(app))
    for (const std::string& name : option->get_lnames())
      text += "complete -c llmq -l " + name + " -d " + single_quoted(option->get_description()) + "\n";
  return text;
}

std::string man_page(const CLI::App& app, const std::string& version) {
  std::string text =
      ".TH LLMQ 1 \"\" \"llmq " + version +
      "\" \"User Commands\"\n.SH NAME\nllmq \\- quantize language models and prove the result\n"
      ".SH SYNOPSIS\n.B llmq\nCOMMAND [OPTIONS]\n.SH DESCRIPTION\n" +
      roff(app.get_description()) + "\n.SH OPTIONS\n" + man_options(app) + ".SH COMMANDS\n";
  for (const CLI::App* command : commands(app))
    text += ".SS llmq " + command->get_name() + "\n" + roff(command->get_description()) + "\n" +
            man_options(*command);
  return text + ".SH NOTES\n.nf\n" + roff(app.get_footer()) + ".fi\n";
}

}  // namespace llmq::tools
