// Packed linears that loaders read as one stack: rows of each come to their place, and the stack is given to
// the writer when all of it is there.
//
//   rows of matrix `turn` of slab s       row (s * rows + r) * each + turn of the stack
//
// Memory: the stacks that are begun, which are those of one block.
#pragma once
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "export/formats/packed_formats.h"
#include "io/checkpoint.h"

namespace llmq {

// Whether a stack goes out as it is stored: none of its parts is among `weights`. Error(kUnsupported) where
// some of them are, and some are not.
bool is_carried(const StoredStack& stack, const std::set<std::string>& weights, const std::string& file);

class StackAssembly {
 public:
  // Every module is a part of one of the checkpoint's stacks: Error(kUnsupported) naming one that is not.
  StackAssembly(const Checkpoint& checkpoint, const PackedFormatRow& format,
                std::span<const PlannedModule> modules);
  std::vector<TensorDeclaration> declarations() const;
  std::vector<TensorDeclaration> declarations_of(const std::string& module) const;  // of its stack
  // What pack() gave of a module. The tensors of its stack when this was the last part of it; else none.
  std::vector<PackedTensor> add(const std::string& module, std::span<const PackedTensor> packed);

 private:
  struct Stack {
    std::vector<TensorDeclaration> tensors;
    std::vector<std::vector<std::byte>> bytes;
    std::size_t parts = 0, given = 0, each = 1;
  };
  struct Place {
    std::size_t stack = 0, part = 0;
  };
  std::vector<Stack> stacks_;
  std::map<std::string, Place> places_;  // by module
};

}  // namespace llmq
