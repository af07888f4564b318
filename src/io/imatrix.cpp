#include "io/imatrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/gguf_writer.h"
#include "io/put_number.h"

namespace llmq {
namespace {

constexpr std::int32_t kMostEntries = 1'000'000;
constexpr std::int32_t kMostImatrixName = 4096;
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

[[noreturn]] void refuse_imatrix(const std::string& file, std::string where, std::string message) {
  fail(ErrorKind::kBadInput,
       {std::move(message), file, std::move(where), "make it again with llama-imatrix or llmq"});
}

void check_values(const ImatrixEntry& entry, const std::string& name, const std::string& file) {
  const auto odd = [](float value) { return !(std::isfinite(value) && value >= 0); };
  if (entry.sums.empty() || entry.counts.empty() || entry.sums.size() % entry.counts.size() != 0)
    refuse_imatrix(file, name,
                   fmt::format("{} sums do not go with {} counts", entry.sums.size(), entry.counts.size()));
  if (std::any_of(entry.sums.begin(), entry.sums.end(), odd) ||
      std::any_of(entry.counts.begin(), entry.counts.end(), odd))
    refuse_imatrix(file, name, "holds a value that no sum of squares has");
  if (std::any_of(entry.counts.begin(), entry.counts.end(),
                  [](float count) { return count > 0 && count < 1; }))
    refuse_imatrix(file, name, "counts less than one token");
}

class ImatrixCursor {
 public:
  ImatrixCursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}
  std::size_t left() const { return bytes_.size(); }
  std::span<const std::byte> take(std::int64_t count, const std::string& where) {
    if (count < 0 || static_cast<std::uint64_t>(count) > bytes_.size())
      refuse_imatrix(file_, where,
                     fmt::format("{} bytes are announced and {} are left", count, bytes_.size()));
    const auto taken = bytes_.first(static_cast<std::size_t>(count));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::int32_t number(const std::string& where) {
    std::int32_t value = 0;
    std::memcpy(&value, take(sizeof value, where).data(), sizeof value);
    return value;
  }
  std::string text(const std::string& where) {
    const std::int32_t length = number(where);
    if (length < 0 || length > kMostImatrixName)
      refuse_imatrix(file_, where, fmt::format("a name of {} bytes", length));
    const auto bytes = take(length, where);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
};

Imatrix parse_dat(std::span<const std::byte> bytes, const std::string& file) {
  ImatrixCursor cursor(bytes, file);
  Imatrix imatrix;
  const std::int32_t count = cursor.number("entries");
  if (count < 1 || count > kMostEntries)
    refuse_imatrix(file, "entries", fmt::format("it claims {} entries: this is no importance matrix", count));
  for (std::int32_t i = 0; i < count; ++i) {
    const std::string name = cursor.text(fmt::format("entry {}", i));
    const std::int32_t calls = cursor.number(name), values = cursor.number(name);
    const auto raw = cursor.take(std::int64_t{values} * 4, name);
    ImatrixEntry entry;
    entry.sums.resize(raw.size() / sizeof(float));
    if (!raw.empty()) std::memcpy(entry.sums.data(), raw.data(), raw.size());
    entry.counts.assign(1, static_cast<float>(calls));
    check_values(entry, name, file);
    if (!imatrix.entries.emplace(name, std::move(entry)).second)
      refuse_imatrix(file, name, "the entry occurs twice");
  }
  if (cursor.left() == 0) return imatrix;  // files of 2023 end here
  imatrix.chunk_count = static_cast<std::uint32_t>(std::max(cursor.number("chunks"), 0));
  if (cursor.left() == 0) return imatrix;
  if (const std::string dataset = cursor.text("dataset"); !dataset.empty())
    imatrix.datasets.push_back(dataset);
  if (cursor.left() != 0)
    refuse_imatrix(file, "end", fmt::format("{} bytes follow the last field", cursor.left()));
  return imatrix;
}

std::vector<float> floats_of(const GgufTensor& tensor, std::span<const std::byte> bytes,
                             const std::string& file) {
  if (tensor.dtype != DType::kF32)
    refuse_imatrix(file, tensor.name, fmt::format("is {}, not F32", dtype_row(tensor.dtype).name));
  std::vector<float> values(static_cast<std::size_t>(tensor.bytes / sizeof(float)));
  if (!values.empty())
    std::memcpy(values.data(), bytes.data() + tensor.offset, values.size() * sizeof(float));
  return values;
}

Imatrix parse_gguf_imatrix(std::span<const std::byte> bytes, const std::string& file) {
  const GgufHeader header = parse_gguf(bytes, file);
  const auto type = header.find_string("general.type");
  if (!type || *type != "imatrix")
    refuse_imatrix(file, "general.type",
                   fmt::format("is \"{}\", not \"imatrix\"", type.value_or("").substr(0, 64)));
  Imatrix imatrix;
  if (header.find("imatrix.datasets") != nullptr)
    for (const std::string_view name : header.strings("imatrix.datasets"))
      imatrix.datasets.emplace_back(name);
  const auto count = [&](const char* key) {
    return static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(header.find_integer(key).value_or(0), 0, UINT32_MAX));
  };
  imatrix.chunk_count = count("imatrix.chunk_count");
  imatrix.chunk_size = count("imatrix.chunk_size");
  for (const GgufTensor& tensor : header.tensors) {
    const std::string_view name = tensor.name;
    if (name.ends_with(kSums))
      imatrix.entries[std::string(name.substr(0, name.size() - kSums.size()))].sums =
          floats_of(tensor, bytes, file);
    else if (name.ends_with(kCounts))
      imatrix.entries[std::string(name.substr(0, name.size() - kCounts.size()))].counts =
          floats_of(tensor, bytes, file);
  }
  if (imatrix.entries.empty()) refuse_imatrix(file, {}, "holds no sums of squares");
  for (const auto& [name, entry] : imatrix.entries) check_values(entry, name, file);
  return imatrix;
}

void put_imatrix_text(std::string& bytes, const std::string& text) {
  put_number(bytes, static_cast<std::int32_t>(text.size()));
  bytes += text;
}

std::string dat_bytes(const Imatrix& imatrix) {
  std::string bytes;
  put_number(bytes, static_cast<std::int32_t>(imatrix.entries.size()));
  const auto chunk = static_cast<float>(std::max<std::uint32_t>(imatrix.chunk_size, 1));
  for (const auto& [name, entry] : imatrix.entries) {
    put_imatrix_text(bytes, name);
    const float most = *std::max_element(entry.counts.begin(), entry.counts.end());
    const float calls = std::max(1.0f, std::ceil(most / chunk));  // never 0, by which readers divide
    put_number(bytes, static_cast<std::int32_t>(calls));
    const std::vector<float> means = imatrix.importance(name);
    put_number(bytes, static_cast<std::int32_t>(means.size()));
    for (const float mean : means) put_number(bytes, mean * calls);
  }
  put_number(bytes, static_cast<std::int32_t>(imatrix.chunk_count));
  put_imatrix_text(bytes, imatrix.datasets.empty() ? std::string() : imatrix.datasets.back());
  return bytes;
}

void save_gguf(Io& io, const Path& path, const Imatrix& imatrix) {
  GgufMetadata metadata;
  metadata.set_string("general.type", "imatrix");
  metadata.set_strings("imatrix.datasets", imatrix.datasets);
  metadata.set_u32("imatrix.chunk_count", imatrix.chunk_count);
  metadata.set_u32("imatrix.chunk_size", imatrix.chunk_size);
  std::vector<TensorDeclaration> tensors;
  for (const auto& [name, entry] : imatrix.entries) {
    const auto matrices = static_cast<std::int64_t>(entry.counts.size());
    const auto inputs = static_cast<std::int64_t>(entry.sums.size()) / matrices;
    tensors.push_back({name + std::string(kSums), DType::kF32, Shape{matrices, inputs}});
    tensors.push_back({name + std::string(kCounts), DType::kF32, Shape{matrices, 1}});
  }
  GgufWriter writer(io, path, metadata, tensors);
  for (const auto& [name, entry] : imatrix.entries) {
    writer.append(name + std::string(kSums), std::as_bytes(std::span(entry.sums)));
    writer.append(name + std::string(kCounts), std::as_bytes(std::span(entry.counts)));
  }
  writer.finish();
}

}  // namespace

std::vector<float> Imatrix::importance(std::string_view weight) const {
  const auto found = entries.find(weight);
  if (found == entries.end()) return {};
  const ImatrixEntry& entry = found->second;
  const std::size_t inputs = entry.sums.size() / entry.counts.size();
  std::vector<float> means(entry.sums.size());
  for (std::size_t i = 0; i < means.size(); ++i) {
    const float count = entry.counts[i / inputs];
    means[i] = count > 0 ? entry.sums[i] / count : 1.0f;
  }
  return means;
}

Imatrix parse_imatrix(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0) return parse_gguf_imatrix(bytes, file);
  return parse_dat(bytes, file);
}

Imatrix load_imatrix(Io& io, const Path& path) {
  const std::unique_ptr<Mapping> mapping = io.open(path)->map();
  return parse_imatrix(mapping->bytes(), path.string());
}

void save_imatrix(Io& io, const Path& path, const Imatrix& imatrix) {
  if (path.extension() == ".dat")
    write_text_atomically(io, path, dat_bytes(imatrix));
  else
    save_gguf(io, path, imatrix);
}

}  // namespace llmq
