// What programs that load quantized checkpoints want of every linear, one row for each of their kernels
// (export/formats/loader_constraints.h says what becomes of them).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace llmq {

// What the loaders tell apart: integers alone, or with inputs that are rounded too; floats in groups.
enum class LinearKind : std::uint8_t {
  kIntegers,
  kInt8Inputs,
  kFloat8Inputs,
  kNvfp4,
  kMxfp4,
  kMxfp8,
  kMxfp8Inputs
};

// Which group sizes a kernel takes; -1 is one scale per output channel, which `nest_in` and `multiple` let
// pass. Nothing set: any.
struct LoaderGroups {
  std::span<const int> listed = {};
  int nest_in = 0;   // 16 and above, and divides this or is a multiple of it
  int multiple = 0;  // of this
};

// What one kernel of a loader wants of every quantized linear that it is about.
struct LoaderRow {
  std::string_view loader, format;
  std::string_view kernel;  // as named in reasons
  std::string_view label;   // the loader with its version, as verdicts name it
  std::int64_t out_multiple = 1;
  LoaderGroups groups = {};
  std::span<const int> symmetric_bits = {}, asymmetric_bits = {};
  std::string_view no_column_groups =
      {};                          // who does not take columns that carry their own group; empty: taken
  bool fuses = false;              // q/k/v and gate/up become one linear each, so they must share a scheme
  bool uniform = false;            // one scheme for every quantized linear
  bool uniform_experts = false;    // one scheme for the experts of all layers
  bool whole_words = false;        // the zeros of all outputs fill 32-bit words
  bool outputs_in_groups = false;  // the outputs are a multiple of the group size, too
  bool pads = false;               // shapes that are not whole tiles of Marlin are padded with zeros
  bool silent = false;             // another row of this loader says why none fits
  std::string_view command;        // {} is the directory
  std::optional<LinearKind> kind = LinearKind::kIntegers;  // of the linears it is about; none: of all
};

// Rows of one loader and format stand together, and the first that fits answers for it.
std::span<const LoaderRow> loader_rows();

}  // namespace llmq
