// make_checkpoint SHAPE DIRECTORY [LAYERS] [SEED] [VOCABULARY]: a synthetic checkpoint, for `make
// bench-large` and by hand. What blocks take says the same with a small vocabulary, and is there sooner.
#include <cstdio>
#include <exception>
#include <string>

#include "memory/synthetic_checkpoint.h"

int main(int argc, char** argv) {
  if (argc < 3 || argc > 6) {
    std::fputs("make_checkpoint SHAPE DIRECTORY [LAYERS] [SEED] [VOCABULARY]; shapes:", stderr);
    for (const auto& shape : llmq::testing::synthetic_shapes())
      std::fprintf(stderr, " %s", shape.name.c_str());
    std::fputs("\n", stderr);
    return 2;
  }
  try {
    llmq::testing::SyntheticShape shape = llmq::testing::synthetic_shape(argv[1]);
    if (argc > 3) shape.layers = std::stoll(argv[3]);
    if (argc > 5) shape.vocabulary = std::stoll(argv[5]);
    llmq::testing::write_synthetic_checkpoint(llmq::system_io(), argv[2], shape,
                                              argc > 4 ? std::stoull(argv[4]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
