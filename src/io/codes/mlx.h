// What is left to see of MLX's codes once a checkpoint is open (io/codes/mlx.cpp).
#pragma once
#include "io/checkpoint.h"

namespace llmq {

// Whether numbers of the checkpoint are made of codes.
bool is_made_of_codes(const Checkpoint& checkpoint);

}  // namespace llmq
