// Resolves model arguments without opening a connection.
#include "io/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace llmq {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_part(std::string_view part) {
  if (part.empty()) return false;
  for (const char c : part)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
          c == '_' || c == '.'))
      return false;
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return !is_edge(part.front()) && !is_edge(part.back());
}

std::string fetch_command(const std::string& name) {
  return fmt::format("fetch it first: hf download {}", name);
}

// refs/main is written by other programs: a commit is one path part and nothing else.
std::string read_commit(Io& io, const Path& reference, const std::string& name) {
  std::string commit = read_text(io, reference, 4096);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r' || commit.back() == ' '))
    commit.pop_back();
  const bool sound =
      !commit.empty() && commit.size() <= 255 && std::all_of(commit.begin(), commit.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      });
  if (!sound)
    fail(ErrorKind::kBadInput, {"does not hold a commit", reference.string(), {}, fetch_command(name)});
  return commit;
}

}  // namespace

bool is_hub_name(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || text.size() > 96) return false;
  if (text.find("--") != std::string_view::npos || text.find("..") != std::string_view::npos) return false;
  return is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1));
}

bool is_hub_license(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

Path hub_cache_directory() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string value = environment(name); !value.empty()) return value;
  if (const std::string value = environment("HF_HOME"); !value.empty()) return Path(value) / "hub";
  if (const std::string value = environment("XDG_CACHE_HOME"); !value.empty())
    return Path(value) / "huggingface" / "hub";
  return Path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

Path find_in_hub_cache(Io& io, const std::string& name) {
  std::string folder = "models--" + name;
  const std::size_t slash = folder.find('/');
  if (slash != std::string::npos) folder.replace(slash, 1, "--");
  const Path repository = hub_cache_directory() / folder;
  if (!io.is_directory(repository))
    fail(ErrorKind::kBadInput, {fmt::format("is neither a directory nor a model in the hub cache {}",
                                            hub_cache_directory().string()),
                                name,
                                {},
                                fetch_command(name)});
  const Path reference = repository / "refs" / "main";
  if (!io.exists(reference))
    fail(ErrorKind::kBadInput, {"the hub cache holds the model without its main revision (refs/main)",
                                repository.string(),
                                {},
                                fetch_command(name)});
  Path snapshot = repository / "snapshots" / read_commit(io, reference, name);
  if (!io.is_directory(snapshot))
    fail(ErrorKind::kBadInput, {"the revision that refs/main names is not in the hub cache",
                                snapshot.string(),
                                {},
                                fetch_command(name)});
  return snapshot;
}

std::string hub_name_of(const Path& path) {
  constexpr std::string_view kModels = "models--";
  std::string name;
  for (const Path& part : path) {
    const std::string text = part.string();
    if (text == "snapshots" && !name.empty()) return is_hub_name(name) ? name : "";
    name.clear();
    const std::size_t middle = text.find("--", kModels.size());
    if (!text.starts_with(kModels) || middle == std::string::npos) continue;
    name = text.substr(kModels.size(), middle - kModels.size()) + "/" + text.substr(middle + 2);
  }
  return "";
}

Path resolve_model(Io& io, const std::string& model) {
  if (model.empty()) fail(ErrorKind::kUsage, {"the model argument is empty", {}, {}, {}});
  Path path(model);
  if (io.is_directory(path)) return path;
  const bool names_gguf = path.extension() == ".gguf";
  if (io.exists(path)) {
    if (names_gguf) return path;
    fail(ErrorKind::kBadInput,
         {"is a file, and a model is a directory, a .gguf file or a hub name",
          model,
          {},
          path.extension() == ".safetensors" ? "pass the directory that holds it and its config.json" : ""});
  }
  if (names_gguf) fail(ErrorKind::kBadInput, {"no such file", model, {}, {}});
  if (is_hub_name(model)) return find_in_hub_cache(io, model);
  fail(ErrorKind::kBadInput,
       {"no such directory, and the text is not a hub name (owner/name)", model, {}, {}});
}

}  // namespace llmq
