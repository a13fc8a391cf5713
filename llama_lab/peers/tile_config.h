// Compiled into llama.cpp before its own headers, on processors with AMX.
//
// GCC's _tile_loadconfig tells the compiler of the first eight of the 64 bytes that the instruction reads. ggml fills
// them on the stack, so most of what it writes there is optimised away as never read, and the instruction faults
// (https://github.com/ggml-org/llama.cpp/pull/26954). Here all 64 are named.
#if defined(__AMX_TILE__) && defined(__GNUC__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#endif
