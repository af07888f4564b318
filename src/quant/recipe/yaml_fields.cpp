#include "quant/recipe/yaml_fields.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "export/gguf/type_mix.h"

namespace llmq {
namespace {

// Edits that turn `a` into `b` (Levenshtein), for "did you mean".
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

void read_weights(const Yaml& node, SchemeRequest& scheme) {
  for (const Yaml::Member& m : node.members()) {
    if (m.key == "bits")
      scheme.bits = static_cast<int>(read_integer(m.value, 2, 8));
    else if (m.key == "group_size") {
      scheme.granularity = Granularity::kGroup;
      scheme.group_size = static_cast<int>(read_integer(m.value, 1, 1 << 20));
    } else if (m.key == "symmetric")
      scheme.symmetric = m.value.as_bool();
    else
      fail_unknown_key(node, m, "scheme.weights." + m.key, {"bits", "group_size", "symmetric"});
  }
}

void read_activations(const Yaml& node, SchemeRequest& scheme) {
  for (const Yaml::Member& m : node.members()) {
    if (m.key == "bits") {
      scheme.activation_bits = static_cast<int>(read_integer(m.value, 8, 16));
      if (scheme.activation_bits != 8 && scheme.activation_bits != 16)
        m.value.fail_here("activations have 8 or 16 bits");
    } else if (m.key == "dynamic")
      scheme.static_activations = !m.value.as_bool();
    else
      fail_unknown_key(node, m, "scheme.activations." + m.key, {"bits", "dynamic"});
  }
}

}  // namespace

std::string place_of(const Yaml& node) {
  return std::to_string(node.line()) + ":" + std::to_string(node.column());
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(separator)) + word;
  return text;
}

bool is_null(const Yaml& node) {
  if (node.kind() == Yaml::Kind::kNull) return true;
  if (node.kind() != Yaml::Kind::kScalar || !node.is_plain()) return false;
  const std::string& text = node.as_string();
  return text.empty() || text == "~" || text == "null" || text == "None";
}

std::string read_word(const Yaml& node, const std::vector<std::string>& allowed) {
  const std::string& word = node.as_string();
  if (std::find(allowed.begin(), allowed.end(), word) == allowed.end())
    node.fail_here("'" + word + "' is not known here", "write one of " + joined(allowed));
  return word;
}

std::int64_t read_integer(const Yaml& node, std::int64_t low, std::int64_t high) {
  const std::int64_t value = node.as_integer();
  if (value < low || value > high)
    node.fail_here(std::to_string(value) + " is out of range",
                   "from " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

double read_number(const Yaml& node, double low, double high) {
  const double value = node.as_double();
  if (!(value >= low && value <= high))
    node.fail_here(node.as_string() + " is out of range", fmt::format("from {:g} to {:g}", low, high));
  return value;
}

std::vector<std::string> read_names(const Yaml& node) {
  if (node.kind() != Yaml::Kind::kSequence) return {node.as_string()};
  std::vector<std::string> names;
  for (const Yaml& item : node.items()) names.push_back(item.as_string());
  return names;
}

SchemeRequest read_scheme(const Yaml& node) {
  if (node.kind() != Yaml::Kind::kMapping) {
    try {
      return parse_scheme(node.as_string());
    } catch (const Error& e) {
      if (!e.detail().file.empty()) throw;
      fail(e.kind(), {e.detail().message, node.file(), place_of(node), e.detail().hint});
    }
  }
  SchemeRequest scheme;
  for (const Yaml::Member& m : node.members()) {
    if (m.key == "weights")
      read_weights(m.value, scheme);
    else if (m.key == "activations")
      read_activations(m.value, scheme);
    else
      fail_unknown_key(node, m, "scheme." + m.key, {"weights", "activations"});
  }
  return scheme;
}

std::optional<SchemeRequest> read_scheme_or_dense(const Yaml& node) {
  if (node.kind() == Yaml::Kind::kScalar && (node.as_string() == kDenseWord || node.as_string() == "bf16"))
    return std::nullopt;
  return read_scheme(node);
}

void read_override(const Yaml& node, SchemeOverride& into) {
  const std::string word = node.kind() == Yaml::Kind::kScalar ? node.as_string() : "";
  into.gguf_type = find_gguf_tensor_type(word);
  if (!into.gguf_type && find_gguf_file_type(word) != nullptr)
    node.fail_here("'" + word + "' is what a whole GGUF mixes, and this is of single tensors",
                   "write one of " + gguf_tensor_type_names());
  into.scheme = std::nullopt;
  if (into.gguf_type && word != "mxfp4") return;
  try {
    into.scheme = read_scheme_or_dense(node);
  } catch (const Error& e) {
    if (word.empty()) throw;
    fail(e.kind(), {e.detail().message, e.detail().file, e.detail().where,
                    e.detail().hint + "; in a GGUF " + gguf_tensor_type_names()});
  }
}

void fail_unknown_key(const Yaml& parent, const Yaml::Member& member, const std::string& path,
                      const std::vector<std::string>& known) {
  const auto nearest =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return distance(a, member.key) < distance(b, member.key);
      });
  const bool close = nearest != known.end() && distance(*nearest, member.key) <= 2;
  fail(ErrorKind::kBadInput,
       {"unknown key '" + path + "'", parent.file(),
        std::to_string(member.line) + ":" + std::to_string(member.column),
        close ? "did you mean '" + *nearest + "'?" : "known here are " + joined(known)});
}

}  // namespace llmq
