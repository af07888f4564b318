// The adapters that a server answers for: their names, seen from any thread. The engine holds the adapters
// themselves.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "model/adapters/lora_adapter.h"

namespace llmq {

struct ServedAdapter {
  std::string name;
  std::string root;          // where it came from, as it was named
  std::int64_t created = 0;  // seconds since 1970
};

class ServedAdapters {
 public:
  explicit ServedAdapters(std::vector<ServedAdapter> loaded) : loaded_(std::move(loaded)) {}
  bool has(std::string_view name) const;
  std::size_t size() const;
  std::vector<ServedAdapter> list() const;
  // in the place of one of that name, which is returned
  std::optional<ServedAdapter> put(ServedAdapter adapter);
  std::optional<ServedAdapter> remove(std::string_view name);  // what had the name

 private:
  mutable std::mutex mutex_;
  std::vector<ServedAdapter> loaded_;
};

// What requests may load while the server runs; by default nothing.
struct AdapterLoading {
  Path directory;  // they come from below it; empty: loading is switched off
  std::size_t most = 16;
  std::function<LoraAdapter(const Path&)> open;  // checked against the model
};

// Why a name is not one for an adapter; nothing where it is. Letters, digits and "._:/@+-", at most 128.
std::optional<std::string> bad_adapter_name(std::string_view name);

// The directory that `asked`, relative to `directory` or absolute, really is; ApiError 400 where that is not
// below `directory`.
Path adapter_below(const Path& directory, const std::string& asked);

}  // namespace llmq
