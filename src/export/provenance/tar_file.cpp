#include "export/provenance/tar_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace llmq {
namespace {

constexpr std::size_t kTarBlock = 512, kNameField = 100;
constexpr std::uint64_t kMostInOctal = (std::uint64_t{1} << 33) - 1;  // eleven digits
constexpr char kPlainFile = '0', kDirectory = '5', kPaxHeader = 'x';

void put(std::string& header, std::size_t at, std::string_view text) {
  std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(at));
}

std::string tar_header(std::string_view name, std::uint64_t bytes, char kind) {
  std::string header(kTarBlock, '\0');
  put(header, 0, name.substr(0, kNameField));
  put(header, 100, kind == kDirectory ? "0000755" : "0000644");
  put(header, 108, "0000000");  // user
  put(header, 116, "0000000");  // group
  put(header, 124, fmt::format("{:011o}", std::min(bytes, kMostInOctal)));
  put(header, 136, "00000000000");  // time
  put(header, 148, "        ");     // the checksum counts as spaces
  header[156] = kind;
  put(header, 257, std::string_view("ustar\00000", 8));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(header, 148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  return header;
}

std::string padding(std::uint64_t bytes) {
  return std::string((kTarBlock - bytes % kTarBlock) % kTarBlock, '\0');
}

// "27 path=models/a-long-name\n": the length counts itself.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (length != rest + std::to_string(length).size()) length = rest + std::to_string(length).size();
  return fmt::format("{} {}={}\n", length, key, value);
}

}  // namespace

TarFile tar_file(std::string_view directory, std::string_view name, std::uint64_t bytes) {
  const std::string path = fmt::format("{}/{}", directory, name);
  TarFile file;
  file.before = tar_header(fmt::format("{}/", directory), 0, kDirectory);
  std::string records;
  if (path.size() > kNameField) records += pax_record("path", path);
  if (bytes > kMostInOctal) records += pax_record("size", std::to_string(bytes));
  if (!records.empty())
    file.before += tar_header("pax", records.size(), kPaxHeader) + records + padding(records.size());
  file.before += tar_header(path, bytes, kPlainFile);
  file.after = padding(bytes) + std::string(2 * kTarBlock, '\0');
  return file;
}

}  // namespace llmq
