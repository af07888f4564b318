// A weight from rows to fragments (kernels/common/fragment_layout.h): a thread gathers one word. Padding
// becomes 0, whatever is flipped.
#pragma once
#include "kernels/common/fragment_layout.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

struct PackFragments {
  struct Arguments {
    uint32_t* words = nullptr;
    FragmentLayout layout;
    const uint16_t* wide = nullptr;   // [features, columns], where bits are 16
    const uint8_t* narrow = nullptr;  // codes [features, columns], each below 2^bits
    uint32_t flip = 0;                // of each code's bits: 0x80 makes INT8 of code - 128
  };
  static constexpr int kThreads = 256;
  struct Shared {};
  static Grid grid(const Arguments& a) { return {blocks_for(a.layout.words(), kThreads)}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int t) {
      const int64_t word = int64_t{block.x} * kThreads + t;
      if (word >= a.layout.words()) return;
      uint32_t gathered = 0;
      for (int i = 0; i < 32 / a.layout.bits; ++i)
        gathered |= code_at(a, a.layout.element(word, i)) << (i * a.layout.bits);
      a.words[word] = gathered;
    });
  }

 private:
  static LLMQ_BLOCK uint32_t code_at(const Arguments& a, FragmentElement e) {
    const int64_t place = e.position % a.layout.padded_group(),
                  k = e.position / a.layout.padded_group() * a.layout.group + place;
    if (e.feature >= a.layout.features || place >= a.layout.group || k >= a.layout.columns) return 0;
    const int64_t at = e.feature * a.layout.columns + k;
    return a.wide != nullptr ? a.wide[at] : a.narrow[at] ^ a.flip;
  }
};

}  // namespace llmq::cuda
