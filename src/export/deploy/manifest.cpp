#include "export/deploy/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "export/deploy/templates.h"
#include "jinja/evaluator.h"

namespace llmq {
namespace {

struct Target {
  const char* name;
  const std::string_view* text;
  jinja::Escape escape;
};

// Compose puts variables into every scalar.
std::string compose_quoted(std::string_view text) {
  std::string doubled;
  for (const char c : text) doubled += c == '$' ? "$$" : std::string(1, c);
  return yaml_quoted(doubled);
}

const Target kTargets[] = {{"compose", &kComposeTemplate, compose_quoted},
                           {"kubernetes", &kKubernetesTemplate, yaml_quoted},
                           {"kserve", &kKserveTemplate, yaml_quoted},
                           {"llm-d", &kKubernetesTemplate, yaml_quoted},
                           {"vllm-stack", &kVllmStackTemplate, yaml_quoted}};

}  // namespace

std::string yaml_quoted(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // C1 controls are C2 80 .. C2 9F; YAML ends lines at C2 85 and at E2 80 A8 and A9
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", text[i]);
    else if (c < 0x20 || c == 0x7F)
      out += fmt::format("\\x{:02x}", c);
    else if (c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    else if (text.substr(i, 3) == "\xE2\x80\xA8" || text.substr(i, 3) == "\xE2\x80\xA9")
      out += text[i + 2] == '\xA8' ? "\\L" : "\\P", i += 2;
    else
      out += text[i];
  }
  return out + "\"";
}

const std::vector<std::string>& deploy_targets() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Target& target : kTargets) names.emplace_back(target.name);
    return names;
  }();
  return kNames;
}

std::string render_manifest(const std::string& target, const Json& shown) {
  const std::string file = "a manifest of llmq";
  const Target& found = *std::find_if(std::begin(kTargets), std::end(kTargets),
                                      [&](const Target& one) { return target == one.name; });
  jinja::Meter meter({}, file);
  const jinja::Body parsed = jinja::parse_template(std::string(*found.text), file);
  return jinja::evaluate(parsed, jinja::from_json(meter, shown), std::tm{}, meter, found.escape);
}

}  // namespace llmq
