// A checkpoint as one table: name -> checked view over mapped bytes, whatever the container (safetensors,
// sharded or not; GGUF).
//
// Every header rule is checked before a view is handed out (io/safetensors.h, io/gguf.h); names, offsets,
// sizes and dtypes are facts above. A shard is a plain name inside the directory, checked as text: files of
// the hub cache are symbolic links out of it, and shall be. Opening maps and reads headers only. Values are
// looked at under a lease, which the functions below take themselves unless they say otherwise: it is what
// counts bytes, and what reads them where the page cache is gone past (base/io.h). Leases do not outlive the
// checkpoint. Tensor names are Hugging Face names; what a GGUF's are there, and which of its rows lie in
// llama.cpp's order, says the reader that open() is given (io/gguf_reading.h).
#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "io/gguf_parts.h"
#include "io/gguf_reading.h"
#include "tensor/quantized_matrix.h"
#include "tensor/tensor_view.h"

namespace llmq {

// How numbers are made of tensors that the checkpoint has and does not show (model/packed/unpacked.h).
class Unpacking {
 public:
  virtual ~Unpacking() = default;
  // FP32, row after row; what is not finite among them stays.
  virtual void read(std::span<float> into, ThreadPool& pool) const = 0;
  virtual void read_ahead() const = 0;
  virtual void release() const = 0;
  // What one reading counts at most, and how much of that only the first does.
  virtual std::uint64_t bytes_to_read() const = 0;
  virtual std::uint64_t bytes_kept() const = 0;
  virtual std::uint64_t bytes_on_disk() const = 0;
  // Sentences for who rounds the numbers again: what they, and those made like them, have lost before.
  virtual std::vector<std::string> told() const = 0;
};

struct StoredTensor {
  std::string name;
  TensorView view;           // host, read-only, possibly a GGUF block dtype
  int shard = 0;             // index into shards
  std::uint64_t offset = 0;  // of its first byte in the shard
  // > 0: the view's rows lie in llama.cpp's rope order (io/gguf_rows.h); read_float32() undoes it
  int permuted_heads = 0;
  // The view is [rows, columns], and its bytes are those of [columns, rows]; read_float32() undoes it
  bool transposed = false;
  // How many matrices lie side by side in each stored row, and which of them this is: one behind another, or
  // element by element in turn (vectors too; rows of MXFP4). offset and view.pointer are those of the first.
  int side_by_side = 1, place = 0;
  bool alternating = false;
  // MXFP4: the view is of F4, the codes of E2M1 with the first of a byte low, and each 32 of a row are
  // multiplied by 2^(e - 127), e a byte of `exponents`, which lie as the rows do. read_float32() does it.
  struct Exponents {
    const std::uint8_t* pointer = nullptr;
    int shard = 0;
    std::uint64_t offset = 0;
  };
  std::optional<Exponents> exponents = {};
  int stack = -1;  // the one of Checkpoint::stacks() that it is a part of; -1: of none
  // FP8 in blocks (io/float8_blocks.cpp): the view is of E4M3, and block_rows x block_columns of it are
  // multiplied by one number of `scales` [blocks down, blocks across]. read_float32() does it.
  struct BlockScales {
    TensorView scales;
    int shard = 0;
    std::uint64_t offset = 0;
    static constexpr std::int64_t kMostOfABlock = 1 << 20;  // rows, or columns
    std::int64_t block_rows = 1, block_columns = 1;
  };
  std::optional<BlockScales> block_scales = {};
  // bitsandbytes (io/bitsandbytes.cpp): the view is of F4, with the first code of a byte high, or of I8; what
  // the codes are multiplied by lies in tensors of their own. read_float32() does it.
  struct Part {
    TensorView view;
    int shard = 0;
    std::uint64_t offset = 0;
  };
  struct BitsAndBytes {
    DType dtype = DType::kF32;  // that values are rounded to
    std::int64_t block = 64, nested_block = 256;
    Part scales, nested;  // of scales; its pointer is null where there are none
    float offset = 0;
    std::array<float, 16> map{};
    std::array<float, 256> nested_map{};
  };
  std::shared_ptr<const BitsAndBytes> bits_and_bytes = {};
  // MLX (io/codes/mlx.cpp): the numbers of the view are made, when they are leased, of codes of so many bits
  // in groups of so many; what these take on the disk, with scales and biases.
  struct MadeOf {
    int bits = 0;
    std::int64_t group = 0;
    std::uint64_t bytes = 0;
  };
  std::optional<MadeOf> made_of = {};
  float shift = 0;  // what is stored is greater by so much; read_float32() undoes it
  // What a GGUF has in another order, or in several tensors (io/gguf_parts.h); read_float32() undoes it. Of
  // one, the view is that of its bytes; of several it is of no bytes, and F32.
  struct Piece {
    TensorView view;
    int shard = 0;
    std::uint64_t offset = 0;
    GgufPart part;
  };
  std::shared_ptr<const std::vector<Piece>> pieces = {};
  // A packed linear's: the view is of no bytes, and F32; read_float32() has them made.
  std::shared_ptr<const Unpacking> unpacking = {};
  // Whether the bytes are rows of numbers, one after another; where they are not, only read_float32() tells
  // values.
  bool in_order() const {
    return shift == 0 && permuted_heads == 0 && !transposed && side_by_side == 1 && !exponents &&
           !block_scales && !bits_and_bytes && !pieces && !unpacking;
  }
  // Whether values are codes that are multiplied: numbers whatever the view's type is.
  bool is_scaled() const { return block_scales || bits_and_bytes || unpacking; }
  // On the disk; an exponent is a byte beside 16 of codes.
  std::uint64_t bytes_on_disk() const {
    if (unpacking) return unpacking->bytes_on_disk();
    return made_of ? made_of->bytes : view.bytes() + (exponents ? view.bytes() / 16 : 0);
  }
  std::uint64_t stored_bytes() const {  // of all of them
    return view.bytes() * static_cast<std::uint64_t>(side_by_side);
  }
};

// A stack that stays one in outputs: loaders of its family read no tensors of single matrices. It is stored
// as one tensor, or as codes and exponents, "<name>_blocks" and "<name>_scales".
struct StoredStack {
  std::string name;
  std::vector<StoredTensor> tensors;
  std::vector<std::string> parts;  // slab after slab, of each its matrices in turn
  std::int64_t each = 1;           // matrices of a slab; as MXFP4 their rows alternate
};

// What the slabs of a stacked tensor [slabs, rows, columns] are called, each read as a tensor of its own:
// slab e is `before` + "e" + `after`. Transposed: a matrix W [columns, rows] is stored as its transpose.
// Where a slab is several matrices of equally many rows, one under another (transposed: side by side),
// `further` has what those behind the first have in the place of `after`. Alternating: stored columns, or
// elements of a vector, belong to each in turn. Vectors: the stack is [slabs, elements].
struct SlabNames {
  std::string before, after;
  bool transposed = false;
  std::vector<std::string> further = {};
  bool alternating = false, vectors = false;
  // MXFP4: the stack is U8 [slabs, rows, columns / 32, 16] of codes, and the tensor of this name U8 [slabs,
  // rows, columns / 32] of exponents. Rows alternate where matrices do.
  std::string exponents = {};
  std::int64_t columns = 0;  // above 0: of each matrix; a stack of another last extent is transposed
  std::string whole = {};    // StoredStack::name; empty: outputs have the parts
};
// Of a tensor in safetensors; nullopt where it is read as it is. `config` is config.json.
using FindSlabs = std::optional<SlabNames> (*)(const Json& config, const std::string& tensor);

class Checkpoint {
 public:
  // A directory in Hugging Face layout, a .gguf file, or a hub name found in the local cache (io/hub.h).
  // Errors: kBadInput; kUnsupported for a GGUF where no reader is given. Above io, model/open_checkpoint.h
  // gives one, and says which tensors are stacked.
  static Checkpoint open(Io& io, const std::string& model, ReadGguf read_gguf = nullptr,
                         FindSlabs find_slabs = nullptr);

