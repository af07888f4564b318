// What the keys of a GGUF file say, by type.
#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "io/gguf.h"
#include "io/gguf_types.h"

namespace llmq {
namespace {

[[noreturn]] void wrong_kind(const GgufHeader& header, std::string_view key, const GgufValue& value,
                             const char* expected) {
  const std::string found = value.is_array()
                                ? fmt::format("an array of {}", type_row(value.element_type).name)
                                : fmt::format("of type {}", type_row(value.type).name);
  fail(ErrorKind::kBadInput,
       {fmt::format("is {} where {} was expected", found, expected), header.file, std::string(key), {}});
}

// Element `index` of a value as an integer; nothing when it is of another kind or above 2^63-1.
std::optional<std::int64_t> integer_element(const GgufValue& value, std::uint64_t index) {
  const std::byte* at = value.bytes.data() + index * type_row(value.element_type).bytes;
  switch (value.element_type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return load_value<std::uint8_t>(at);
    case GgufType::kI8:
      return load_value<std::int8_t>(at);
    case GgufType::kU16:
      return load_value<std::uint16_t>(at);
    case GgufType::kI16:
      return load_value<std::int16_t>(at);
    case GgufType::kU32:
      return load_value<std::uint32_t>(at);
    case GgufType::kI32:
      return load_value<std::int32_t>(at);
    case GgufType::kI64:
      return load_value<std::int64_t>(at);
    case GgufType::kU64: {
      const auto wide = load_value<std::uint64_t>(at);
      if (wide > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
      return static_cast<std::int64_t>(wide);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> number_element(const GgufValue& value, std::uint64_t index) {
  const std::byte* at = value.bytes.data() + index * type_row(value.element_type).bytes;
  if (value.element_type == GgufType::kF32) return load_value<float>(at);
  if (value.element_type == GgufType::kF64) return load_value<double>(at);
  if (value.element_type == GgufType::kU64) return static_cast<double>(load_value<std::uint64_t>(at));
  const auto integer = integer_element(value, index);
  if (!integer) return std::nullopt;
  return static_cast<double>(*integer);
}

// What a missing key means to the find_ forms.
template <typename Read>
auto find_with(const GgufHeader& header, std::string_view key, Read read) -> std::optional<decltype(read())> {
  if (!header.find(key)) return std::nullopt;
  return read();
}

}  // namespace

const GgufValue* GgufHeader::find(std::string_view key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : &found->second;
}

const GgufValue& GgufHeader::at(std::string_view key) const {
  if (const GgufValue* value = find(key)) return *value;
  fail(ErrorKind::kBadInput, {"the key is missing", file, std::string(key),
                              "the file does not describe a model completely; convert it again"});
}

std::int64_t GgufHeader::integer(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.is_array() || value.type == GgufType::kBool)
    wrong_kind(*this, key, value, "an integer below 2^63");
  const auto result = integer_element(value, 0);
  if (!result) wrong_kind(*this, key, value, "an integer below 2^63");
  return *result;
}

double GgufHeader::number(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.is_array() || value.type == GgufType::kBool) wrong_kind(*this, key, value, "a number");
  const auto result = number_element(value, 0);
  if (!result) wrong_kind(*this, key, value, "a number");
  return *result;
}

bool GgufHeader::boolean(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::kBool) wrong_kind(*this, key, value, "a boolean");
  return value.bytes[0] != std::byte{0};
}

std::string_view GgufHeader::string(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_string()) wrong_kind(*this, key, value, "a string");
  return {reinterpret_cast<const char*>(value.bytes.data()) + 8, value.bytes.size() - 8};
}

std::vector<std::string_view> GgufHeader::strings(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_array() || value.element_type != GgufType::kString)
    wrong_kind(*this, key, value, "an array of strings");
  std::vector<std::string_view> result;
  result.reserve(static_cast<std::size_t>(value.count));
  const std::byte* at_byte = value.bytes.data();
  for (std::uint64_t i = 0; i < value.count; ++i) {  // lengths were held against the file by parse_gguf()
    const auto length = load_value<std::uint64_t>(at_byte);
    result.emplace_back(reinterpret_cast<const char*>(at_byte) + 8, static_cast<std::size_t>(length));
    at_byte += 8 + length;
  }
  return result;
}

std::vector<std::int64_t> GgufHeader::integers(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_array()) wrong_kind(*this, key, value, "an array of integers");
  std::vector<std::int64_t> result;
  result.reserve(value.element_type == GgufType::kString ? 0 : static_cast<std::size_t>(value.count));
  for (std::uint64_t i = 0; i < value.count; ++i) {
    const auto element = integer_element(value, i);
    if (!element) wrong_kind(*this, key, value, "an array of integers below 2^63");
    result.push_back(*element);
  }
  return result;
}

std::vector<double> GgufHeader::numbers(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!value.is_array()) wrong_kind(*this, key, value, "an array of numbers");
  std::vector<double> result;
  result.reserve(value.element_type == GgufType::kString ? 0 : static_cast<std::size_t>(value.count));
  for (std::uint64_t i = 0; i < value.count; ++i) {
    const auto element = number_element(value, i);
    if (!element) wrong_kind(*this, key, value, "an array of numbers");
    result.push_back(*element);
  }
  return result;
}

std::optional<std::int64_t> GgufHeader::find_integer(std::string_view key) const {
  return find_with(*this, key, [&] { return integer(key); });
}
std::optional<double> GgufHeader::find_number(std::string_view key) const {
  return find_with(*this, key, [&] { return number(key); });
}
std::optional<bool> GgufHeader::find_boolean(std::string_view key) const {
  return find_with(*this, key, [&] { return boolean(key); });
}
std::optional<std::string_view> GgufHeader::find_string(std::string_view key) const {
  return find_with(*this, key, [&] { return string(key); });
}

}  // namespace llmq
