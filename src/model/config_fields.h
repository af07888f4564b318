// config.json read field by field: every value range-checked, every key accounted for.
//
// A config is hostile until read. Each getter marks its key as read; refuse_unread() then refuses by name
// whatever nobody read and nobody knows to be harmless, because an unknown field may change the mathematics.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq {

struct IntegerRange {
  std::int64_t least = 0, most = 0;
};
struct NumberRange {
  double least = 0, most = 0;  // both allowed
};

// Caps on sizes: the product of any two fits 63 bits, and nothing is allocated by them before the tensors
// agree.
inline constexpr IntegerRange kWidthRange{1, 1 << 24};  // hidden, intermediate, vocabulary
inline constexpr IntegerRange kHeadsRange{1, 1 << 16};
inline constexpr IntegerRange kHeadDimRange{2, 1 << 16};
inline constexpr IntegerRange kLayersRange{1, 1 << 14};
inline constexpr IntegerRange kPositionsRange{1, (std::int64_t{1} << 31) - 1};

class ConfigFields {
 public:
  // `file` and `where` ("" or "rope_parameters") name the place in errors. `object` must outlive this.
  ConfigFields(const Json& object, std::string file, std::string where);

  const Json* find(std::string_view key);    // marks it as read; null when absent or JSON null
  bool is_null(std::string_view key) const;  // present, and null
  bool was_read(std::string_view key) const { return read_.contains(key); }

  std::int64_t integer(std::string_view key, IntegerRange range);  // required
  std::int64_t integer(std::string_view key, IntegerRange range, std::int64_t absent);
  double number(std::string_view key, NumberRange range);  // required; finite
  double number(std::string_view key, NumberRange range, double absent);
  bool flag(std::string_view key, bool absent);
  std::string text(std::string_view key);  // required
  std::string text(std::string_view key, std::string_view absent);

  // Refuses the key unless it is absent, null or equal to `neutral`: another value changes the mathematics.
  void require_neutral(std::string_view key, const Json& neutral);
  // Refuses by name every key that was not read, is not null, and is not in `harmless`.
  void refuse_unread(const std::set<std::string_view>& harmless) const;

  std::string place(std::string_view key) const;  // "rope_parameters.factor"
  const std::string& file() const { return file_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void bad(std::string_view key, std::string message, std::string hint = {}) const;  // kBadInput
  [[noreturn]] void unsupported(std::string_view key, std::string message,
                                std::string hint = {}) const;  // kUnsupported

 private:
  const Json& object_;
  std::string file_, where_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace llmq