  // Shards in the making, with the config that they will get: what was not written yet reads as zeros.
  static Checkpoint open_shards(Io& io, const Path& directory, const std::vector<Path>& shards, Json config);

  // Tensors in memory: no file is behind them, and their path is empty.
  struct OwnedTensor {
    std::string name;
    DType dtype;
    Shape shape;
    std::vector<std::byte> bytes;  // as many as dtype and shape say
  };
  static Checkpoint of_tensors(const std::vector<OwnedTensor>& tensors, Json config);

  // The same files as other tensors: copies of these, and such as have an Unpacking.
  Checkpoint showing(std::vector<StoredTensor> tensors, Json config) const;

  const StoredTensor* find(std::string_view name) const;  // one of tensors(), or of a stack
  const StoredTensor& at(
      std::string_view name) const;                  // Error(kBadInput) naming the checkpoint and the tensor
  const std::vector<StoredTensor>& tensors() const;  // sorted by name; parts in the place of stacks
  const std::vector<StoredStack>& stacks() const;
  const Json& config() const;      // config.json; for a GGUF: the equal one built from its metadata
  const Path& path() const;        // directory or .gguf file
  Path quantization_file() const;  // that config()'s quantization_config was read from
  bool is_gguf() const;
  std::uint64_t tensor_bytes() const;
  std::uint64_t header_bytes() const;  // that opening read, in whole blocks
  const std::vector<Path>& shards() const;
  // Files beside the weights that loaders read, for byte-for-byte copies: tokenizer*.json,
  // special_tokens_map.json, generation_config.json, vocab/merges, chat_template*, LICENSE*... For a GGUF:
  // empty; model/gguf/gguf_model.h makes them.
  const std::vector<Path>& companion_files() const;
  // What says the model's shape and the meaning of its codes: config.json, and ModelOpt's
  // hf_quant_config.json where there is one. For a GGUF: empty.
  const std::vector<Path>& config_files() const;
  // Values as FP32, [rows*cols]; permuted rows and transposed matrices already in Hugging Face's order.
  std::vector<float> read_float32(const StoredTensor& tensor) const;
  // rows divided over its threads
  void read_float32(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const;
  // Of MXFP4: rows [first, first + count) as 17 bytes a block, the exponent before its 16 bytes of codes.
  // Error as read_float32().
  std::vector<std::uint8_t> read_mxfp4(const StoredTensor& tensor, std::int64_t first,
                                       std::int64_t count) const;
  // MXFP4 beside its exponents, and bitsandbytes' 4 bits whose blocks do not cross rows, as codes whose
  // dequantize() is read_float32(); nullopt for every other, and where a value is not finite.
  std::optional<QuantizedMatrix> read_codes(const StoredTensor& tensor) const;
  // What view.pointer points to, until the lease goes. A small tensor is read once and kept.
  Lease hold(const StoredTensor& tensor) const;
  Lease hold_rows(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const;
  // One band of each_band(), which may have been read ahead.
  Lease hold_band(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const;
  // What one reading of the tensor by each_band() counts; hold() counts a little less, where bands share a
  // block.
  static std::uint64_t bytes_to_read(const StoredTensor& tensor);
  // How much of that only the first reading counts.
  static std::uint64_t bytes_kept(const StoredTensor& tensor);
  // Whether it is small, so that it is read once.
  static bool is_kept(const StoredTensor& tensor);
  // Whether what is held is memory of this process, not the page cache's.
  bool holds_in_memory() const;
  // Lets the kernel drop the pages of this tensor.
  void release(const StoredTensor& tensor) const;
  // Rows as they are stored, from `first_row` on, at most kBandElements elements (at least a row) at a time,
  // one after another; of a tensor that is not in_order() they are no rows of the model. A tensor of several
  // bands leaves the resident set behind them: it may be larger than there is memory.
  static constexpr std::int64_t kBandElements = std::int64_t{1} << 22;
  using EachBand = std::function<void(std::int64_t first_row, const TensorView& rows)>;
  void each_band(const StoredTensor& tensor, const EachBand& see) const;
  // Has the tensor read meanwhile, behind those named before, while no more than so many bytes are ahead of
  // who reads them.
  static constexpr std::uint64_t kReadAheadBytes = std::uint64_t{64}
                                                   << 20;  // where they are memory of this process
  static constexpr std::uint64_t kReadAheadCached = std::uint64_t{512} << 20;
  void read_ahead(const StoredTensor& tensor) const;

  // What is at most kept of a tensor between its readings.
  static constexpr std::uint64_t kKeptBytes = std::uint64_t{64} << 10;

 private:
  Lease hold_exponents(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const;
  void read_mxfp4_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const;
  void read_float8_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const;
  std::vector<float> scales_of_bits_and_bytes(const StoredTensor& tensor) const;
  std::optional<QuantizedMatrix> codes_of_bits_and_bytes(const StoredTensor& tensor) const;
  QuantizedMatrix codes_of_mxfp4(const StoredTensor& tensor) const;
  void read_bits_and_bytes(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const;
  void read_gguf_parts(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const;
  friend class CheckpointReader;  // builds the State
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace llmq
