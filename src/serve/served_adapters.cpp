#include "serve/served_adapters.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "serve/api_error.h"
#include "serve/requests/request_fields.h"

namespace llmq {
namespace {

constexpr std::size_t kMostNameBytes = 128;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("._:/@+-").find(c) != std::string_view::npos;
}

auto named(auto& adapters, std::string_view name) {
  return std::find_if(adapters.begin(), adapters.end(),
                      [&](const ServedAdapter& one) { return one.name == name; });
}

}  // namespace

bool ServedAdapters::has(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return named(loaded_, name) != loaded_.end();
}

std::size_t ServedAdapters::size() const {
  const std::lock_guard lock(mutex_);
  return loaded_.size();
}

std::vector<ServedAdapter> ServedAdapters::list() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

std::optional<ServedAdapter> ServedAdapters::put(ServedAdapter adapter) {
  const std::lock_guard lock(mutex_);
  const auto same = named(loaded_, adapter.name);
  if (same != loaded_.end()) return std::exchange(*same, std::move(adapter));
  loaded_.push_back(std::move(adapter));
  return std::nullopt;
}

std::optional<ServedAdapter> ServedAdapters::remove(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto same = named(loaded_, name);
  if (same == loaded_.end()) return std::nullopt;
  ServedAdapter removed = std::move(*same);
  loaded_.erase(same);
  return removed;
}

std::optional<std::string> bad_adapter_name(std::string_view name) {
  if (name.empty()) return "the name of the adapter is empty";
  if (name.size() > kMostNameBytes)
    return fmt::format("the name of the adapter has {} bytes, more than {}", name.size(), kMostNameBytes);
  if (!std::all_of(name.begin(), name.end(), is_name_character) || name.find("..") != std::string_view::npos)
    return fmt::format(
        "'{}' is no name for an adapter: use letters, digits and single '.', '_', ':', '/', '@', '+', '-'",
        excerpt(name, kMostNameBytes));
  return std::nullopt;
}

Path adapter_below(const Path& directory, const std::string& asked) {
  std::error_code error;
  const auto refuse = [&](const char* why) -> ApiError {
    return ApiError(400, fmt::format("'{}' {}", excerpt(asked, 200), why), "lora_path");
  };
  if (asked.empty() || asked.find('\0') != std::string::npos) throw refuse("is no path");
  const Path root = std::filesystem::canonical(directory, error);
  if (error) throw ApiError(500, "the directory that adapters are loaded from is gone");
  // an absolute path replaces the directory
  Path real = std::filesystem::canonical(directory / asked, error);
  const auto differ = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  // Whether a path outside is there is nobody's business.
  if (error || differ.first != root.end() || !std::filesystem::is_directory(real, error))
    throw refuse("is no directory below the one that adapters are loaded from");
  return real;
}

}  // namespace llmq
